"""Trajectories in parquet: a few large files for a cluster's file system instead of millions of small ones.

    OUT/pack.json                              what was packed, and the names of all shards
        trajectories-00000-of-00012.parquet    a row for each record, its pictures inside
        other-00000-of-00001.parquet           every other file, so that unpacking gives back all of it

Columns of a trajectory shard: `id`; `file`, `number`: the JSON file and the record's position in it; `before`,
`record`, `after`: the record's JSON and the text around it; `references`, `target`: pictures as `datasets` knows them
({bytes, path}); `sizes`: their widths and heights, so that lengths are known without reading them; `files`: the
sample's other files. `datasets.load_dataset("parquet", data_files="OUT/trajectories-*")` reads them too. Here pyarrow
reads row groups of about a mebibyte in any order, without the copy of everything that `datasets` makes first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from unify_agent.datasets.index import Entry, Measured
from unify_agent.datasets.indexed import CHANGED, Opener, measured, shapes_only
from unify_agent.datasets.records import RecordSource, is_file_name, read_record, records_in
from unify_agent.datasets.trajectory import Trajectory
from unify_agent.errors import UserError
from unify_agent.files import read_json
from unify_agent.interleave.layout import Part, Pixels
from unify_agent.interleave.segments import Document, Unusable
from unify_agent.interleave.transforms import peek_picture

MANIFEST = "pack.json"
FORMAT = 1
COLUMNS = ["id", "record", "references", "target"]
"""What a sample is built from."""
LIGHT = ["id", "record", "sizes", "references.list.element.path", "target.path"]
"""What its length is measured from."""


class PackedTrajectorySource(RecordSource):
    """Trajectories that `python -m data pack` wrote. `path`: its folder, or one shard; the options are
    `RecordSource`'s."""

    @staticmethod
    def find(path: Path) -> list[str]:
        if not path.exists():
            raise UserError(f"{path}: no such folder or file of packed trajectories")
        return shards(path)["trajectories"] if path.is_dir() else [path.name]

    def record(self, index: int) -> Trajectory:
        """The record of a sample. Raises `Unusable`."""
        file, entry = self.samples[index]
        return _record(read_row(self.root / file, entry.record, ("record",)), entry.id)

    def build(self, index: int, opener: Opener, pixels: Pixels, rng: np.random.Generator | None) -> Document:
        file, entry = self.samples[index]
        row = read_row(self.root / file, entry.record, tuple(COLUMNS))
        if row["id"] != entry.id:
            raise Unusable(CHANGED, entry.id)
        return self._document(entry.name, row, opener, pixels, entry.part, rng)

    def _document(
        self,
        name: str,
        row: dict[str, Any],
        opener: Opener,
        pixels: Pixels,
        part: Part,
        rng: np.random.Generator | None = None,
    ) -> Document:
        record, target = _record(row, name), _target(row, name)
        references = [opener(each["bytes"], each["path"]) for each in row["references"]]
        drawn = opener(target["bytes"], target["path"]) if part != "agent" else None
        return self._laid_out(name, record, references, drawn, pixels, part, rng)

    def _measure(self, file: str) -> Measured:
        path, entries = self.root / file, []
        number = 0
        try:
            for row in _light_rows(path):
                entries += measured(row["id"], number, partial(self._outlined, path, number, row), self.parts)
                number += 1
        except Unusable as error:  # what was read before is kept
            entries.append(Entry(file, number, reason=error.reason, detail=str(error)))
        return Measured(entries, [file])

    def _outlined(self, path: Path, number: int, row: dict[str, Any]) -> list[Document]:
        if row["record"] is None:
            whole = read_row(path, number, ("files",))["files"][0]
            records_in(whole["bytes"], whole["path"])
            raise Unusable("trajectory file is not JSON", whole["path"])
        name, record, pixels = row["id"], _record(row, row["id"]), shapes_only(self.context.pixels)
        if not is_file_name(record.ip_index):
            raise Unusable("ip_index is no file name", repr(record.ip_index))
        if not all(row["sizes"]):  # a picture that was unreadable when it was packed: read it, to say why
            read = read_row(path, number, tuple(COLUMNS))
            return [self._document(name, read, peek_picture, pixels, part) for part in self.parts]
        _target(row, name)
        *references, target = [cast(Image.Image, _Sized((width, height))) for width, height in row["sizes"]]
        return [self._laid_out(name, record, references, target, pixels, part) for part in self.parts]


