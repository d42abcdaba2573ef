"""The Mixture-of-Transformers decoder: two sets of weights, one attention (BAGEL, facts: decoder numerics).

Axes: L tokens, H hidden, A query heads, G kv heads, D head width. Tokens of the `und` expert (text, markers, ViT
patches) use the plain weights, those of the `gen` expert (VAE latents) the ones named `_moe_gen`. All layers keep the
two kinds in two tensors; only attention sees the tokens in their own order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unify_agent.model.attention import Attend
from unify_agent.model.config import LlmConfig
from unify_agent.model.embeddings import apply_rope, rope_tables


class RmsNorm(nn.Module):
    """x / rms(x) in float32, back to x's dtype, and only then times the weight. What is not trained goes torch's own
    way, with fewer calls: in decoding they are most of the time."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return self.weight * _Normalise.apply(x, self.eps)
        return self.weight * F.rms_norm(x, x.shape[-1:], eps=self.eps)


class _Normalise(torch.autograd.Function):
    """x / rms(x), computed in float32; keeps its result alone for the backward pass and halves the number of
    operations."""

    @staticmethod
    def forward(ctx, x: Tensor, eps: float) -> Tensor:
        wide = x.float()
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        out = wide * inverse
        ctx.save_for_backward(out, inverse)
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        out, inverse = ctx.saved_tensors
        wide = grad.float()
        along = torch.linalg.vecdot(wide, out).div_(out.shape[-1])[..., None]
        return torch.addcmul(wide, out, along, value=-1).mul_(inverse).to(grad.dtype), None


