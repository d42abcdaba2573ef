"""Fresh weights: BAGEL's start where it says something, and one circuit that a small model would be long in finding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unify_agent.model.bagel import Bagel
from unify_agent.model.config import LlmConfig
from unify_agent.model.decoder import Decoder, Layer
from unify_agent.model.embeddings import PositionTable, apply_rope, rope_tables


@torch.no_grad()
def initialise(model: Bagel, seed: int) -> Bagel:
    """Fresh weights in place: normal with deviation 1/sqrt(inputs) (0.017 at BAGEL's width, where it uses 0.02), the
    layers' outputs smaller by sqrt(2 * layers), unit norms, zero biases; `gen` copies `und`, `llm2vae` is zero
    (BAGEL's start)."""
    draw = torch.Generator().manual_seed(seed)
    depth = {"language_model": model.config.llm.num_hidden_layers, "vit_model": model.config.vit.layers_built}
    for name, module in model.named_modules():
        if "_moe_gen" in name:
            continue
        if isinstance(module, nn.Linear):
            std = module.in_features**-0.5
            if name.endswith(("o_proj", "down_proj", "out_proj", "encoder.layers.fc2")) or ".mlp.fc2" in name:
                std /= (2 * max(1, depth[name.split(".")[0]])) ** 0.5
            module.weight.copy_(torch.randn(module.weight.shape, generator=draw) * std)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.Embedding):
            module.weight.copy_(torch.randn(module.weight.shape, generator=draw) * 0.1)
        elif isinstance(module, PositionTable):
            module.fill()
        elif isinstance(module, nn.LayerNorm):
            module.weight.fill_(1)
            module.bias.zero_()
    state = dict(model.named_parameters())
    for name, value in state.items():
        if "_moe_gen" in name:
            value.copy_(state[name.replace("_moe_gen", "")])
        elif value.dim() == 1 and name.endswith("norm.weight"):
            value.fill_(1)
    for name, value in state.items():
        if "_moe_gen" in name and "norm" in name:
            value.fill_(1)
    # Not tied, but equal at the start: repeating a token is then one map for all, not one to be learned for each.
    model.language_model.lm_head.weight.copy_(model.language_model.model.embed_tokens.weight)
    _start_copying(model.language_model.model, draw)
    model.llm2vae.weight.zero_()
    model.llm2vae.bias.zero_()
    return model


def _start_copying(decoder: Decoder, draw: torch.Generator) -> None:
    """The first kv heads of the first two `und` layers start as the circuit that repeats what was read (an induction
    head): in the first layer they write the token before into the residual stream, in the second they look for a
    position whose token before is the present one, and bring what stands there. Everything stays trainable.

    It takes a quarter of the kv heads or more, at most two; a model of one kv head or one layer starts without it.
    """
    config = decoder.config
    heads = min(2, config.num_key_value_heads // 2)
    if not heads or len(decoder.layers) < 2:
        return
    width, group = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    rows, columns = heads * width, heads * group * width
    carried, written = (
        torch.linalg.qr(torch.randn(config.hidden_size, rows, generator=draw))[0] for _ in range(2)
    )  # [H, rows] each: what of a token is carried, and where the token before is written

    first, second = decoder.layers[0], decoder.layers[1]
    assert isinstance(first, Layer) and isinstance(second, Layer)
    first.mlp.down_proj.weight *= _QUIET
    attention = first.self_attn
    attention.o_proj.weight *= _QUIET
    fast = _rotary_dims(config, slice(0, width // 8))
    key, query = _one_back(config, fast)
    for proj, vector, count in ((attention.q_proj, query, heads * group), (attention.k_proj, key, heads)):
        proj.weight[: count * width] = 0
        proj.bias[: count * width] = vector.repeat(count)
    attention.q_norm.weight[fast] = _SHARP
    attention.v_proj.weight[:rows] = carried.T
    attention.o_proj.weight[:, :columns] = 0.15 * _for_queries(written, heads, group) / group

    attention = second.self_attn
    slow = _rotary_dims(config, slice(width // 4 - width // 32, None))
    unseen = [row for row in range(rows) if row % width not in set(slow.tolist())]
    sought, offered = carried.clone(), written.clone()
    sought[:, unseen] = offered[:, unseen] = 0
    attention.q_proj.weight[:columns] = _for_queries(sought, heads, group).T
    attention.k_proj.weight[:rows] = offered.T
    attention.q_norm.weight[slow] = attention.k_norm.weight[slow] = _SHARP
    attention.v_proj.weight[:rows] = carried.T
    attention.o_proj.weight[:, :columns] = 0.3 * _for_queries(carried, heads, group) / group


_QUIET = 0.2
"""What else the first layer writes starts this much smaller, so that the tokens themselves stay readable."""
_SHARP = 2.0


def _rotary_dims(config: LlmConfig, frequencies: slice) -> Tensor:
    """Both dimensions of each chosen rotary frequency; the fastest come first."""
    dims = torch.arange(config.head_dim // 2)[frequencies]
    return torch.cat([dims, dims + config.head_dim // 2])


def _one_back(config: LlmConfig, dims: Tensor) -> tuple[Tensor, Tensor]:
    """A key and a query [D] whose product, after the rotation by their positions, is largest one position back."""
    key = torch.zeros(1, 1, config.head_dim)
    key[..., dims[: len(dims) // 2]] = 1.0
    cos, sin = rope_tables(torch.tensor([1]), config.head_dim, config.rope_theta)
    return key[0, 0], apply_rope(key, cos, -sin)[0, 0]


def _for_queries(columns: Tensor, heads: int, group: int) -> Tensor:
    """[H, heads * D] of kv heads -> [H, heads * group * D], once for each query head that a kv head serves."""
    return columns.unflatten(1, (heads, 1, -1)).expand(-1, -1, group, -1).flatten(1)
