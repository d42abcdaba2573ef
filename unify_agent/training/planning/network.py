"""Bytes that one rank sends in a step, and how long they take when nothing hides them.

Over n ranks a ring sends (n - 1) / n of a unit's bytes to gather it or to scatter its gradient, twice that to sum over
replicas. FSDP gathers a block in the forward pass and again in the backward pass, for every pack; the head and what
belongs to the root stay. Gradients travel in float32; sums over replicas are made once a step (`engine.TorchEngine`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unify_agent.training.config import PlanningConfig
from unify_agent.training.planning.cards import Card
from unify_agent.training.planning.memory import units
from unify_agent.training.planning.parameters import Parameter


@dataclass(frozen=True)
class Network:
    """Bytes sent by one rank per step, and GB/s of the links that they take. `host`: what offloading moves between
    card and host memory, weights in twice for every pack and gradients out once."""

    gathered: float
    scattered: float
    summed: float
    host: float
    shard_link: float
    replica_link: float

    @property
    def total(self) -> float:
        return self.gathered + self.scattered + self.summed

    @property
    def seconds(self) -> float:
        return (self.gathered + self.scattered) / self.shard_link / 1e9 + self.summed / self.replica_link / 1e9


def network(
    parameters: Sequence[Parameter],
    mesh: tuple[int, int],
    accumulation: int,
    compute: int,
    card: Card,
    planning: PlanningConfig,
    offload: bool,
) -> Network:
    """`compute`: bytes of a number while computing."""
    replicate, shard = mesh
    sizes = units(parameters)
    trained = sum(each.numel for each in parameters if each.trained)
    twice = sum(size for name, size in sizes.items() if name not in ("head", "root"))
    ring = (shard - 1) / shard
    moved = sum(each.numel * each.bytes_each * (2 + each.trained) for each in parameters) / shard
    return Network(
        gathered=accumulation * ring * compute * (sum(sizes.values()) + twice),
        scattered=accumulation * ring * 4 * trained,
        summed=2 * (replicate - 1) / replicate * 4 * trained / shard,
        host=accumulation * moved * offload,
        shard_link=card.link if shard <= planning.node else planning.network,
        replica_link=card.link if replicate * shard <= planning.node else planning.network,
    )
