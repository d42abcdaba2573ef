"""What sources over files share: the length index, unique ids, and one way to build that also measures.

A subclass says which samples a file holds (`_measure`) and how to build one (`build`) from pictures opened by a given
function, with given transforms. So the document that is measured without decoding a picture, the one that is checked
and the one that is trained come from the same lines.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from unify_agent.datasets.index import Entry, Measured, build_index
from unify_agent.datasets.sources import Skipped, Source, SourceContext
from unify_agent.files import digest
from unify_agent.interleave.layout import Pixels
from unify_agent.interleave.segments import Document, Unusable
from unify_agent.interleave.transforms import PictureFile, Transform, open_picture, peek_picture
from unify_agent.interleave.visibility import document_spans, visible_pairs

DUPLICATE = "another record has the same id"
CHANGED = "changed since it was indexed"


class Opener(Protocol):
    """Opens a picture: `open_picture` to train, `peek_picture` to measure. Raises `Unusable`."""

    def __call__(self, file: PictureFile, name: str = "") -> Image.Image: ...


class IndexedSource(Source):
    """`files`: names below `root`, in an order that does not change. `options`: all else that lengths depend on."""

    def __init__(
        self, context: SourceContext, path: Path, root: Path, files: list[str], name: str, options: str = ""
    ) -> None:
        self.context, self.root, self.name, self._options = context, root, name, options
        key = digest(type(self).__name__, str(path.resolve()), options, context.fingerprint)[:16]
        cache = context.cache / f"lengths-{key}.json" if context.cache is not None else None
        self.samples: list[tuple[str, Entry]] = []
        self.unusable: list[Skipped] = []
        seen: set[str] = set()
        for file, entries in build_index(root, files, self._measure, cache=cache).items():
            for entry in entries:
                if not entry.reason and entry.id in seen:
                    entry = replace(entry, reason=DUPLICATE, detail=file)
                seen.add(entry.id)
                if entry.reason:
                    self.unusable.append(Skipped(entry.id, entry.reason, entry.detail))
                else:
                    self.samples.append((file, entry))

    @abstractmethod
    def _measure(self, file: str) -> Measured:
        """The samples of one file and their lengths, without decoding a picture."""

    @abstractmethod
    def build(self, index: int, opener: Opener, pixels: Pixels, rng: np.random.Generator | None) -> Document:
        """A sample. Without `rng` the longest of what chance could choose. Raises `Unusable`."""

    def document(self, index: int, rng: np.random.Generator) -> Document:
        return self.build(index, open_picture, self.context.pixels, rng)

    def outline(self, index: int) -> Document:
        """The document with the right shapes and no pixels: what the sample looks like, at little cost."""
        return self.build(index, peek_picture, shapes_only(self.context.pixels), None)

    @cached_property
    def fingerprint(self) -> str:
        lengths = "\n".join(f"{entry.id} {entry.slots} {entry.pairs}" for _, entry in self.samples)
        return digest(self.context.fingerprint, self._options, lengths)[:16]

    def ids(self) -> list[str]:
        return [entry.id for _, entry in self.samples]

    def __len__(self) -> int:
        return len(self.samples)

    def slots(self, index: int) -> int:
        return self.samples[index][1].slots

    def pairs(self, index: int) -> int:
        return self.samples[index][1].pairs


def measured(name: str, record: int, build: Callable[[], Document]) -> Entry:
    """The entry of one sample, whether it can be built or not."""
    try:
        document = build()
    except Unusable as error:
        return Entry(name, record, reason=error.reason, detail=str(error))
    return Entry(name, record, document.slots, visible_pairs(document_spans(document)))


def shapes_only(pixels: Pixels) -> Pixels:
    """The same sizes, no pixels."""
    assert isinstance(pixels.vae, Transform) and isinstance(pixels.vit, Transform)
    return replace(pixels, vae=pixels.vae.shape_only, vit=pixels.vit.shape_only)
