"""From the files of a folder into a model: checked first by their headers alone, then copied tensor by tensor.

The model is built without storage; what is read are pages of the mapped file, and each goes straight to its place in
the model's dtype. The memory of the process therefore grows by what it keeps and nothing else: a shard, under FSDP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unify_agent.model.bagel import Bagel
from unify_agent.model.config import BagelConfig
from unify_agent.model.embeddings import sincos_table
from unify_agent.model.folder import TABLES, ModelFolder
from unify_agent.model.tensors import FLOATS, Stored, WeightsError, opened

VOCABULARY = ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight")
ROUND = 64
"""A vocabulary table that grows gets a multiple of this many rows."""
Part = Callable[[Tensor], tuple[Tensor, slice]]
"""A parameter -> the tensor to be filled, and which rows of the whole it is."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""What weights may be kept in, by the names that commands and configurations use."""


def on_meta(config: BagelConfig) -> Bagel:
    """A model that has names and shapes, but no storage."""
    with torch.device("meta"):
        return Bagel(config)


def shapes(config: BagelConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of a model."""
    return {name: tuple(value.shape) for name, value in on_meta(config).state_dict().items()}


def grown(config: BagelConfig, tokens: int) -> BagelConfig:
    """The configuration with room for `tokens` ids. A table that holds them stays as it is (BAGEL's 152,064 rows are
    more than its tokenizer has: new tags take spare ones); else it gets just as many, rounded up to 64."""
    if tokens <= config.llm.vocab_size:
        return config
    return replace(config, llm=replace(config.llm, vocab_size=-(-tokens // ROUND) * ROUND))


def whole(parameter: Tensor) -> tuple[Tensor, slice]:
    """All of it."""
    return parameter, slice(0, parameter.shape[0])


class Weights:
    """The weights of a folder for a model of `config`: the folder's own, or `grown` from it. Reads headers only.

    Raises:
        UserError: a line per tensor that is missing, unexpected, misshapen or no float, or the file that is cut short.
    """

    def __init__(self, folder: ModelFolder, config: BagelConfig | None = None) -> None:
        self.folder, self.config = folder, config or folder.config
        self.tensors = self._checked(shapes(self.config))

    @torch.no_grad()
    def fill(self, model: Bagel | Mapping[str, Tensor], part: Part = whole, under: str = "") -> None:
        """Writes every parameter that has storage, of a model or by name; `part` says which rows of it are held here,
        `under` how the names begin.

        Rows that a vocabulary table has and the file has not start as the mean of the file's rows, so that a new token
        begins as an average one.
        """
        parameters = model if isinstance(model, Mapping) else dict(model.named_parameters())
        by_file: dict[Path, list[str]] = {}
        for name, each in self.tensors.items():
            if name in parameters and name.startswith(under) and name not in TABLES:
                by_file.setdefault(each.file, []).append(name)
        for file, names in by_file.items():
            with opened(file) as tensors:
                for name in names:
                    target, rows = part(parameters[name])
                    if target.device.type != "meta":
                        _copy(tensors.get_slice(name), target, rows)
        for name in (table for table in TABLES if table in parameters and table.startswith(under)):
            target, rows = part(parameters[name])
            target.copy_(sincos_table(getattr(self.config, TABLES[name]), self.config.llm.hidden_size)[rows])

    def _checked(self, wanted: dict[str, tuple[int, ...]]) -> dict[str, Stored]:
        found, here = self.folder.tensors, self.folder.path
        unbuilt = (
            f"vit_model.vision_model.encoder.layers.{self.config.vit.layers_built}.",
            "vit_model.vision_model.head.",
        )
        kept = {name: each for name, each in found.items() if name in wanted}
        problems = {
            "missing": [f"{here}: tensor {n} is missing" for n in wanted if n not in found and n not in TABLES],
            "unexpected": [
                f"{each.file}: tensor {name} belongs to no model of this configuration"
                for name, each in found.items()
                if name not in wanted and not name.startswith(unbuilt)
            ],
            "misshapen": [
                f"{each.file}: tensor {name} is {each.shape}, the configuration says {wanted[name]}"
                + (f" (fixed table; {TABLES[name]} is {getattr(self.config, TABLES[name])})" if name in TABLES else "")
                for name, each in kept.items()
                if each.shape != wanted[name] and not self._may_grow(name, each)
            ],
            "of another kind": [
                f"{each.file}: tensor {name} holds {each.dtype}; only {', '.join(FLOATS)} are read"
                for name, each in kept.items()
                if each.dtype not in FLOATS
            ],
        }
        if any(problems.values()):
            raise WeightsError(here, problems)
        return kept

    def _may_grow(self, name: str, each: Stored) -> bool:
        llm = self.folder.config.llm
        return name in VOCABULARY and each.shape == (llm.vocab_size, llm.hidden_size)


def load_model(
    folder: ModelFolder | Path | str, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Bagel:
    """Reads a folder's weights, strictly; errors as `Weights`."""
    weights = Weights(folder if isinstance(folder, ModelFolder) else ModelFolder(folder))
    model = on_meta(weights.config).to(dtype).to_empty(device=device)
    weights.fill(model)
    return model


def _copy(source: Any, target: Tensor, rows: slice) -> None:
    """Rows of a stored tensor into the tensor that is to hold them; rows beyond the stored ones become the mean."""
    stop = min(rows.stop, source.get_shape()[0])
    kept = max(0, stop - rows.start)
    if kept:
        target[:kept].copy_(source[rows.start : stop])
    if rows.stop > rows.start + kept:
        target[kept:].copy_(_mean(source).expand_as(target[kept:]))


def _mean(source: Any, block: int = 4096) -> Tensor:
    """Mean row of a stored table, in float32, read block by block."""
    count, width = source.get_shape()
    total = torch.zeros(width, dtype=torch.float64)
    for start in range(0, count, block):
        total += source[start : min(start + block, count)].double().sum(0)
    return (total / count).float()
