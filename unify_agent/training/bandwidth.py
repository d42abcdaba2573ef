"""How fast ranks sum a tensor, within shards and over replicas, against what the plan assumes of the machines."""

from __future__ import annotations

import os
import socket
import time

import torch
import torch.distributed as dist

from unify_agent.training.config import Config
from unify_agent.training.parallel import World
from unify_agent.training.planning.cards import card_of
from unify_agent.training.readiness import Report

BYTES = {"cuda": 256 * 2**20, "cpu": 2**20}
"""Of the tensor that is summed; on a GPU enough that latency does not count."""
ROUNDS = 5
FLOOR = 0.5
"""Share of the assumed bandwidth below which there is a warning."""


def bandwidth(config: Config, world: World) -> Report:
    """Sums over each axis of the mesh, all groups of it at once, as in a step. Nothing is compared without GPUs.

    The figure is the bus bandwidth, 2 (n - 1) / n x bytes / seconds: what each rank sends, whatever the number of them.
    """
    report = Report()
    if world.mesh is None:
        return report
    in_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cuda = world.device.type == "cuda"
    spread = 1
    for axis in ("shard", "replicate"):
        group = world.mesh.get_group(axis)
        ranks = dist.get_world_size(group)
        spread *= ranks
        if ranks == 1:
            continue
        speeds = world.gather((_speed(group, ranks, world.device), socket.gethostname()))
        slowest, host = min(speeds)
        report.facts.append(f"sums over {ranks} ranks ({axis}): {slowest:.1f} GB/s, slowest on {host}")
        link = card_of(config.planning.card).link if spread <= in_node else config.planning.network
        if cuda and slowest < FLOOR * link:
            key = "planning.card" if spread <= in_node else "planning.network"
            report.warnings.append(
                f"sums over {ranks} ranks ({axis}) reach {slowest:.1f} GB/s on {host}; {key} assumes {link:.0f}. "
                f"docs/cluster.md says what to look at"
            )
    return report


def _speed(group: dist.ProcessGroup, ranks: int, device: torch.device) -> float:
    """GB/s of all-reduce over `group`."""
    tensor = torch.zeros(BYTES[device.type] // 4, device=device)
    dist.all_reduce(tensor, group=group)  # connections are made
    _settle(device)
    began = time.perf_counter()
    for _ in range(ROUNDS):
        dist.all_reduce(tensor, group=group)
    _settle(device)
    seconds = (time.perf_counter() - began) / ROUNDS
    return 2 * (ranks - 1) / ranks * tensor.nbytes / seconds / 1e9


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
