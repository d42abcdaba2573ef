"""One training step of rank 0 on one pack, executed without storage, without GPU and without the other ranks.

Torch's fake process group stands for the others and its fake tensors for all memory; the model, its checkpointing and
sharding, the engine's backward pass, clipping, AdamW and the moving average are those of a run. Torch's own tracker
follows every storage, and every collective is counted as it is issued: two checks of the plan that share nothing with
it but the code that trains. Only the attention kernel is a stand-in (`probe.attention`), and blocks are not compiled.

Price: BAGEL-7B over 64 ranks about a minute and 0.5 GB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker, _FSDPModMemStats
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unify_agent.errors import UserError
from unify_agent.training import optimiser, parallel
from unify_agent.training.ema import Ema
from unify_agent.training.engine import TorchEngine
from unify_agent.training.parallelize import parallelize
from unify_agent.training.planning import probe
from unify_agent.training.planning.memory import GIB
from unify_agent.training.planning.plan import Plan, compute_type, model_of

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Executed:
    """What a step did. `peak`: bytes at its worst moment, in all and by the tracker's own kinds; `collectives`: how
    many of each there were; `sent`: bytes that rank 0 sends for each, in rings."""

    peak: int
    kinds: dict[str, int]
    collectives: dict[str, int]
    sent: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        return {
            "peak_gib": self.peak / GIB,
            "kinds_gib": {kind: size / GIB for kind, size in self.kinds.items()},
            "collectives": self.collectives,
            "sent_gib": {name: size / GIB for name, size in self.sent.items()},
        }

    def lines(self, plan: Plan) -> Iterator[str]:
        expected = comparable(plan)
        yield ""
        yield (
            f"executed without storage: peak {self.peak / GIB:.2f} GiB, planned {expected / GIB:.2f} "
            f"({expected / self.peak - 1:+.1%})"
        )
        yield "  " + ", ".join(f"{kind} {size / GIB:.2f}" for kind, size in self.kinds.items() if size > GIB / 100)
        yield "  " + ", ".join(
            f"{number} x {name} ({self.sent[name] / GIB:.2f} GiB)" for name, number in self.collectives.items()
        )


def comparable(plan: Plan) -> int:
    """Planned bytes of what is executed: one pack, no VAE, masks, pack or allowance, and no moment of encoding."""
    left_out = ("vae", "masks", "batch", "allowance", "gradients")
    return plan.held.gradients + max(
        sum(size for part, size in plan.memory.moments[moment].items() if part not in left_out)
        for moment in ("loss", "backward")
    )


class Collectives(TorchDispatchMode):
    """Counts what is asked of the process group inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.count: dict[str, int] = {}
        self.sent: dict[str, float] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self._add(func.__name__.partition(".")[0].strip("_"), args)
        return func(*args, **(kwargs or {}))

    def _add(self, name: str, args: Any) -> None:
        group = next((each for each in args if isinstance(each, torch.ScriptObject)), None)
        ranks = dist.ProcessGroup.unbox(group).size() if group is not None else 1
        largest = max((each.nbytes for each in tree_leaves(args) if isinstance(each, Tensor)), default=0)
        twice = 2 if name.startswith("allreduce") else 1
        self.count[name] = self.count.get(name, 0) + 1
        self.sent[name] = self.sent.get(name, 0.0) + twice * largest * (ranks - 1) / ranks


def dry_run(plan: Plan) -> Executed:
    """Executes a step of `plan` on the pack that its memory is planned for. Raises UserError where there is nothing
    sharded to execute, and inside a process group."""
    config = plan.config
    settings = replace(config.parallel, compile=False, offload=False)
    if config.parallel.strategy != "fsdp" or config.parallel.offload:
        raise UserError("planning.dry_run executes parallel.strategy=fsdp without offload; plan without it")
    if plan.world == 1 and config.parallel.dtype == "fp32":
        raise UserError("planning.dry_run executes what is sharded; one rank in fp32 is not")
    if dist.is_initialized():
        raise UserError("planning.dry_run stands for all ranks itself: start it without torchrun")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=plan.world)
    try:
        mesh = init_device_mesh("cpu", plan.mesh, mesh_dim_names=("replicate", "shard"))
        world = parallel.World(0, plan.world, CPU, mesh)
        model = model_of(config, plan.shape)
        with probe.fake():
            model = parallelize(model, world, settings).to_empty(device="cpu")
            return _step(plan, model)
    finally:
        dist.destroy_process_group()


def _step(plan: Plan, model: nn.Module) -> Executed:
    """What `Stepper.step` does to weights, without its metrics (they read numbers, and there are none)."""
    config, batch = plan.config, plan.work.largest
    adam, ema = optimiser.build(model, config.optim), Ema(model, config.ema)
    engine = TorchEngine(model, adam, config.optim)
    engine.begin()
    latents = torch.empty(len(batch.latent_at), plan.shape.latent_dim)
    attend = probe.attention(config.model.attention, compute_type(config.parallel), batch)
    tracker, collectives = FSDPMemTracker(model, adam), Collectives()
    tracker.track_inputs(tuple(ema.tensors.values()))
    # The head is called as `cross_entropy`, past the hook that would make its entry.
    tracker.memory_tracking[model.get_submodule("language_model.lm_head")] = _FSDPModMemStats("lm_head")
    with tracker, collectives:
        out = model(batch, latents, attend)
        engine.backward(out.ce + out.mse, last=True)
        del out
        # Before the optimiser, whose DTensors have the whole tensors' shapes worked out, which the tracker would count.
        snapshot = tracker.get_tracker_snapshot("peak")[CPU]
        parallel.full(torch.nn.utils.clip_grad_norm_(engine.parameters, config.optim.clip))
        adam.step()
        ema.step(0)
    kinds = {str(kind.value): size for kind, size in snapshot.items() if isinstance(kind, Enum)}
    return Executed(snapshot["Total"], kinds, collectives.count, collectives.sent)
