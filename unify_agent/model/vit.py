"""The SigLIP vision tower on packed patches (BAGEL, facts: decoder numerics).

Axes: P patches of all pictures, h hidden. Attention is full inside a picture and nowhere else; pictures with the same
number of patches share one call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unify_agent.model.config import VitConfig


class _Attention(nn.Module):
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(part, nn.Linear(config.hidden_size, config.hidden_size))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[P, h] -> q, k and v, each [P, h]."""
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)


def _attend(q: Tensor, k: Tensor, v: Tensor, heads: int, groups: Sequence[tuple[int, int]]) -> Tensor:
    """Full attention inside each picture, [P, h] each -> [P, h]."""
    out, at = [], 0
    for pictures, patches in groups:
        stop = at + pictures * patches
        a, b, c = (t[at:stop].view(pictures, patches, heads, -1).transpose(1, 2) for t in (q, k, v))
        out.append(F.scaled_dot_product_attention(a, b, c).transpose(1, 2).reshape(stop - at, -1))
        at = stop
    return torch.cat(out) if len(out) > 1 else out[0]


class _Mlp(nn.Module):
    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class _Layer(nn.Module):
    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.self_attn, self.mlp = _Attention(config), _Mlp(config)
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor, groups: Sequence[tuple[int, int]]) -> Tensor:
        return self.after(x, _attend(*self.before(x), self.self_attn.heads, groups))

    # What lies on either side of attention, each a function of tensors alone: these are compiled.

    def before(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.self_attn(self.layer_norm1(x))

    def after(self, x: Tensor, seen: Tensor) -> Tensor:
        x = x + self.self_attn.out_proj(seen)
        return x + self.mlp(self.layer_norm2(x))


class _Embeddings(nn.Module):
    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.patch_embedding = nn.Linear(config.patch_dim, config.hidden_size)
        self.position_embedding = nn.Embedding(config.side**2, config.hidden_size)

    def forward(self, patches: Tensor, position_ids: Tensor) -> Tensor:
        return self.patch_embedding(patches) + self.position_embedding(position_ids)


class _Encoder(nn.Module):
    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers_built))


class _VisionModel(nn.Module):
    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.embeddings, self.encoder = _Embeddings(config), _Encoder(config)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)


class Vit(nn.Module):
    """`vit_model` of a BAGEL checkpoint."""

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.config = config
        self.vision_model = _VisionModel(config)

    def forward(self, patches: Tensor, position_ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """patches [P, 3*p*p] (row, column, channel), position_ids [P], lengths: patches of each picture -> [P, h]."""
        parts = self.vision_model
        order, groups = _by_length(lengths)
        x = parts.embeddings(patches.to(parts.embeddings.patch_embedding.weight.dtype), position_ids)
        if order is not None:
            order = order.to(x.device)
            x = x[order]
        for layer in parts.encoder.layers:
            x = layer(x, groups)
        x = parts.post_layernorm(x)
        if order is not None:
            inverse = torch.empty_like(order)
            inverse[order] = torch.arange(len(order), device=order.device)
            x = x[inverse]
        return x


def _by_length(lengths: Sequence[int]) -> tuple[Tensor | None, list[tuple[int, int]]]:
    """Patch order that brings pictures of one length together (None: it already is so), and (pictures, patches)
    groups."""
    sizes = sorted(set(lengths))
    groups = [(list(lengths).count(size), size) for size in sizes]
    if list(lengths) == sorted(lengths):
        return None, groups
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    order = [
        i
        for size in sizes
        for n, length in enumerate(lengths)
        if length == size
        for i in range(starts[n], starts[n + 1])
    ]
    return torch.tensor(order), groups
