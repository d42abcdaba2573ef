"""What a source of samples is, the context that it is built in, and mixtures of several sources.

A source knows how long its samples are at most before any of them is built: packing plans an epoch from that
alone. Building is done later, elsewhere, and draws only on the generator that it is handed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unify_agent.errors import UserError
from unify_agent.files import digest
from unify_agent.interleave.grammar import Grammar
from unify_agent.interleave.layout import Pixels, Preset
from unify_agent.interleave.packing import TOO_LONG
from unify_agent.interleave.randomness import generator
from unify_agent.interleave.segments import Document


@dataclass(frozen=True)
class SourceContext:
    """What every source is handed as its first argument.

    `copies`: how often a target is noised per pack. `cache`: folder for length indices, None to keep none.
    """

    grammar: Grammar
    pixels: Pixels
    preset: Preset = "paper"
    copies: int = 1
    cache: Path | None = None

    @property
    def fingerprint(self) -> str:
        """Identifies all of it that decides how long a sample is."""
        return digest(self.grammar.fingerprint, repr(self.pixels), self.preset, str(self.copies))[:16]


@dataclass(frozen=True)
class Skipped:
    """A sample that is not trained on, and the short constant reason under which it is counted."""

    id: str
    reason: str
    detail: str = ""


class Source(ABC):
    """Samples with unique ids. Subclasses take a `SourceContext` and then keyword options.

    `unusable`: samples found but not offered. `fingerprint`: changes whenever ids or lengths change.
    """

    name: str
    unusable: Sequence[Skipped] = ()

    @property
    @abstractmethod
    def fingerprint(self) -> str: ...

    @abstractmethod
    def ids(self) -> list[str]:
        """Unique ids, in an order that does not change."""

    @abstractmethod
    def slots(self, index: int) -> int:
        """The most slots that `document(index, ...)` takes. Cheap: nothing is decoded."""

    @abstractmethod
    def document(self, index: int, rng: np.random.Generator) -> Document:
        """Build a sample; all chance comes from `rng`. Raises `Unusable` with the reason when it cannot."""

    def pairs(self, index: int) -> int:
        """Visible pairs of the sample, for its cost; here those of one causal text."""
        slots = self.slots(index)
        return slots * (slots + 1) // 2

    def __len__(self) -> int:
        return len(self.ids())


@dataclass(frozen=True)
class Draw:
    """One sample of an epoch of a mixture, in the given epoch of its own source."""

    source: int
    index: int
    epoch: int


class Mixture:
    """Weighted sources. A weight is a share of the tokens drawn; each source goes through its own epochs.

    An epoch of the mixture ends when a source has been drawn from exactly once; the others give their share
    and go on from there in the next. All of it is computed from (seed, epoch), so there is no state.
    """

    def __init__(
        self, sources: Sequence[Source], weights: Sequence[float] | None = None, *, limit: int
    ) -> None:
        """`limit`: samples with more slots are listed in `skipped` and never drawn."""
        if not sources:
            raise UserError("data.sources: at least one source is needed")
        names = [source.name for source in sources]
        if len(set(names)) < len(names):
            raise UserError(f"data.sources: two sources have the same name ({', '.join(names)})")
        self.sources = list(sources)
        self.weights = list(weights) if weights is not None else [1.0] * len(sources)
        if any(not weight > 0 for weight in self.weights):
            raise UserError("data.sources: a weight must be above 0; leave a source out instead")
        self.skipped: list[Skipped] = []
        self.slots: list[np.ndarray] = []
        self.pairs: list[np.ndarray] = []
        self.ids: list[list[str]] = []
        self._usable: list[np.ndarray] = []
        for source in sources:
            ids = source.ids()
            if len(set(ids)) < len(ids):
                raise UserError(f"source {source.name}: two samples have the same id")
            slots = np.array([source.slots(index) for index in range(len(ids))], dtype=np.int64)
            usable = np.flatnonzero(slots <= limit)
            self.skipped += [
                Skipped(f"{source.name}:{each.id}", each.reason, each.detail) for each in source.unusable
            ]
            self.skipped += [
                Skipped(f"{source.name}:{ids[index]}", TOO_LONG, f"{slots[index]} > {limit}")
                for index in np.flatnonzero(slots > limit)
            ]
            if not len(usable):
                raise UserError(
                    f"source {source.name}: none of its samples can be used{_reasons(self.skipped)}"
                )
            self.ids.append(ids)
            self.slots.append(slots)
            self.pairs.append(np.array([source.pairs(index) for index in range(len(ids))], dtype=np.int64))
            self._usable.append(usable)
        totals = [int(slots[usable].sum()) for slots, usable in zip(self.slots, self._usable, strict=True)]
        first = min(range(len(totals)), key=lambda k: totals[k] / self.weights[k])
        self._totals = totals
        self._quotas = [totals[first] * (weight / self.weights[first]) for weight in self.weights]
        self.fingerprint = digest(
            *(source.fingerprint for source in sources), repr(self.weights), repr(names), str(limit)
        )[:16]

    def name(self, draw: Draw) -> str:
        """Id of a draw's sample among all sources."""
        return f"{self.sources[draw.source].name}:{self.ids[draw.source][draw.index]}"

    def epoch(self, seed: int, epoch: int) -> list[Draw]:
        """The draws of one epoch of the mixture: those that begin inside each source's share of tokens."""
        draws = []
        for number, (total, quota) in enumerate(zip(self._totals, self._quotas, strict=True)):
            begin, end = quota * epoch, quota * (epoch + 1)
            for own in range(int(begin // total), int(end // total) + 1):
                order = self._order(number, seed, own)
                slots = self.slots[number][order]
                starts = own * total + np.cumsum(slots) - slots
                for index in order[(starts >= begin) & (starts < end)].tolist():
                    draws.append(Draw(number, index, own))
        return draws

    def _order(self, number: int, seed: int, epoch: int) -> np.ndarray:
        usable, ids = self._usable[number], self.ids[number]
        ordered = np.array(sorted(usable.tolist(), key=ids.__getitem__), dtype=np.int64)
        return generator(seed, epoch, "mixture", self.sources[number].name).permutation(ordered)


def _reasons(skipped: Sequence[Skipped]) -> str:
    counts = count_reasons(skipped)
    return ": " + ", ".join(f"{number} x {reason}" for reason, number in counts.items()) if counts else ""


def count_reasons(skipped: Sequence[Skipped]) -> dict[str, int]:
    """How many samples were left out for which reason, most frequent first."""
    counts: dict[str, int] = {}
    for each in skipped:
        counts[each.reason] = counts.get(each.reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
