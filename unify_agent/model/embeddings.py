"""Positions and time: fixed 2D tables, rotary angles, the timestep embedder (BAGEL, facts: decoder numerics)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def sincos_table(side: int, dim: int) -> Tensor:
    """float32 [side * side, dim], row `r * side + c`: the first half encodes the column, the second the row; in each,
    sines then cosines of position * 10000^(-j / (dim/4)). Computed in float64."""
    frequency = 10000.0 ** (-torch.arange(dim // 4, dtype=torch.float64) / (dim / 4))
    angle = torch.arange(side, dtype=torch.float64)[:, None] * frequency
    line = torch.cat([angle.sin(), angle.cos()], dim=1)  # [side, dim/2]
    columns = line[None, :, :].expand(side, side, -1)
    rows = line[:, None, :].expand(side, side, -1)
    return torch.cat([columns, rows], dim=-1).reshape(side * side, dim).float()


class PositionTable(nn.Module):
    """A frozen 2D table, kept in the state dict as BAGEL does."""

    def __init__(self, side: int, dim: int) -> None:
        super().__init__()
        self.side = side
        self.pos_embed = nn.Parameter(torch.empty(side * side, dim), requires_grad=False)

    def fill(self) -> None:
        """Writes the sines and cosines."""
        self.pos_embed.data.copy_(sincos_table(self.side, self.pos_embed.shape[1]))

    def forward(self, ids: Tensor) -> Tensor:
        return self.pos_embed[ids]


def timestep_sinusoid(t: Tensor, dim: int = 256) -> Tensor:
    """t [N] in [0, 1], used as it is -> float32 [N, dim]: cosines, then sines."""
    half = dim // 2
    frequency = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32, device=t.device) / half)
    angle = t[:, None].float() * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=-1)


class TimestepEmbedder(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(256, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t: Tensor) -> Tensor:
        """t [N] -> [N, dim]"""
        first = self.mlp[0]
        assert isinstance(first, nn.Linear)
        return self.mlp(timestep_sinusoid(t).to(first.weight.dtype))


def rope_tables(ids: Tensor, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Position ids [L] -> cosine and sine, float32 [L, dim], the half block repeated twice."""
    # the reference's order of operations: at position 1,000 another rounding of a frequency is seen in the sine
    frequency = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device=ids.device) / dim)
    angle = ids[:, None].float() * frequency
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [L, heads, D], tables [L, D] in x's dtype: x * cos + (-second half, first half) * sin."""
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]
