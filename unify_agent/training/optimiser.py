"""AdamW, its learning rate as a pure function of the step, and its state as named tensors for checkpoints."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from unify_agent.training.config import OptimConfig


def learning_rate(config: OptimConfig, step: int, steps: int) -> float:
    """Rate of step `step` (from 0) of `steps`.

    Linear from 0 over `warmup_steps` (the very first step has rate 0, as in BAGEL), then constant, or a cosine
    that reaches `min_lr` at the last step.
    """
    if step < config.warmup_steps:
        return config.lr * step / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    span = max(1, steps - 1 - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / span)
    return config.min_lr + (config.lr - config.min_lr) * 0.5 * (1 + math.cos(math.pi * progress))


def build(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over all trained parameters, its state made at once so that a checkpoint can be read into it."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    first, second = config.betas
    optimiser = torch.optim.AdamW(
        parameters,
        lr=config.lr,
        betas=(first, second),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )
    for p in parameters:
        device = p.device
        optimiser.state[p] = {
            "step": torch.zeros((), dtype=torch.float32, device=device),
            "exp_avg": torch.zeros_like(p),
            "exp_avg_sq": torch.zeros_like(p),
        }
    return optimiser


def state(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """`name/exp_avg` and so on -> the optimiser's own tensors: loading into them restores it."""
    return {
        f"{name}/{key}": tensor
        for name, p in model.named_parameters()
        if p.requires_grad
        for key, tensor in optimiser.state[p].items()
    }
