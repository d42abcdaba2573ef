"""Matrices of 8 or 4 bits in the decoder's layers, by bitsandbytes. Norms, tables and the ViT keep their dtype."""

from __future__ import annotations

import torch
from torch import nn


def quantise(layer: nn.Module, bits: str, dtype: torch.dtype, device: int | str) -> None:
    """Replaces every Linear of a layer in host memory by one of `8bit` (LLM.int8) or `4bit` (NF4), and moves the layer
    to `device`. `dtype`: what products are computed in.
    """
    import bitsandbytes as bnb

    for parent in list(layer.modules()):
        for name, linear in list(parent.named_children()):
            if type(linear) is not nn.Linear:
                continue
            shape = (linear.in_features, linear.out_features, linear.bias is not None)
            weight = linear.weight.data
            if bits == "8bit":
                small = bnb.nn.Linear8bitLt(*shape, has_fp16_weights=False, threshold=6.0, device="meta")
                small.weight = bnb.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
            else:
                small = bnb.nn.Linear4bit(*shape, compute_dtype=dtype, quant_type="nf4", device="meta")
                small.weight = bnb.nn.Params4bit(weight, requires_grad=False, quant_type="nf4", module=small)
            small.bias = linear.bias
            setattr(parent, name, small.eval())
    layer.to(device)
