"""Exponential moving average of the weights in float32, sharded exactly as the parameters are.

ema <- d * ema + (1 - d) * w after every update (BAGEL, facts: training set-up). With `warmup` the decay of update n
is min(d, (1 + n) / (10 + n)), without which a run much shorter than 1 / (1 - d) steps exports its start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unify_agent.training.config import EmaConfig
from unify_agent.training.parallel import held, local


class Ema:
    """`tensors`: name -> float32 average of each trained parameter (a DTensor where the parameter is one)."""

    def __init__(self, model: nn.Module, config: EmaConfig) -> None:
        self.config = config
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.tensors: dict[str, Tensor] = {name: held(p).float().clone() for name, p in self.parameters.items()}

    def decay(self, update: int) -> float:
        """Decay of update number `update`, counted from 0."""
        limit = self.config.decay
        return min(limit, (1 + update) / (10 + update)) if self.config.warmup else limit

    @torch.no_grad()
    def step(self, update: int) -> None:
        averages = [local(tensor) for tensor in self.tensors.values()]
        weights = [local(held(p)).float() for p in self.parameters.values()]
        torch._foreach_lerp_(averages, weights, 1.0 - self.decay(update))

    @contextmanager
    @torch.no_grad()
    def applied(self) -> Iterator[None]:
        """Inside the block the model holds the averages; afterwards its own weights again."""
        kept = {name: local(p.detach()).clone() for name, p in self.parameters.items()}
        for name, p in self.parameters.items():
            local(p.detach()).copy_(local(self.tensors[name]))
        try:
            yield
        finally:
            for name, p in self.parameters.items():
                local(p.detach()).copy_(kept[name])
