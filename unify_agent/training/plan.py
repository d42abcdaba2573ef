"""What a configuration would train, counted on a model without storage: no weights, no data, seconds at any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unify_agent.errors import UserError
from unify_agent.model.config import BagelConfig
from unify_agent.model.loading import on_meta
from unify_agent.model.weights import ModelFolder
from unify_agent.training.assembly import architecture
from unify_agent.training.config import Config

PARTS = {
    "vocabulary tables": ("language_model.model.embed_tokens.", "language_model.lm_head."),
    "decoder, und": ("language_model.model.",),
    "decoder, gen": (),
    "ViT": ("vit_model.",),
    "connector": ("connector.",),
    "latents and time": ("vae2llm.", "llm2vae.", "time_embedder."),
    "position tables": ("latent_pos_embed.", "vit_pos_embed."),
}
"""Part of the model -> how its parameters' names begin; the first that fits counts. `gen` is told by its suffix."""
GB = 1e9


@dataclass(frozen=True)
class Row:
    """Numbers of one part."""

    part: str
    tensors: int
    parameters: int
    trained: int


@dataclass(frozen=True)
class Plan:
    """`name`: the architecture's; `rows`: a part each."""

    name: str
    rows: tuple[Row, ...]

    @property
    def total(self) -> Row:
        numbers = zip(*((row.tensors, row.parameters, row.trained) for row in self.rows), strict=True)
        return Row("all", *(sum(column) for column in numbers))

    def lines(self) -> Iterator[str]:
        """The plan as a table, and what its weights weigh."""
        total = self.total
        yield f"{self.name}: {total.parameters:,} parameters ({total.parameters / 1e9:.3f}e9)"
        yield f"{'':18}{'tensors':>8}{'parameters':>16}{'trained':>16}{'frozen':>14}{'fp32 GB':>9}{'bf16 GB':>9}"
        for row in (*self.rows, total):
            yield (
                f"{row.part:18}{row.tensors:8,}{row.parameters:16,}{row.trained:16,}"
                f"{row.parameters - row.trained:14,}{row.parameters * 4 / GB:9.2f}{row.parameters * 2 / GB:9.2f}"
            )
        yield "the autoencoder is frozen and not counted"


def plan(config: Config) -> Plan:
    """Counts `model.arch`, or the architecture of the folder `model.path` when no `arch` is named.

    Raises:
        UserError: neither is set, or they are unknown.
    """
    if config.model.arch is not None:
        name = str(config.model.arch)
        return Plan(name, count(architecture(name)))
    if config.model.path is None:
        raise UserError("plan=true counts model.arch or the folder model.path: set one, say model=bagel_7b_mot")
    return Plan(str(config.model.path), count(ModelFolder(config.model.path).config))


def count(shape: BagelConfig) -> tuple[Row, ...]:
    """A row for each part of a model, in the order of `PARTS`."""
    numbers = {part: [0, 0, 0] for part in PARTS}
    for name, value in on_meta(shape).named_parameters():
        row = numbers[_part_of(name)]
        row[0] += 1
        row[1] += value.numel()
        row[2] += value.numel() * value.requires_grad
    return tuple(Row(part, *row) for part, row in numbers.items())


def _part_of(name: str) -> str:
    if "_moe_gen" in name:
        return "decoder, gen"
    return next(part for part, beginnings in PARTS.items() if name.startswith(beginnings))
