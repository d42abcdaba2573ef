"""Checkpointing, compilation and sharding of a model, applied in this order and nowhere else.

1. Checkpointing wraps each block's forward pass: `full` keeps the block's input and computes the rest again in the
   backward pass; `selective` also keeps what attention returned (at 41,520 tokens of BAGEL 0.3 GB a layer in bf16),
   so that only the linear layers are computed twice.
2. Compilation takes the two functions of a block that lie before and after its attention. The counts of und and gen
   tokens differ from pack to pack, so their sizes are dynamic; all blocks of one kind share what was compiled.
3. `fully_shard` makes a unit of each block, of the embedding and of the head; the rest is the root's. Master weights,
   their gradients' sums and the optimiser are float32 whatever the compute dtype. While a unit computes, the next one
   is gathered, in both directions.

Gradients are *summed* over ranks (divide factor 1): the loss is already divided by global denominators, so one
process, replicas and shards give the same step (unlike FSDP's default mean, whose divisor depends on the mesh).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from unify_agent.errors import UserError
from unify_agent.model.bagel import Bagel
from unify_agent.model.loading import Weights
from unify_agent.training import lora, parallel
from unify_agent.training.config import Config, ParallelConfig
from unify_agent.training.parallel import World

Model = TypeVar("Model", bound=nn.Module)


def place(model: Bagel, weights: Weights | None, world: World, config: Config) -> Bagel:
    """The model where it is trained: with adapters if it gets any, and `parallelize`d. Stored weights are read after
    that (it then has no storage before), so a rank never holds more than its shard of them."""
    settings = config.parallel
    home = "cpu" if settings.offload else world.device
    if weights is None:
        return parallelize(model.to(home), world, settings)
    if config.lora.rank:
        model = lora.adapt(model, config.lora)
    model = parallelize(model, world, settings).to_empty(device=home)
    weights.fill(lora.by_public_name(model), parallel.shard)
    if config.lora.rank:
        lora.initialise(model, config.seed)
    return model


def parallelize(model: Model, world: World, config: ParallelConfig) -> Model:
    """What `config` says, applied to a model in place. Raises UserError when this machine cannot do it."""
    if config.checkpointing != "none":
        for block in blocks(model):
            checkpoint_block(block, keep_attention=config.checkpointing == "selective")
    if config.compile:
        for block in blocks(model):
            compile_block(block)
    if world.mesh is not None and config.strategy == "fsdp":
        shard_model(model, world, config)
    return model


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The repeated layers: every entry of a ModuleList called `layers`, the ViT's first, as they are computed."""
    found = [
        list(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and name.rpartition(".")[2] == "layers"
    ]
    for layers in reversed(found):
        yield from layers


def checkpoint_block(block: nn.Module, keep_attention: bool) -> None:
    """The block's activations are computed again in the backward pass, attention excepted if `keep_attention`."""
    context = partial(create_selective_checkpoint_contexts, _policy) if keep_attention else None
    more: dict[str, Any] = {"context_fn": context} if context else {}
    forward = block.forward
    # Nothing in a block is random but dropout of adapters, whose generator state is then put back.
    block.forward = lambda *inputs: checkpoint(  # type: ignore[method-assign]
        forward, *inputs, use_reentrant=False, preserve_rng_state=_random(block), **more
    )


def _random(block: nn.Module) -> bool:
    return any(isinstance(module, nn.Dropout) and module.p > 0 for module in block.modules())


def _policy(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Kept: what attention kernels return, by whatever name (SDPA's, varlen's, a compiled FlexAttention)."""
    name = str(op)
    kernel = "attention" in name or "attn" in name or "inductor_compiled_code" in name
    return CheckpointPolicy.MUST_SAVE if kernel else CheckpointPolicy.PREFER_RECOMPUTE


COMPILED = ("before", "after")
"""The methods of a block that are compiled; what lies between them is its attention."""


_ANY_SIZE = import_module("torch.fx.experimental._config").patch(backed_size_oblivious=True, use_duck_shape=False)
"""What is compiled assumes nothing of its sizes. By default it would be compiled anew for two sizes that were equal the
first time, and on a CPU for each side of 4,096 terms that some sum over rows can be on."""


def compile_block(block: nn.Module, backend: str = "inductor") -> None:
    """torch.compile of a block's `COMPILED` methods, whatever the number of their rows."""
    for name in COMPILED:
        plain = getattr(block, name)
        setattr(block, name, _by_rows(plain, torch.compile(plain, dynamic=True, backend=backend)))


def _by_rows(plain: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps apart what torch would compile anew: sizes 0 and 1 (a pack without a picture, say) run as written, as does
    what is not trained, and a view is copied, since only some blocks get one."""

    def call(*inputs: Any) -> Any:
        rows = min(len(each) for each in inputs if isinstance(each, Tensor))
        if rows < 2 or not torch.is_grad_enabled():
            return plain(*inputs)
        with _ANY_SIZE:  # entered in every call: backward passes have threads of their own, settings are a thread's
            return compiled(
                *(each.clone() if isinstance(each, Tensor) and each._is_view() else each for each in inputs)
            )

    return call


def compilations(block: nn.Module) -> int:
    """How many times the kind of block that `block` is has been compiled in this process."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    return sum(len(_debug_get_cache_entry_list(getattr(type(block), name).__code__)) for name in COMPILED)


def shard_model(model: nn.Module, world: World, config: ParallelConfig) -> None:
    """`fully_shard` over the world's mesh, in place."""
    assert world.mesh is not None
    if config.offload and world.device.type != "cuda":
        raise UserError("parallel.offload=true keeps in host memory what a GPU would hold; there is no GPU here")
    settings: dict[str, Any] = {
        "mesh": world.mesh if world.mesh.shape[0] > 1 else world.mesh["shard"],
        # The model casts for itself: latents and rotary angles must stay in float32.
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if config.dtype == "bf16" else None,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        ),
        "offload_policy": CPUOffloadPolicy() if config.offload else OffloadPolicy(),
    }
    *units, head = _units(model)
    order = [fully_shard(unit, **settings) for unit in units]
    order.append(fully_shard(head, reshard_after_forward=False, **settings))  # it is wanted again at once
    fully_shard(model, **settings)
    _prefetch(order)
    for unit, following in pairwise(order):
        following.set_modules_to_backward_prefetch([unit])
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _units(model: nn.Module) -> list[nn.Module]:
    """What is sharded apart from the rest, in the order of the training forward pass."""
    embedding, head = (model.get_submodule(f"language_model.{name}") for name in ("model.embed_tokens", "lm_head"))
    return [embedding, *blocks(model), head]


def _prefetch(units: Sequence[FSDPModule]) -> None:
    for unit, following in pairwise(units):
        unit.set_modules_to_forward_prefetch([following])


@contextmanager
def callable_in_parts(model: nn.Module) -> Iterator[None]:
    """Inside, parts of a sharded model may be called without the whole, as generation does, by all ranks alike.

    What the root holds is gathered once, each unit by its own call, and no unit gathers the next one, which may not
    follow here: it would keep weights as they are now.
    """
    if not isinstance(model, FSDPModule):
        yield
        return
    units = [unit for unit in _units(model) if isinstance(unit, FSDPModule)]
    for unit in units:
        unit.set_modules_to_forward_prefetch([])
    model.unshard()
    try:
        yield
    finally:
        for unit in (model, *units):
            unit.reshard()
        _prefetch(units)