class _Permute(torch.autograd.Function):
    """Rows in another order; both ways a gather, which is much cheaper than the scatter of a plain index's backward."""

    @staticmethod
    def forward(ctx, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.inverse = inverse
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.index_select(0, ctx.inverse), None, None


class Routing:
    """The order of a pack's tokens by expert: first all `und` rows, then all `gen` rows.

    `alone`: there are `und` rows only and nothing is trained, so rows keep their order and the other expert is left
    out (in training it computes on no rows, for the sake of its gradients).
    """

    def __init__(self, und: Tensor, gen: Tensor) -> None:
        self.alone = not len(gen) and not torch.is_grad_enabled()
        if self.alone:
            return
        self.sorted = torch.cat([und, gen])
        self.inverse = torch.empty_like(self.sorted)
        self.inverse[self.sorted] = torch.arange(len(self.sorted), device=und.device)

    def split(self, x: Tensor, und_rows: int) -> tuple[Tensor, Tensor]:
        """[L, ...] in the pack's order -> rows of `und`, rows of `gen`."""
        if self.alone:
            return x, x[:0]
        x = _Permute.apply(x, self.sorted, self.inverse)
        und, gen = x.split((und_rows, len(x) - und_rows))  # compiled for any sizes, which slices are not
        return und, gen

    def join(self, und: Tensor, gen: Tensor) -> Tensor:
        """The inverse of `split`."""
        if self.alone:
            return und
        return _Permute.apply(torch.cat([und, gen]), self.inverse, self.sorted)


class Mlp(nn.Module):
    def __init__(self, config: LlmConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class SelfAttention(nn.Module):
    """Each of these exists a second time, for the `gen` expert, with `_moe_gen` after its name."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear
    o_proj_moe_gen: nn.Linear
    q_norm: RmsNorm
    k_norm: RmsNorm

    def __init__(self, config: LlmConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        for suffix in ("", "_moe_gen"):
            wide = {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}
            for part, heads in wide.items():
                self.add_module(f"{part}_proj{suffix}", nn.Linear(config.hidden_size, heads * self.width))
            self.add_module(f"o_proj{suffix}", nn.Linear(self.heads * self.width, config.hidden_size, bias=False))
            self.add_module(f"q_norm{suffix}", RmsNorm(self.width, config.rms_norm_eps))
            self.add_module(f"k_norm{suffix}", RmsNorm(self.width, config.rms_norm_eps))

    def _qkv(self, x: Tensor, suffix: str) -> tuple[Tensor, Tensor, Tensor]:
        part: dict[str, Any] = self._modules
        q = part["q_proj" + suffix](x).unflatten(-1, (self.heads, self.width))
        k = part["k_proj" + suffix](x).unflatten(-1, (self.kv_heads, self.width))
        v = part["v_proj" + suffix](x).unflatten(-1, (self.kv_heads, self.width))
        return part["q_norm" + suffix](q), part["k_norm" + suffix](k), v

    def project(
        self, und: Tensor, gen: Tensor, routing: Routing, rope: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """und [U, H] and gen [L - U, H] -> q [L, A, D], k and v [L, G, D] in the pack's order."""
        if routing.alone:
            q, k, v = self._qkv(und, "")
        else:
            both = zip(self._qkv(und, ""), self._qkv(gen, "_moe_gen"), strict=True)
            q, k, v = (routing.join(a, b) for a, b in both)
        cos, sin = rope
        q = apply_rope(q, cos.to(q.dtype), sin.to(q.dtype)).to(v.dtype)
        k = apply_rope(k, cos.to(k.dtype), sin.to(k.dtype)).to(v.dtype)
        return q, k, v


class Layer(nn.Module):
    input_layernorm: RmsNorm
    input_layernorm_moe_gen: RmsNorm
    post_attention_layernorm: RmsNorm
    post_attention_layernorm_moe_gen: RmsNorm

    def __init__(self, config: LlmConfig) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config)
        self.mlp, self.mlp_moe_gen = Mlp(config), Mlp(config)
        for suffix in ("", "_moe_gen"):
            self.add_module("input_layernorm" + suffix, RmsNorm(config.hidden_size, config.rms_norm_eps))
            self.add_module("post_attention_layernorm" + suffix, RmsNorm(config.hidden_size, config.rms_norm_eps))

    def forward(
        self, layer: int, und: Tensor, gen: Tensor, routing: Routing, rope: tuple[Tensor, Tensor], attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """und [U, H] and gen [L - U, H] -> the same after one layer."""
        return self.after(und, gen, attend(layer, *self.before(und, gen, routing, rope)), routing)

    # What lies on either side of attention, each a function of tensors alone: these are compiled.

    def before(
        self, und: Tensor, gen: Tensor, routing: Routing, rope: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        und = self.input_layernorm(und)
        return self.self_attn.project(und, gen if routing.alone else self.input_layernorm_moe_gen(gen), routing, rope)

    def after(self, und: Tensor, gen: Tensor, seen: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
        """`seen` [L, A, D]: what attention returned."""
        seen_und, seen_gen = routing.split(seen.flatten(1), len(und))
        und = und + self.self_attn.o_proj(seen_und)
        und = und + self.mlp(self.post_attention_layernorm(und))
        if routing.alone:
            return und, gen
        gen = gen + self.self_attn.o_proj_moe_gen(seen_gen)
        return und, gen + self.mlp_moe_gen(self.post_attention_layernorm_moe_gen(gen))


class Decoder(nn.Module):
    """`language_model.model` of a BAGEL checkpoint."""

    def __init__(self, config: LlmConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.norm_moe_gen = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden: Tensor, und: Tensor, gen: Tensor, rope_ids: Tensor, attend: Attend) -> Tensor:
        """All layers and the final norms.

        hidden [L, H]; `und` and `gen` int64 rows of each expert, together every row once, in any order, either may be
        empty; rope_ids [L]; `attend` is called once a layer -> [L, H], `und` rows after `norm`, `gen` rows after
        `norm_moe_gen`.
        """
        routing = Routing(und, gen)
        rope = rope_tables(rope_ids, self.config.head_dim, self.config.rope_theta)
        a, b = routing.split(hidden, len(und))
        for number, layer in enumerate(self.layers):
            a, b = layer(number, a, b, routing, rope, attend)
        return self.norm(a) if routing.alone else routing.join(self.norm(a), self.norm_moe_gen(b))
