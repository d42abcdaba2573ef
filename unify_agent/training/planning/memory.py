"""Memory of the rank that holds most, by part, at the three moments that can be the worst.

    encoding   the VAE encodes the pack's pictures, before anything of the pack is kept
    loss       the end of the forward pass: all activations are kept and a chunk of logits exists
    backward   the last block's backward pass: its activations are computed again, its gradients are reduced

What a rank holds throughout (weights, gradients, optimiser, EMA) is counted exactly, activations are read off the real
code (`probe`), and the working set follows how `parallelize` shards: each block, the embedding and the head are units,
and the next one is gathered while one computes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from unify_agent.interleave.batch import PackedBatch
from unify_agent.interleave.blocks import block_tables
from unify_agent.model.config import LlmConfig
from unify_agent.training.planning.parameters import Held, Parameter
from unify_agent.training.planning.probe import Activations, Encoding

GIB = 2**30
ALLOWANCE = 3 * GIB
"""CUDA context, buffers of NCCL, and what the allocator cannot use. An assumption, no measurement."""
MOMENTS = ("encoding", "loss", "backward")
PARTS = (
    "weights",
    "gradients",
    "optimiser",
    "ema",
    "vae",
    "activations",
    "logits",
    "block",
    "masks",
    "batch",
    "working_set",
    "allowance",
)


@dataclass(frozen=True)
class Memory:
    """Bytes. `moments`: moment -> part -> bytes on the card; `host`: part -> bytes in host memory for this rank, its
    Python and its data aside."""

    moments: dict[str, dict[str, int]]
    host: dict[str, int]
    decoder: int
    """Of the activations, what each decoder layer keeps."""
    vit: int
    """Of the activations, what each ViT layer keeps."""

    @property
    def worst(self) -> str:
        """The moment that needs most."""
        return max(MOMENTS, key=lambda moment: sum(self.moments[moment].values()))

    @property
    def parts(self) -> dict[str, int]:
        """Of the worst moment."""
        return self.moments[self.worst]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Layout:
    """How the model is spread. `sharded`: FSDP wraps it (also on a single rank, when it computes in another type than
    it stores). `compute`: bytes of a number while computing. `partial`: sums over replicas wait for the last pack.
    `copied`: bytes of the copy that a checkpoint is written from while training goes on."""

    sharded: bool
    compute: int
    offload: bool
    partial: bool
    copied: int


@dataclass(frozen=True)
class Readings:
    """What `probe` read off the code for the largest pack."""

    kept: Activations
    encoding: Encoding


def memory(
    llm: LlmConfig,
    parameters: Sequence[Parameter],
    held: Held,
    layout: Layout,
    readings: Readings,
    batch: PackedBatch,
    attention: str,
) -> Memory:
    """Puts the parts together."""
    kept, encoding = readings.kept, readings.encoding
    sizes = units(parameters)
    trained = units([each for each in parameters if each.trained])
    head, root = sizes.get("head", 0), sizes.get("root", 0)
    block = max(sizes, key=lambda name: sizes[name] if name not in ("head", "embedding", "root") else 0)
    reduced = max(trained.get("head", 0), trained.get(block, 0))
    gathered = {
        "loss": root + 2 * head,  # the head, and the buffer that it was gathered in
        "backward": root + 2 * sizes[block] + trained.get(block, 0),  # this block, the next one, this one's gradients
    }
    head_gradients = (llm.vocab_size + len(batch.ce_at)) * llm.hidden_size * layout.compute if len(batch.ce_at) else 0
    constant = {
        "weights": held.weights,
        "gradients": held.gradients * (2 if layout.partial else 1),
        "optimiser": held.optimiser,
        "ema": held.ema,
    }
    static = dict.fromkeys(constant, 0) if layout.offload else constant
    masks, pixels = mask_bytes(batch, attention), batch_bytes(batch)
    moments = {}
    for moment in MOMENTS:
        within = moment != "encoding"
        moments[moment] = static | {
            "vae": encoding.weights + (0 if within else encoding.worst),
            "activations": kept.kept - head_gradients if within else 0,
            "logits": head_gradients + kept.loss if moment == "loss" else 0,
            "block": head_gradients + kept.block if moment == "backward" else 0,
            "masks": masks if within else 0,
            "batch": pixels,
            "working_set": gathered.get(moment, 0) * layout.compute * layout.sharded
            + (4 * reduced * layout.sharded if moment == "backward" else 0),
            "allowance": ALLOWANCE,
        }
        moments[moment] = {part: moments[moment][part] for part in PARTS}
    host = (constant if layout.offload else {}) | ({"checkpoint": layout.copied} if layout.copied else {})
    return Memory(moments, host, kept.decoder, kept.vit)


def units(parameters: Sequence[Parameter]) -> dict[str, int]:
    """Numbers in each unit of `parallelize.shard_model`: each block by name, `embedding`, `head`, and `root`."""
    found: dict[str, int] = {}
    for each in parameters:
        layer = re.match(r"(.*\.layers\.\d+)\.", each.name)
        if layer:
            name = layer[1]
        elif "embed_tokens" in each.name:
            name = "embedding"
        else:
            name = "head" if "lm_head" in each.name else "root"
        found[name] = found.get(name, 0) + each.numel
    return found


def mask_bytes(batch: PackedBatch, attention: str) -> int:
    """What tells FlexAttention who sees whom. The other back ends' masks are few, or lie among the activations."""
    if attention != "flex":
        return 0
    tables = block_tables(batch.spans, batch.length)
    blocks = tables.partial.shape[0]
    per_token = sum(getattr(tables, each).nbytes for each in ("span", "document", "run", "reach"))
    return per_token + tables.seen.nbytes + 4 * 4 * (blocks + blocks * blocks)


def batch_bytes(batch: PackedBatch) -> int:
    """The pack itself on the device: pixels as bytes, noise, indices."""
    tensors = [value for value in vars(batch).values() if isinstance(value, Tensor)]
    lists = [each for value in (batch.vae_images, batch.vae_noise) for each in value]
    return sum(each.nbytes for each in (*tensors, *lists))
