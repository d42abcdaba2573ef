"""How fast a run is and how much memory it takes, over all ranks.

    MFU = floating-point operations of the model's forward and backward passes, what is computed again excluded,
          over the seconds of the step (waiting for data included), ranks and peak of the card

Operations are those of `planning.flops`: matrix products, and attention by visible pairs.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from unify_agent.datasets.loader import StepData
from unify_agent.model.config import BagelConfig
from unify_agent.training.parallel import World

GIB = 2**30


class Meter:
    """`definition`: what its figures mean, in a sentence."""

    def __init__(self, world: World, shape: BagelConfig) -> None:
        self.world, self.shape = world, shape
        self.definition = ""

    def read(self, data: StepData, tokens: int, seconds: float) -> dict[str, Any]:
        """What a step's row says of speed and memory; `tokens` are those of all ranks. A collective."""
        size, rank = self.world.size, self.world.rank
        own = [0.0] * (2 * size)
        own[rank], own[size + rank] = data.wait, memory(self.world.device)
        total = self.world.sum(own)
        return {
            "seconds": round(seconds, 4),
            "loader_seconds": round(max(total[:size]), 4),
            "memory_gib": round(max(total[size:]) / GIB, 3),
            "tokens_per_second": round(tokens / seconds, 1),
            "tflops": 0.0,
        }


def memory(device: torch.device) -> int:
    """Bytes: the most that torch has had on a GPU, or what this process holds of the machine's memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
