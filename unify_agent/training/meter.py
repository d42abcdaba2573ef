"""How fast a run is and how much memory it takes, over all ranks.

    MFU = floating-point operations of the model's forward and backward passes, what is computed again excluded,
          over the seconds of the step (waiting for data included), ranks and peak of the card

Operations are those of `planning.flops`: matrix products, and attention by visible pairs.
"""

from __future__ import annotations

import os
import re
from typing import Any

import torch
from torch import nn

from unify_agent.datasets.loader import StepData
from unify_agent.model.config import BagelConfig
from unify_agent.training.parallel import World
from unify_agent.training.planning.cards import CARDS, Card
from unify_agent.training.planning.flops import flops
from unify_agent.training.planning.parameters import parameters_of
from unify_agent.training.planning.workload import Load

GIB = 2**30


class Meter:
    """`definition`: what its figures of speed mean, in a sentence."""

    def __init__(self, world: World, model: nn.Module, shape: BagelConfig) -> None:
        self.world, self.shape, self.parameters = world, shape, parameters_of(model)
        self.card = card_here(world.device)
        counted = (
            "operations of the model's forward and backward passes (attention by visible pairs, what is computed "
            "again not counted) in a step, for each rank and second of it, waiting for data included"
        )
        self.definition = f"{counted}."
        if self.card is not None:
            self.definition = f"{counted}, over the {self.card.tflops:.0f} TFLOP/s of a {self.card.name}."

    def read(self, data: StepData, tokens: int, seconds: float) -> dict[str, Any]:
        """What a step's row says of speed and memory; `tokens` are those of all ranks. A collective."""
        size, rank = self.world.size, self.world.rank
        own = [0.0] * (2 * size + 1)
        own[rank], own[size + rank] = data.wait, memory(self.world.device)
        own[-1] = sum(flops(self.shape, self.parameters, Load.of(pack), "none").total for pack in data.packs)
        total = self.world.sum(own)
        speed = total[-1] / seconds / size
        return {
            "seconds": round(seconds, 4),
            "loader_seconds": round(max(total[:size]), 4),
            "memory_gib": round(max(total[size:-1]) / GIB, 3),
            "tokens_per_second": round(tokens / seconds, 1),
            "tflops": round(speed / 1e12, 6),
            **({"mfu": round(speed / self.card.flops, 5)} if self.card is not None else {}),
        }


def card_here(device: torch.device) -> Card | None:
    """The card of a device; None for a CPU, or one whose figures are not known."""
    return card_named(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def card_named(name: str) -> Card | None:
    """The card that a driver's name means, say `NVIDIA H100 80GB HBM3`; only its speed is taken from it here."""
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    return next((card for key, card in CARDS.items() if key.partition("_")[0] in words), None)


def memory(device: torch.device) -> int:
    """Bytes: the most that torch has had on a GPU, or what this process holds of the machine's memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
