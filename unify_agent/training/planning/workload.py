"""What a pack holds, as real packs: those of the data where there are any, else packs of an assumed sample.

Packs are built by the code that builds them for training, layout, transforms and packing rules included; only pixels
and words are left out. So what is counted on them (tokens by kind, visible pairs, trained positions) is what a run
would count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from unify_agent.datasets.indexed import IndexedSource, shapes_only
from unify_agent.datasets.loader import Loader
from unify_agent.datasets.sources import Draw
from unify_agent.errors import UserError
from unify_agent.interleave.batch import PackedBatch, pack
from unify_agent.interleave.grammar import Grammar
from unify_agent.interleave.layout import Exchange, Preset, lay_out
from unify_agent.interleave.randomness import generator
from unify_agent.interleave.segments import Document, Unusable
from unify_agent.interleave.visibility import visible_pairs
from unify_agent.model.config import BagelConfig
from unify_agent.model.loading import grown
from unify_agent.model.weights import ModelFolder
from unify_agent.training import assembly
from unify_agent.training.config import Config
from unify_agent.training.parallel import World

MEASURED_PACKS = 8
"""Packs of the data that are looked into; their samples' headers are read."""
LEAST_TEXT = 1500
"""Tokens of text that an assumed sample has at least."""


@dataclass(frozen=True)
class Load:
    """Counts of one pack."""

    slots: int
    """Padding included."""
    tokens: int
    samples: int
    latents: int
    """Slots of the `gen` expert; all others are the `und` expert's."""
    vit_lengths: tuple[int, ...]
    """ViT patches of each picture."""
    pictures: tuple[tuple[int, int], ...]
    """(height, width) in pixels of each picture that the VAE encodes."""
    noised: int
    """Latent patches with a flow loss."""
    ce: int
    """Positions with a cross-entropy."""
    pairs: int
    """Cells of the attention mask that are visible."""

    @classmethod
    def of(cls, batch: PackedBatch) -> Load:
        return cls(
            slots=batch.length,
            tokens=sum(span.stop - span.start for span in batch.spans if span.document < len(batch.sample_ids)),
            samples=len(batch.sample_ids),
            latents=len(batch.latent_at),
            vit_lengths=tuple(batch.vit_lengths),
            pictures=tuple((image.shape[0], image.shape[1]) for image in batch.vae_images),
            noised=len(batch.mse_at),
            ce=len(batch.ce_at),
            pairs=visible_pairs(batch.spans),
        )


@dataclass(frozen=True)
class DataFigures:
    """An epoch, from the length index."""

    samples: int
    skipped: int
    steps: int
    tokens: int
    fill: float
    worst_over_mean: float


@dataclass(frozen=True)
class Workload:
    """`typical`: packs whose mean stands for all; `largest`: the one that memory is planned for. `origin` says in words
    where they come from. `data` is None when they are assumed."""

    typical: tuple[PackedBatch, ...]
    largest: PackedBatch
    origin: str
    data: DataFigures | None


def shape_of(config: Config) -> BagelConfig:
    """The architecture: that of the folder model.path where it is on this machine, else model.arch."""
    folder = _folder(config)
    if folder is not None:
        return grown(folder.config, folder.grammar().size)
    if config.model.arch is not None:
        return assembly.architecture(str(config.model.arch))
    if config.model.path is None:
        raise UserError("a plan needs model.arch or the folder model.path: set one, say model=bagel_7b_mot")
    raise UserError(f"model.path={config.model.path}: no such folder here; a plan without it needs model.arch")


def workload(config: Config, shape: BagelConfig, ranks: int) -> Workload:
    """Packs of the configured sources if all of it is on this machine, else of an assumed sample."""
    absent = _absent(config)
    if absent is not None:
        return assumed(config, shape, absent)
    folder = _folder(config)
    grammar = folder.grammar() if folder is not None else Grammar.load(Path(str(config.model.tokenizer)))
    pixels = assembly.pixels_of(config, shape)
    loader = assembly.loader_of(config, World(0, ranks, torch.device("cpu"), None), grammar, pixels, shape)
    return _measured(loader)