@dataclass(frozen=True)
class _Sized:
    """Stands for a picture of which only the size is asked."""

    size: tuple[int, int]


def shards(folder: Path) -> dict[str, list[str]]:
    """Names of the shards in a packed folder by kind. Raises UserError when it is none or is not complete."""
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder}: not packed data ({MANIFEST} is missing); make it: python -m data pack ROOT OUT")
    manifest = read_json(folder / MANIFEST, "list of shards")
    names = manifest.get("shards") if isinstance(manifest, dict) and manifest.get("format") == FORMAT else None
    if not isinstance(names, dict) or set(names) != {"trajectories", "other"}:
        raise UserError(f"{folder / MANIFEST}: not written by this version of `python -m data pack`")
    missing = [name for kind in names.values() for name in kind if not (folder / name).is_file()]
    if missing:
        total = sum(len(kind) for kind in names.values())
        raise UserError(
            f"{folder}: {len(missing)} of {total} shards are missing ({missing[0]} first); "
            "run the same `python -m data pack` again to finish it"
        )
    return names


def _light_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a shard without its pictures. Raises `Unusable` when it is none, or where it does not read."""
    shard = open_parquet(path)
    missing = {"id", *COLUMNS, "sizes"} - set(shard.schema_arrow.names)
    if missing:
        raise Unusable("not packed trajectories", f"{path} has no column {sorted(missing)[0]}")
    for group in range(shard.num_row_groups):
        try:
            rows = shard.read_row_group(group, columns=LIGHT, use_threads=False).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise Unusable("parquet file does not read", f"{path} ({error})") from None
        yield from rows


def is_packed(path: Path) -> bool:
    """Whether a path is a folder of shards, or one shard."""
    return path.suffix == ".parquet" or (path / MANIFEST).is_file()


def open_parquet(path: Path) -> pq.ParquetFile:
    """An open parquet file, kept open. Raises `Unusable` when it is none any more."""
    try:
        return _opened(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        raise Unusable("parquet file vanished", str(path)) from None
    except (OSError, pa.ArrowException) as error:
        raise Unusable("not a parquet file", f"{path} ({error})") from None


def read_row(path: Path, row: int, columns: tuple[str, ...] | None = None) -> dict[str, Any]:
    """One row of a parquet file; the row group that holds it is kept for the next call."""
    shard = open_parquet(path)
    for group in range(shard.num_row_groups):
        rows = shard.metadata.row_group(group).num_rows
        if row < rows:
            try:
                table = _group(path, path.stat().st_mtime_ns, group, columns)
                return table.slice(row, 1).to_pylist()[0]
            except (OSError, pa.ArrowException) as error:
                raise Unusable("parquet file does not read", f"{path} ({error})") from None
        row -= rows
    raise Unusable(CHANGED, str(path))


@lru_cache(maxsize=64)
def _opened(path: Path, modified: int) -> pq.ParquetFile:
    return pq.ParquetFile(path, memory_map=True)


@lru_cache(maxsize=2)
def _group(path: Path, modified: int, group: int, columns: tuple[str, ...] | None) -> pa.Table:
    shard = _opened(path, modified)
    return shard.read_row_group(group, columns=list(columns) if columns else None, use_threads=False)


def _record(row: dict[str, Any], name: str) -> Trajectory:
    if row["record"] is None:
        raise Unusable("trajectory file is not JSON", name)
    return read_record(json.loads(row["record"]), name)


def _target(row: dict[str, Any], name: str) -> dict[str, Any]:
    if row["target"] is None:
        raise Unusable("no target picture", name)
    return row["target"]
