"""The plan of a run: mesh, parameters, packs, memory, FLOPs, network, for a card, from its configuration alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import log

import torch
from torch import nn

from unify_agent.errors import UserError
from unify_agent.model.config import BagelConfig
from unify_agent.model.loading import DTYPES, on_meta
from unify_agent.training import lora, parallel
from unify_agent.training.config import Config, ParallelConfig
from unify_agent.training.parallelize import parallelize
from unify_agent.training.planning import probe
from unify_agent.training.planning.cards import Card, card_of
from unify_agent.training.planning.flops import Flops, flops
from unify_agent.training.planning.memory import Layout, Memory, Readings, memory
from unify_agent.training.planning.network import Network, network
from unify_agent.training.planning.parameters import Held, Parameter, held, parameters_of, saved
from unify_agent.training.planning.probe import Encoding
from unify_agent.training.planning.workload import Load, Workload, shape_of, workload


@dataclass(frozen=True)
class Plan:
    """All figures of one rank; the one that holds most where ranks differ."""

    config: Config
    shape: BagelConfig
    card: Card
    mesh: tuple[int, int]
    """(replicate, shard)."""
    work: Workload
    readings: Readings
    loads: tuple[Load, ...]
    parameters: tuple[Parameter, ...]
    held: Held
    memory: Memory

    @property
    def world(self) -> int:
        return self.mesh[0] * self.mesh[1]

    @property
    def accumulation(self) -> int:
        """Packs that a rank takes in a step."""
        return self.config.parallel.packs_per_step // self.world

    @property
    def tokens(self) -> float:
        """In a pack, on average, without padding."""
        return sum(load.tokens for load in self.loads) / len(self.loads)

    @property
    def samples(self) -> float:
        """In a pack, on average."""
        return sum(load.samples for load in self.loads) / len(self.loads)

    @cached_property
    def flops(self) -> Flops:
        """Of a pack, on average."""
        mode = self.config.parallel.checkpointing
        each = [flops(self.shape, self.parameters, load, mode) for load in self.loads]
        parts = {part: sum(one.parts[part] for one in each) / len(each) for part in each[0].parts}
        return Flops(parts, sum(one.recomputed for one in each) / len(each))

    @cached_property
    def network(self) -> Network:
        settings = self.config.parallel
        compute = compute_type(settings).itemsize
        return network(
            self.parameters, self.mesh, self.accumulation, compute, self.card, self.config.planning, settings.offload
        )

    def seconds(self, mfu: float) -> float:
        """A step's, when a rank computes at this share of its card's FLOP/s."""
        return self.accumulation * self.flops.total / (mfu * self.card.flops)

    def mfu(self, seconds: float) -> float:
        """The share of the card's FLOP/s that a step of this length is."""
        return self.accumulation * self.flops.total / (seconds * self.card.flops)

    @property
    def host(self) -> int:
        """Bytes of host memory that the ranks of a node hold."""
        return sum(self.memory.host.values()) * min(self.world, self.config.planning.node)

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.card.gib * 2**30


def plan(config: Config) -> Plan:
    """Raises UserError for what a run would refuse too: a mesh that does not make the world, packs that do not divide
    among it, an unknown architecture; also for a card that is not known."""
    if config.task != "sft":
        raise UserError(f"task={config.task}: a plan is made for task=sft")
    if config.parallel.strategy != "fsdp":
        raise UserError(f"parallel.strategy={config.parallel.strategy}: a plan is made for fsdp")
    card, mesh = card_of(config.planning.card), mesh_of(config)
    shape = shape_of(config)
    work = workload(config, shape, mesh[0] * mesh[1])
    return planned(config, shape, card, mesh, work, read(config, shape, work))


def read(config: Config, shape: BagelConfig, work: Workload, encoding: Encoding | None = None) -> Readings:
    """What the code says of the largest pack; `encoding` when it is known."""
    attend = probe.attention(config.model.attention, compute_type(config.parallel), work.largest)
    kept = probe.activations(partial(computing, config), shape, work.largest, attend)
    return Readings(kept, encoding or probe.encoding(shape.vae, work.largest))


def planned(
    config: Config, shape: BagelConfig, card: Card, mesh: tuple[int, int], work: Workload, readings: Readings
) -> Plan:
    """The plan for packs, and readings of them, that are there already."""
    parameters = tuple(parameters_of(model_of(config, shape)))
    counted = held(parameters, mesh[1])
    settings, world = config.parallel, mesh[0] * mesh[1]
    layout = Layout(
        sharded=settings.offload or settings.dtype != "fp32" or world > 1,
        compute=compute_type(settings).itemsize,
        offload=settings.offload,
        partial=mesh[0] > 1 and settings.packs_per_step > world,
        copied=saved(parameters, mesh[1], config.lora.rank > 0) if config.checkpoint.asynchronous else 0,
    )
    needed = memory(shape.llm, parameters, counted, layout, readings, work.largest, config.model.attention)
    loads = tuple(Load.of(batch) for batch in work.typical)
    return Plan(config, shape, card, mesh, work, readings, loads, parameters, counted, needed)


def model_of(config: Config, shape: BagelConfig) -> nn.Module:
    """The model that is trained, adapters included, as it is stored, on the meta device."""
    model = on_meta(shape)
    return lora.adapt(model, config.lora) if config.lora.rank else model


def computing(config: Config, shape: BagelConfig) -> nn.Module:
    """The same in the type that it computes in, checkpointing applied."""
    model = model_of(config, shape).to(compute_type(config.parallel))
    alone = parallel.World(0, 1, torch.device("cpu"), None)
    return parallelize(model, alone, replace(config.parallel, compile=False))


def compute_type(settings: ParallelConfig) -> torch.dtype:
    return DTYPES[settings.dtype]


def mesh_of(config: Config) -> tuple[int, int]:
    """(replicate, shard) for the ranks that are planned for. Raises UserError with the nearest that makes them."""
    settings, world = config.parallel, config.planning.world
    if world is None:
        known = [each for each in (settings.replicate, settings.shard) if each is not None]
        world = known[0] * known[1] if len(known) == 2 else int(os.environ.get("WORLD_SIZE", "0")) or max(known or [1])
    dealt = f"parallel.packs_per_step={-(-settings.packs_per_step // world) * world}"
    even = settings.packs_per_step % world == 0
    try:
        mesh = parallel.mesh_shape(settings, world)
    except UserError as error:
        more = "" if even else f" {dealt}"
        raise UserError(f"{error}; the nearest mesh is {_nearest_mesh(settings, world)}{more}") from None
    if not even:
        raise UserError(
            f"parallel.packs_per_step={settings.packs_per_step} is no multiple of {world} ranks; the nearest that is: "
            f"{dealt}"
        )
    return mesh


def _nearest_mesh(settings: ParallelConfig, world: int) -> str:
    wanted = settings.shard or world // (settings.replicate or 1) or 1
    fitting: Sequence[int] = [number for number in range(1, world + 1) if world % number == 0]
    shard = min(fitting, key=lambda number: abs(log(number / max(1, wanted))))
    return f"parallel.replicate={world // shard} parallel.shard={shard}"