def assumed(config: Config, shape: BagelConfig, reason: str) -> Workload:
    """As many equal samples as a full pack holds: pictures as `planning` says, the rest text."""
    data, planning = config.data, config.planning
    grammar = _byte_grammar()
    pixels = shapes_only(assembly.pixels_of(config, shape))
    wide = Image.new("1", (planning.picture, max(1, planning.picture * 3 // 4)))
    square = Image.new("1", (planning.picture, planning.picture))

    def sample(text: int, name: str = "assumed") -> Document:
        trained = round(text * planning.trained_text)
        answer = grammar.encode("x" * (trained - trained // 2))
        last = grammar.encode(f"<recaption>{'x' * (trained // 2)}</recaption>")
        asked = text - trained
        return lay_out(
            name,
            [Exchange("x" * (asked - asked // 2), answer), Exchange("x" * (asked // 2), last)],
            [wide] * planning.references,
            square,
            grammar=grammar,
            pixels=pixels,
            preset=cast(Preset, config.layout),
            copies=data.noise_copies,
        )

    def full(slots: int) -> PackedBatch:
        share = min(slots // count, data.max_tokens_per_sample)
        few, many = 0, share
        while few < many:  # the longest text with which a sample keeps to its share
            middle = (few + many + 1) // 2
            few, many = (middle, many) if sample(middle).slots <= share else (few, middle - 1)
        documents = [sample(few, f"assumed {number}") for number in range(count)]
        return pack(documents, assembly.rules_of(config, grammar, shape), pad_to=assembly.padding_of(config))

    least = sample(0).slots
    if least > min(data.expected_tokens, data.max_tokens_per_sample):
        raise UserError(
            f"planning.picture={planning.picture}: an assumed sample has {least} slots for its pictures alone, a pack "
            f"{data.expected_tokens}; assume smaller pictures or fewer planning.references"
        )
    count = max(1, data.expected_tokens // (least + LEAST_TEXT))
    typical = full(data.expected_tokens)
    words = (
        f"assumed ({reason}): {count} samples to a pack, each of {Load.of(typical).tokens // count:,} tokens with "
        f"{planning.references} references and a drawing"
    )
    return Workload((typical,), full(data.max_tokens), words, None)


def _measured(loader: Loader) -> Workload:
    plan = loader.plan(0)
    stretch, _ = loader.schedule.at(0)
    filled = [number for number, samples in enumerate(plan.packs) if samples]
    spread = np.linspace(0, len(filled) - 1, min(MEASURED_PACKS, len(filled))).round().astype(int)
    slots = [int(plan.slots[plan.packs[number]].sum()) for number in filled]
    longest = filled[int(np.argmax(slots))]

    def build(number: int) -> PackedBatch:
        return _outlined(loader, [stretch.draws[index] for index in plan.packs[number]])

    samples = sum(len(each) for each in plan.packs)
    figures = DataFigures(
        samples, len(loader.skipped), plan.steps, sum(slots), plan.fill, plan.worst_over_mean
    )
    words = f"{len(spread)} of {len(filled):,} packs of the data looked into"
    return Workload(tuple(build(filled[number]) for number in spread), build(longest), words, figures)


def _outlined(loader: Loader, draws: Sequence[Draw]) -> PackedBatch:
    """A pack of these draws, without pixels where the source can do without."""
    documents = []
    for draw in draws:
        source = loader.mixture.sources[draw.source]
        try:
            if isinstance(source, IndexedSource):
                documents.append(source.outline(draw.index))
            else:
                rng = generator(loader.seed, draw.epoch, loader.mixture.name(draw), "source")
                documents.append(source.document(draw.index, rng))
        except Unusable:
            continue  # training skips and counts it too
    return pack(documents, loader.builder.rules, pad_to=loader.builder.pad_to)


def _folder(config: Config) -> ModelFolder | None:
    path = config.model.path
    return ModelFolder(path) if path is not None and Path(path).is_dir() else None


def _absent(config: Config) -> str | None:
    """Why the data can't be looked into, or None."""
    if not config.data.sources:
        return "data.sources is empty"
    for source in config.data.sources:
        if source.path is not None and not Path(source.path).exists():
            return f"no data at {source.path}"
    if _folder(config) is None and (config.model.path is not None or config.model.tokenizer is None):
        return f"no tokenizer: no folder at model.path={config.model.path}"
    if config.model.path is None and not Path(str(config.model.tokenizer)).exists():
        return f"no tokenizer at {config.model.tokenizer}"
    return None


def _byte_grammar() -> Grammar:
    """A grammar in which every letter is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return Grammar(tokenizer)
