"""Bytes that activations take, read off the real code run on tensors without storage.

The model's own forward and backward pass (checkpointing applied by `parallelize`) runs on fake tensors of the true
sizes: a forward pass of BAGEL-7B over 41,520 tokens takes a second and no memory. Storages are counted as they are
made and freed. A model of one decoder layer and one ViT layer gives the peaks; another layer of either kind tells what
a layer keeps; depth multiplies.

Only the attention kernel of a GPU is a stand-in, which takes and keeps what fused kernels do: queries, keys, values,
the result and one float32 for each query and head. What `segments` gathers for its kernel is the real code's.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unify_agent.interleave.batch import PackedBatch
from unify_agent.model.attention import Attend
from unify_agent.model.config import BagelConfig, VaeConfig
from unify_agent.model.varlen import VarlenAttention

Build = Callable[[BagelConfig], nn.Module]
"""A model of a configuration on the meta device, in the compute dtype, with adapters and checkpointing applied."""


class Live(TorchDispatchMode):
    """Bytes of all storages made inside the block that still exist: `now`, and their `peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, Tensor):
                self._add(each)
        return out

    def ignore(self, tensor: Tensor) -> None:
        """What shares this tensor's storage is not counted."""
        self._known[tensor.untyped_storage()._cdata] = 0

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self._known.pop(key)


@dataclass(frozen=True)
class Activations:
    """Bytes on one rank for one pack."""

    kept: int
    """Held at the end of the forward pass for the backward pass, logits' gradients among them."""
    loss: int
    """More than that at the worst moment of the forward pass: the cross-entropy's chunk of logits."""
    block: int
    """More than that at the worst moment of the backward pass: a block's activations, computed again, and their
    gradients."""
    decoder: int = 0
    """Of `kept`, what each decoder layer adds."""
    vit: int = 0
    """Of `kept`, what each ViT layer adds."""


def activations(build: Build, shape: BagelConfig, batch: PackedBatch, attend: Attend | None) -> Activations:
    """Of a model of `shape` trained on `batch`; `attend` as `attention` chooses it."""
    one = _measured(build, shape, batch, attend, 1, 1)
    decoder = _measured(build, shape, batch, attend, 2, 1).kept - one.kept
    vit = _measured(build, shape, batch, attend, 1, 2).kept - one.kept
    more = decoder * (shape.llm.num_hidden_layers - 1) + vit * (shape.vit.layers_built - 1)
    return replace(one, kept=one.kept + more, decoder=decoder, vit=vit)


def _measured(
    build: Build, shape: BagelConfig, batch: PackedBatch, attend: Attend | None, decoder: int, vit: int
) -> Activations:
    small = replace(
        shape,
        llm=replace(shape.llm, num_hidden_layers=decoder),
        vit=replace(shape.vit, num_hidden_layers=vit + 1),
    )
    live, model = Live(), build(small)
    with fake():
        model = model.to_empty(device="cpu")
        for parameter in model.parameters():
            live.ignore(parameter)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(_drop)  # a rank's gradients are counted elsewhere
        latents = torch.empty(len(batch.latent_at), shape.latent_dim)
        with live:
            out = model(batch, latents, attend)
            kept, loss = live.now, live.peak
            live.peak = kept
            (out.ce + out.mse).backward()
    return Activations(kept, loss - kept, live.peak - kept)


def _drop(parameter: Tensor) -> None:
    parameter.grad = None


@dataclass(frozen=True)
class Encoding:
    """Bytes of the frozen VAE: its float32 `weights`, and the `worst` moment of encoding a pack's pictures."""

    weights: int
    worst: int


def encoding(vae: VaeConfig, batch: PackedBatch) -> Encoding:
    """What the VAE needs for `batch`."""
    from unify_agent.model.vae import FluxVae, encode_batch

    with torch.device("meta"):
        model = FluxVae(vae).eval().requires_grad_(False)
    live = Live()
    with fake(), torch.no_grad():
        model = model.to_empty(device="cpu")
        for parameter in model.parameters():
            live.ignore(parameter)
        with live:
            encode_batch(model, batch)
    return Encoding(sum(each.nbytes for each in model.parameters()), live.peak)


@contextmanager
def fake() -> Iterator[None]:
    """Tensors made inside have no storage; real ones that come in are treated as if they had none."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


@torch.library.custom_op("unify_agent::planned_attention", mutates_args=())
def planned_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """q [L, A, D], k and v [L, G, D] -> the result [L, A, D] and a float32 [L, A]; has shapes only."""
    raise NotImplementedError("attention of a plan computes nothing")


@torch.library.custom_op("unify_agent::planned_attention_backward", mutates_args=())
def planned_attention_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v; has shapes only."""
    raise NotImplementedError("attention of a plan computes nothing")


@planned_attention.register_fake
def _shapes(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[:2], dtype=torch.float32)


@planned_attention_backward.register_fake
def _shapes_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, _, _ = ctx.saved_tensors
    return planned_attention_backward(grad, q, k, v)


planned_attention.register_autograd(_backward, setup_context=_keep)


def attention(name: str, compute: torch.dtype, batch: PackedBatch) -> Attend | None:
    """The back end `name` as a GPU has it, with the stand-in. None: what runs everywhere (`segments` in float32)."""
    if name == "flex":
        return lambda layer, q, k, v: planned_attention(q, k, v)[0]
    if compute == torch.float32:
        return None
    return VarlenAttention(batch.spans, "cpu", kernel=lambda q, k, v, runs: planned_attention(q, k, v)[0])
