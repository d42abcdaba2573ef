"""What sources over files share: the length index, unique ids, and one way to build that also measures.

A subclass says which samples a file holds (`_measure`) and how to build one (`build`) from pictures opened by a given
function, with given transforms. So the document that is measured without decoding a picture, the one that is checked
and the one that is trained come from the same lines.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from unify_agent.datasets.index import VERSION, Entry, Measured, build_index
from unify_agent.datasets.sources import Skipped, Source, SourceContext
from unify_agent.files import digest
from unify_agent.interleave.layout import Part, Pixels
from unify_agent.interleave.segments import Document, Unusable
from unify_agent.interleave.transforms import PictureFile, Transform, open_picture, peek_picture
from unify_agent.interleave.visibility import document_spans, visible_pairs

DUPLICATE = "another record has the same id"
CHANGED = "changed since it was indexed"


class Opener(Protocol):
    """Opens a picture: `open_picture` to train, `peek_picture` to measure. Raises `Unusable`."""

    def __call__(self, file: PictureFile, name: str = "") -> Image.Image: ...


class IndexedSource(Source):
    """`files`: names below `root`, in an order that does not change. `options`: all else that lengths depend on.

    `samples`: the file and entry of every document; where a layout makes several of a sample, they follow one another.
    """

    def __init__(
        self, context: SourceContext, path: Path, root: Path, files: list[str], name: str, options: str = ""
    ) -> None:
        self.context, self.root, self.name, self._options = context, root, name, options
        key = digest(type(self).__name__, str(VERSION), str(path.resolve()), options, context.fingerprint)[:16]
        cache = context.cache / f"lengths-{key}.json" if context.cache is not None else None
        self.samples: list[tuple[str, Entry]] = []
        first: dict[str, tuple[str, int]] = {}
        unusable: dict[tuple[str, int, str], Skipped] = {}
        for file, entries in build_index(root, files, self._measure, cache=cache).items():
            for entry in entries:
                place = (file, entry.record)
                if first.setdefault(entry.id, place) != place and not entry.reason:
                    entry = replace(entry, reason=DUPLICATE, detail=file)
                if entry.reason:
                    unusable[*place, entry.id] = Skipped(entry.id, entry.reason, entry.detail)
                else:
                    self.samples.append((file, entry))
        self.unusable: list[Skipped] = list(unusable.values())

    @abstractmethod
    def _measure(self, file: str) -> Measured:
        """The samples of one file and their lengths, without decoding a picture."""

    @abstractmethod
    def build(self, index: int, opener: Opener, pixels: Pixels, rng: np.random.Generator | None) -> Document:
        """A document. Without `rng` the longest of what chance could choose. Raises `Unusable`."""

    def document(self, index: int, rng: np.random.Generator) -> Document:
        return self.build(index, open_picture, self.context.pixels, rng)

    def outline(self, index: int) -> Document:
        """The document with the right shapes and no pixels: what the sample looks like, at little cost."""
        return self.build(index, peek_picture, shapes_only(self.context.pixels), None)

    @cached_property
    def fingerprint(self) -> str:
        lengths = "\n".join(f"{entry.name} {entry.slots} {entry.pairs}" for _, entry in self.samples)
        return digest(self.context.fingerprint, self._options, lengths)[:16]

    def ids(self) -> list[str]:
        return [entry.name for _, entry in self.samples]

    def by_sample(self) -> dict[str, list[int]]:
        """Indices of each sample's documents, by the sample's id."""
        found: dict[str, list[int]] = {}
        for index, (_, entry) in enumerate(self.samples):
            found.setdefault(entry.id, []).append(index)
        return found

    def __len__(self) -> int:
        return len(self.samples)

    def slots(self, index: int) -> int:
        return self.samples[index][1].slots

    def pairs(self, index: int) -> int:
        return self.samples[index][1].pairs


def measured(
    name: str, record: int, build: Callable[[], Sequence[Document]], parts: Sequence[Part] = ("whole",)
) -> list[Entry]:
    """The entries of one sample's documents, in the order of `parts`, or one entry when it cannot be built."""
    try:
        documents = build()
    except Unusable as error:
        return [Entry(name, record, reason=error.reason, detail=str(error))]
    return [
        Entry(name, record, document.slots, visible_pairs(document_spans(document)), part=part)
        for part, document in zip(parts, documents, strict=True)
    ]


def shapes_only(pixels: Pixels) -> Pixels:
    """The same sizes, no pixels."""
    assert isinstance(pixels.vae, Transform) and isinstance(pixels.vit, Transform)
    return replace(pixels, vae=pixels.vae.shape_only, vit=pixels.vit.shape_only)
