"""Low-rank adapters (peft) on both experts: for one card, where the weights fit and their optimiser does not.

Every linear layer of the decoder's `und` and `gen` experts (q, k, v, o and the MLP) gets a product of two narrow
matrices; it and the two vocabulary tables are trained, the rest is frozen. The tables, because a structure tag's row
is a spare one that the base never trained: with both frozen no adapter could tell one tag from another.

A checkpoint holds what is trained; the frozen weights are read from `model.path` again. The export adds the adapters
to them, so that the public layout results (of averages: the product of the averages).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unify_agent.errors import UserError
from unify_agent.model.bagel import Bagel
from unify_agent.model.loading import DTYPES, VOCABULARY, Weights, shapes
from unify_agent.training import checkpoint, parallel
from unify_agent.training.assembly import Start
from unify_agent.training.checkpoint import Checkpoint
from unify_agent.training.config import Config, LoraConfig

LAYERS = r"language_model\.model\.layers\.\d+\.(self_attn|mlp|mlp_moe_gen)\.\w+_proj(_moe_gen)?"
"""Names of the linear layers that get adapters."""


def adapt(model: Bagel, config: LoraConfig) -> Bagel:
    """Adds adapters in place and freezes the rest, which is kept in `base_dtype`. Works on a model without storage.

    Raises:
        UserError: peft is not installed.
    """
    try:
        from peft import LoraConfig as Settings
        from peft import inject_adapter_in_model
    except ImportError:
        raise UserError(f"lora.rank={config.rank} needs the extra: pip install 'unify-agent[lora]'") from None
    scale: Any = config.alpha  # peft says a whole number, and takes any
    settings = Settings(r=config.rank, lora_alpha=scale, lora_dropout=config.dropout, target_modules=LAYERS)
    inject_adapter_in_model(settings, model)
    for name in VOCABULARY:
        model.get_parameter(name).requires_grad_()
    for p in model.parameters():
        if not p.requires_grad:
            p.data = p.data.to(DTYPES[config.base_dtype])
    return model


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """The first matrix of each pair uniform (peft's start), the second zero: adapters begin as nothing. The same
    whatever the sharding."""
    draw = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        target, rows = parallel.shard(p.detach())
        if ".lora_A." in name:
            target.copy_(torch.empty(p.shape).uniform_(-1, 1, generator=draw)[rows] * p.shape[1] ** -0.5)
        elif ".lora_B." in name:
            target.zero_()


def by_public_name(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by the names they have without adapters, which are left out."""
    named = {name.replace(".base_layer.", "."): p for name, p in model.named_parameters()}
    return {name: p for name, p in named.items() if ".lora_" not in name}


def trained(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds of the model's state."""
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    return {name: value for name, value in model.state_dict().items() if name in names}


class Merged:
    """Reads whole tensors of the public layout: the base's, with what was trained in their place or added to them.

    Raises:
        UserError: the checkpoint has no adapters, or the base's files are not as they were.
    """

    def __init__(self, found: Checkpoint, config: Config, start: Start) -> None:
        assert start.folder is not None
        self.found, self.scale = found, config.lora.alpha / config.lora.rank
        self.weights, self.shapes = Weights(start.folder, start.shape), shapes(start.shape)
        self.kind, self.held = config.export.weights, checkpoint.shapes(found)
        if not any(".lora_A." in name for name in self.held):
            raise UserError(f"{found.path}: holds no adapters; its run says lora.rank={config.lora.rank}")

    def __call__(self, names: Sequence[str]) -> Mapping[str, Tensor]:
        tensors = {name: torch.empty(self.shapes[name]) for name in names}
        self.weights.fill(tensors)
        for name, value in tensors.items():
            pair = [f"{self.kind}/{name.removesuffix('.weight')}.lora_{part}.default.weight" for part in "AB"]
            whole = f"{self.kind}/{name}"
            if pair[0] in self.held:
                narrow, wide = checkpoint.read(self.found, pair).values()
                value.addmm_(wide, narrow, alpha=self.scale)
            elif whole in self.held:
                value.copy_(checkpoint.read(self.found, [whole])[whole])
        return tensors
