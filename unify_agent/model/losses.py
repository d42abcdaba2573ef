"""The two losses as sums: what they are divided by is the trainer's, which knows all ranks and packs.

Axes: C trained text positions, V vocabulary, Q latent patches, M trained latent patches.
"""

from __future__ import annotations

import torch
from torch import Tensor

CE_CHUNKS = (256, 2048)
"""Least and most positions whose logits exist at one time; between them as many as the hidden size, so that the logits
are no larger than the head's gradient, which there is in any case."""


def timesteps(logits: Tensor, shift: float) -> Tensor:
    """z [Q] -> t = s*u / (1 + (s-1)*u), u = sigmoid(z); -inf gives 0, a clean latent. float32."""
    u = torch.sigmoid(logits.float())
    return shift * u / (1 + (shift - 1) * u)


def noised(clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
    """x_t = (1 - t) * x0 + t * noise, [Q, 64]; the velocity from data to noise is noise - x0."""
    return (1 - t[:, None]) * clean + t[:, None] * noise


class _WeightedCrossEntropy(torch.autograd.Function):
    """Sum of weighted cross entropies; gradients are computed chunk by chunk in the forward pass, so that the full
    logits never exist and the head's product is not computed a second time."""

    @staticmethod
    def forward(ctx, hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, dtype: torch.dtype, chunk: int):
        tokens = torch.empty(len(labels), dtype=torch.float32, device=hidden.device)
        wanted = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        if wanted:
            grad_hidden = torch.empty_like(hidden)
            grad_head = torch.zeros(head.shape, dtype=torch.float32, device=head.device)
        matrix = head.to(dtype)
        for start in range(0, len(labels), chunk):
            rows = slice(start, start + chunk)
            x = hidden[rows].to(dtype)
            logits = (x @ matrix.T).float()
            label = labels[rows, None]
            own, most = logits.gather(1, label), logits.amax(-1, keepdim=True)
            mass = logits.sub_(most).exp_()
            total = mass.sum(-1, keepdim=True)
            tokens[rows] = (total.log() + most - own)[:, 0]
            if wanted:
                weight = weights[rows, None]
                delta = mass.mul_(weight / total).scatter_add_(1, label, -weight).to(dtype)
                grad_hidden[rows] = delta @ matrix
                if dtype == torch.float32:
                    grad_head.addmm_(delta.T, x)
                else:
                    grad_head += delta.T @ x
            del logits, mass  # before the next ones
        ctx.grads = (grad_hidden, grad_head.to(head.dtype)) if wanted else None
        ctx.mark_non_differentiable(tokens)
        return (tokens * weights).sum(), tokens

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor):
        if ctx.grads is None:
            raise RuntimeError("the loss has one backward pass: its gradients are scaled in place and given away")
        (grad_hidden, grad_head), ctx.grads = ctx.grads, None
        return grad_hidden.mul_(grad), grad_head.mul_(grad), None, None, None, None


def weighted_cross_entropy(
    hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """hidden [C, H], head [V, H], labels and weights [C] -> (sum of w_i * ce_i, ce [C] without gradient), both float32.

    The head's product runs in the autocast dtype if there is one, else in the head's; everything after it in float32.
    An empty C gives 0 with zero gradients.
    """
    least, most = CE_CHUNKS
    chunk = chunk or min(most, max(least, hidden.shape[1]))
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else head.dtype
    with torch.autocast(device, enabled=False):
        return _WeightedCrossEntropy.apply(hidden, head, labels, weights.float(), dtype, chunk)


def flow_matching(velocity: Tensor, clean: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted velocity, clean latents and noise, each [M, 64] -> (sum over tokens of the mean squared error, it per
    token [M])."""
    tokens = (velocity.float() - (noise - clean).float()).square().mean(-1)
    return tokens.sum(), tokens.detach()
