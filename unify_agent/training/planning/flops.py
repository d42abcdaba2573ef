"""Floating-point operations of a training step on one pack, by part.

A product of [n, a] and [a, b] is 2nab. A linear layer's backward pass costs as much again for its input's gradient
and, if its weight is trained, as much again for the weight's: three times the forward pass in all. Attention is
4 x heads x width for each *visible* pair (scores, then values), three times over a step; it is counted neither for
squares nor for what checkpointing computes twice. So a model FLOP utilisation (MFU) is what the mathematics needs over
what the card could do; `recomputed` is what a checkpointed step does beyond that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unify_agent.model.config import BagelConfig, VaeConfig
from unify_agent.training.planning.parameters import Parameter
from unify_agent.training.planning.workload import Load

_GEN = "_moe_gen"


@dataclass(frozen=True)
class Flops:
    """Of one pack. `parts` are model FLOPs; `recomputed` are the forward passes done again."""

    parts: dict[str, float]
    recomputed: float

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def linear(self) -> float:
        """All matrix products but attention's, and without the VAE."""
        return sum(value for part, value in self.parts.items() if "attention" not in part and part != "VAE")


def flops(shape: BagelConfig, parameters: Sequence[Parameter], load: Load, checkpointing: str) -> Flops:
    """`parameters` tell which weights are trained and which adapters there are; `checkpointing` as in the config."""
    llm, vit = shape.llm, shape.vit
    rows = _Rows(load)
    parts = dict.fromkeys(("decoder, und", "decoder, gen", "head", "ViT", "connector", "latents and time"), 0.0)
    once = 0.0  # the blocks' linear layers, forward
    awake = any(each.trained and each.name.startswith(_TOWER) for each in parameters)
    for each in parameters:
        if len(each.shape) != 2 or "embed_tokens" in each.name or "pos" in each.name:
            continue  # biases, norms and tables that are looked up
        forward = 2.0 * each.numel * rows.of(each.name)
        part = "head" if "lm_head" in each.name else each.group
        asleep = each.name.startswith(_TOWER) and not awake
        back = not asleep and not each.name.startswith(_NO_INPUT_GRADIENT)
        parts[part] += forward * (1 + each.trained + back)
        if ".layers." in each.name and not asleep:
            once += forward
    decoder = 4.0 * llm.num_hidden_layers * llm.num_attention_heads * llm.head_dim * load.pairs
    tower = 4.0 * vit.layers_built * vit.hidden_size * sum(n * n for n in load.vit_lengths or (1,))
    parts |= {"attention": 3 * decoder, "ViT attention": (3 if awake else 1) * tower}
    parts["VAE"] = sum(encoder_flops(shape.vae, *size) for size in load.pictures)
    again = {"none": 0.0, "selective": once, "full": once + decoder + tower * awake}
    return Flops(parts, again[checkpointing])


_NO_INPUT_GRADIENT = (
    "vit_model.vision_model.embeddings.patch_embedding.",
    "vae2llm.",
    "time_embedder.mlp.0.",
)
"""Layers whose input is data: no gradient is computed for it."""


_TOWER = ("vit_model.", "connector.", "time_embedder.")
"""Layers before the decoder: no gradient goes back into them where none of them is trained."""


@dataclass(frozen=True)
class _Rows:
    """How many rows each linear layer multiplies."""

    load: Load

    def of(self, name: str) -> int:
        load = self.load
        patches = sum(load.vit_lengths) or 1  # a pack without pictures still runs one blank patch
        if name.startswith("language_model.lm_head."):
            return load.ce
        if name.startswith("language_model."):
            return load.latents if _GEN in name else load.slots - load.latents
        if name.startswith(("vit_model.", "connector.")):
            return patches
        return load.noised if name.startswith("llm2vae.") else load.latents


def encoder_flops(vae: VaeConfig, height: int, width: int) -> float:
    """The VAE encoder's forward pass on one picture: convolutions, and the attention at its bottom."""

    def conv(inside: int, outside: int, kernel: int, area: int) -> float:
        return 2.0 * inside * outside * kernel**2 * area

    def block(inside: int, outside: int, area: int) -> float:
        shortcut = conv(inside, outside, 1, area) if inside != outside else 0.0
        return conv(inside, outside, 3, area) + conv(outside, outside, 3, area) + shortcut

    area = height * width
    total, wide = conv(3, vae.ch, 3, area), vae.ch
    for level, factor in enumerate(vae.ch_mult):
        for _ in range(vae.num_res_blocks):
            total += block(wide, vae.ch * factor, area)
            wide = vae.ch * factor
        if level < len(vae.ch_mult) - 1:
            area //= 4
            total += conv(wide, wide, 3, area)
    total += 2 * block(wide, wide, area) + 4 * conv(wide, wide, 1, area) + 4.0 * area**2 * wide
    return total + conv(wide, 2 * vae.z_channels, 3, area)
