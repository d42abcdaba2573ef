"""What turns the losses of a step's packs into changed weights: FSDP2 or a single process here, DeepSpeed elsewhere."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from unify_agent.training import parallel
from unify_agent.training.config import OptimConfig


class Engine(Protocol):
    """One step is `begin`, then for each pack `backward`, then `update`."""

    def begin(self) -> None:
        """Gradients are zero from here on."""

    def backward(self, loss: Tensor, last: bool) -> None:
        """Adds the gradients of one pack's loss; `last`: no other pack of this step follows."""

    def update(self, rate: float) -> float:
        """Clips the gradients and changes the weights -> the norm before clipping, the same on all ranks."""


class TorchEngine:
    """A torch optimiser over a model that is sharded, or not."""

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer, config: OptimConfig) -> None:
        from torch.distributed.fsdp import FSDPModule

        self.optimiser, self.config = optimiser, config
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.sharded = model if isinstance(model, FSDPModule) else None
        self.device = self.parameters[0].device

    def begin(self) -> None:
        """At zero, not at None: a parameter that no pack of a step reaches is treated alike everywhere."""
        for p in self.parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad.zero_()

    def backward(self, loss: Tensor, last: bool) -> None:
        """Shards are reduced for every pack, sums over replicas once a step."""
        if self.sharded is not None:
            self.sharded.set_requires_all_reduce(last)
        loss.backward()

    def update(self, rate: float) -> float:
        """A norm that is not finite changes nothing."""
        norm = float(parallel.full(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip)))
        if math.isfinite(norm):
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            with parallel.one_thread(self.device):
                self.optimiser.step()
        return norm
