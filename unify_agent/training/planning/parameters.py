"""Parameters by group, and which part of each a rank holds. Counted on a model without storage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from torch import nn

GROUPS = {
    "vocabulary tables": ("language_model.model.embed_tokens.", "language_model.lm_head."),
    "decoder, und": ("language_model.model.",),
    "decoder, gen": (),
    "ViT": ("vit_model.",),
    "connector": ("connector.",),
    "latents and time": ("vae2llm.", "llm2vae.", "time_embedder."),
    "position tables": ("latent_pos_embed.", "vit_pos_embed."),
}
"""Part of the model -> how its parameters' names begin; the first that fits counts. `gen` is told by its suffix."""


@dataclass(frozen=True)
class Parameter:
    """One tensor. `bytes_each`: of a number, as it is stored."""

    name: str
    shape: tuple[int, ...]
    trained: bool
    bytes_each: int

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def group(self) -> str:
        if "_moe_gen" in self.name:
            return "decoder, gen"
        return next(group for group, beginnings in GROUPS.items() if self.name.startswith(beginnings))

    def held(self, shards: int, rank: int) -> int:
        """Numbers of it that shard `rank` of `shards` holds: rows as torch.chunk cuts them, so earlier ranks may hold
        more."""
        if not self.shape:
            return 1
        rows = -(-self.shape[0] // shards)
        return max(0, min(self.shape[0] - rank * rows, rows)) * prod(self.shape[1:])


@dataclass(frozen=True)
class Row:
    """Numbers of one group."""

    group: str
    tensors: int
    parameters: int
    trained: int


def parameters_of(model: nn.Module) -> list[Parameter]:
    """Every parameter of a model (on any device, `meta` included)."""
    return [
        Parameter(name, tuple(value.shape), value.requires_grad, value.element_size())
        for name, value in model.named_parameters()
    ]


def by_group(parameters: Iterable[Parameter]) -> list[Row]:
    """A row for each of `GROUPS` in this order, and their sum as the row `all`."""
    numbers = {group: [0, 0, 0] for group in (*GROUPS, "all")}
    for each in parameters:
        for row in (numbers[each.group], numbers["all"]):
            row[0] += 1
            row[1] += each.numel
            row[2] += each.numel * each.trained
    return [Row(group, *row) for group, row in numbers.items()]


@dataclass(frozen=True)
class Held:
    """Bytes that stay on one rank from the first step to the last."""

    weights: int
    gradients: int
    optimiser: int
    ema: int


def held(parameters: Sequence[Parameter], shards: int, rank: int = 0) -> Held:
    """What shard `rank` of `shards` holds: master weights as they are stored; for each trained one a gradient of the
    same type, AdamW's two moments and its step (`optimiser.build`), and the float32 average (`ema.Ema`)."""
    weights = gradients = optimiser = ema = 0
    for each in parameters:
        numbers = each.held(shards, rank)
        weights += numbers * each.bytes_each
        if each.trained:
            gradients += numbers * each.bytes_each
            optimiser += 2 * numbers * each.bytes_each + 4
            ema += numbers * 4
    return Held(weights, gradients, optimiser, ema)


def saved(parameters: Sequence[Parameter], shards: int, adapted: bool) -> int:
    """Bytes of a checkpoint that shard 0 of `shards` writes: weights (with adapters only what is trained, as
    `lora.trained`), the optimiser's state and the average."""
    whole = held(parameters, shards)
    kept = held([each for each in parameters if each.trained], shards) if adapted else whole
    return kept.weights + whole.optimiser + whole.ema
