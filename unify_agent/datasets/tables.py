"""Sources that are tables: one sample a row, in .jsonl or .parquet files, pictures beside them or inside.

`path` is one such file, or a folder of them. A picture is a path (relative to the `pictures` folder, which is the
table's own unless it is given), or in parquet its bytes, bare or as `datasets` stores them ({bytes, path}). Columns
that a kind does not know are left alone. docs/data.md lists the columns of every kind.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unify_agent.datasets.index import Entry, Measured
from unify_agent.datasets.indexed import CHANGED, IndexedSource, Opener, measured, shapes_only
from unify_agent.datasets.parquet import open_parquet, read_row
from unify_agent.datasets.records import is_unicode
from unify_agent.datasets.sources import SourceContext
from unify_agent.errors import UserError
from unify_agent.interleave.layout import Pixels
from unify_agent.interleave.segments import Document, Segment, Unusable
from unify_agent.interleave.transforms import peek_picture

SUFFIXES = (".jsonl", ".parquet")


class Stored(BaseModel):
    """A picture inside a parquet file, as `datasets` writes it."""

    data: bytes | None = Field(None, alias="bytes")
    path: str | None = None


PictureColumn = str | bytes | Stored


class Row(BaseModel):
    """What every kind's rows have. `id`: unique in the source; the row's place in its file where it is left out."""

    model_config = ConfigDict(extra="ignore", strict=True)

    id: str | int | None = None


Show = Callable[[PictureColumn], Image.Image]
"""Opens a picture of the row."""


class Words:
    """Encodes a row's texts. Tags in them are plain text unless `tags`."""

    def __init__(self, context: SourceContext, tags: bool, rng: np.random.Generator | None) -> None:
        self._encode = context.grammar.encode if tags else context.grammar.encode_untrusted
        self._rng = rng

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of one text. Raises `Unusable` when it says nothing."""
        if not is_unicode(text):
            raise Unusable("text is not valid Unicode")
        if not text.strip():
            raise Unusable("text is empty")
        return self._encode(text)

    def choose(self, texts: str | Sequence[str]) -> tuple[int, ...]:
        """Ids of one of several texts, by chance; of the longest when there is no chance."""
        if isinstance(texts, str):
            return self.encode(texts)
        if not texts:
            raise Unusable("text is empty")
        every = [self.encode(text) for text in texts]
        return max(every, key=len) if self._rng is None else every[int(self._rng.integers(len(every)))]


class TableSource(IndexedSource):
    """`tags`: tags in the texts are tags, as in text that we wrote; else they stay plain text."""

    row_type: ClassVar[type[Row]]

    def __init__(
        self,
        context: SourceContext,
        path: Path | str,
        *,
        pictures: Path | str | None = None,
        tags: bool = False,
        name: str | None = None,
    ) -> None:
        path = Path(path)
        files = find_tables(path)
        self.tags = tags
        root = path if path.is_dir() else path.parent
        self.pictures = Path(pictures) if pictures is not None else root
        if not self.pictures.is_dir():
            raise UserError(f"{self.pictures}: no such folder of pictures")
        super().__init__(context, path, root, files, name or path.resolve().stem, f"{tags} {self.pictures.resolve()}")

    @abstractmethod
    def lay_out(self, row: Any, show: Show, words: Words, pixels: Pixels) -> Sequence[Segment]:
        """The segments of a row. Raises `Unusable`."""

    def build(self, index: int, opener: Opener, pixels: Pixels, rng: np.random.Generator | None) -> Document:
        file, entry = self.samples[index]
        path = self.root / file
        jsonl = path.suffix == ".jsonl"
        content = parse_line(line_at(path, entry.record)) if jsonl else read_row(path, entry.record)
        if id_of(content) not in (None, entry.id):
            raise Unusable(CHANGED, entry.id)
        row = self._row(content)
        return self._document(entry.id, row, opener, pixels, rng, [])

    def _row(self, content: dict[str, Any]) -> Row:
        try:
            return self.row_type.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"]) or "row"
            raise Unusable("row does not fit the schema", f"key {key}: {first['msg']}") from None

    def _document(
        self,
        name: str,
        row: Row,
        opener: Opener,
        pixels: Pixels,
        rng: np.random.Generator | None,
        looked_at: list[str],
    ) -> Document:
        opened: list[Image.Image] = []

        def show(picture: PictureColumn) -> Image.Image:
            if isinstance(picture, Stored):
                picture = picture.data if picture.data is not None else picture.path or ""
            if isinstance(picture, bytes):
                opened.append(opener(picture, f"picture of {name}"))
            else:
                if not is_unicode(picture) or not picture or "\0" in picture:
                    raise Unusable("picture path is no file name", repr(picture))
                looked_at.append(str(self.pictures / picture))
                opened.append(opener(self.pictures / picture))
            return opened[-1]

        try:
            segments = self.lay_out(row, show, Words(self.context, self.tags, rng), pixels)
            return Document(name, tuple(segments))
        finally:
            for each in opened:
                each.close()

    def _measure(self, file: str) -> Measured:
        looked_at, entries = [file], []
        pixels = shapes_only(self.context.pixels)

        def outline(name: str, content: bytes | dict[str, Any]) -> list[Document]:
            row = self._row(parse_line(content) if isinstance(content, bytes) else content)
            return [self._document(name, row, peek_picture, pixels, None, looked_at)]

        try:
            for number, (place, content) in enumerate(rows_of(self.root / file)):
                name = f"{file}#{number}"
                with suppress(Unusable):
                    name = id_of(parse_line(content) if isinstance(content, bytes) else content) or name
                entries += measured(name, place, partial(outline, name, content))
        except Unusable as error:
            entries.append(Entry(file, 0, reason=error.reason, detail=str(error)))
        if not entries:
            entries.append(Entry(file, 0, reason="table is empty", detail=file))
        return Measured(entries, list(dict.fromkeys(looked_at)))


def find_tables(path: Path) -> list[str]:
    """Names of the tables of a source below its root (the file's folder when `path` is a file), sorted."""
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise UserError(f"{path}: a table ends in {' or '.join(SUFFIXES)}")
        return [path.name]
    files = sorted(each.name for each in path.iterdir() if each.suffix in SUFFIXES and each.is_file())
    if not files:
        raise UserError(f"{path}: no tables here; expected files that end in {' or '.join(SUFFIXES)}")
    return files


def rows_of(path: Path) -> Iterator[tuple[int, bytes | dict[str, Any]]]:
    """(place, content) of every row: the offset and bytes of a line, or the number and the columns of a row.

    Raises `Unusable` when the file does not read.
    """
    if path.suffix == ".parquet":
        table, number = open_parquet(path), 0
        for group in range(table.num_row_groups):
            for _ in range(table.metadata.row_group(group).num_rows):
                yield number, read_row(path, number)
                number += 1
        return
    try:
        with path.open("rb") as file:
            place = 0
            for line in file:
                if line.strip():
                    yield place, line
                place += len(line)
    except FileNotFoundError:
        raise Unusable("table vanished", str(path)) from None
    except OSError as error:
        raise Unusable("table cannot be read", f"{path} ({error.strerror})") from None


def parse_line(line: bytes) -> dict[str, Any]:
    """The columns of a line. Raises `Unusable`."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Unusable("line is not JSON", str(error)) from None
    if not isinstance(content, dict):
        raise Unusable("row does not fit the schema", "it is no object")
    return content


def id_of(content: dict[str, Any]) -> str | None:
    """The id that a row gives itself, if it is one."""
    given = content.get("id")
    usable = isinstance(given, str | int) and not isinstance(given, bool) and is_unicode(str(given))
    return str(given) if usable else None


def line_at(path: Path, place: int) -> bytes:
    """The line of a file that begins at an offset. Raises `Unusable` when the file is gone or shorter."""
    try:
        with path.open("rb") as file:
            file.seek(place)
            line = file.readline()
    except FileNotFoundError:
        raise Unusable("table vanished", str(path)) from None
    except OSError as error:
        raise Unusable("table cannot be read", f"{path} ({error.strerror})") from None
    if not line.strip():
        raise Unusable(CHANGED, str(path))
    return line
