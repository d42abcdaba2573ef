"""`python -m data pack ROOT OUT`: a folder of trajectories as sharded parquet, without losing a byte.

The shards follow from the files' names and sizes alone. Each appears whole, so an interrupted command goes on at the
first that is missing. `python -m data unpack` gives every file back.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from data.progress import Progress
from unify_agent.datasets.folder import find_trajectories, folder_of, pictures_of, sample_id
from unify_agent.datasets.parquet import FORMAT, MANIFEST
from unify_agent.datasets.records import is_file_name, records_in, split_records
from unify_agent.errors import UserError
from unify_agent.files import digest, read_json, write_json
from unify_agent.interleave.segments import Unusable
from unify_agent.interleave.transforms import peek_picture

SHARD_BYTES = 256 * 2**20
GROUP_BYTES = 2**20
"""Content of a row group: what reading one sample costs, if the sample itself is not larger."""
OTHER = pa.schema([("path", pa.string()), ("bytes", pa.binary())])

Row = TypeVar("Row")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m data pack`."""
    parser.add_argument("root", type=Path, metavar="ROOT", help="folder of trajectories in the release's layout")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the shards; an unfinished one is continued")
    parser.add_argument("--shard-mb", type=int, default=SHARD_BYTES >> 20, help="content of a shard (default 256)")


def main(args: argparse.Namespace) -> None:
    """`python -m data pack`."""
    if args.shard_mb < 1:
        raise UserError(f"--shard-mb {args.shard_mb}: at least 1")
    counts = pack(args.root, args.out, args.shard_mb << 20)
    print(f"{args.out}: " + ", ".join(f"{number} {what}" for what, number in counts.items()))


@dataclass(frozen=True)
class Item:
    """A row to be: a record (or a JSON file that holds none) and its files, named relative to the root."""

    id: str
    file: str
    number: int | None
    references: tuple[str, ...]
    target: str | None
    files: tuple[str, ...]
    size: int


@dataclass(frozen=True)
class Plan:
    """What goes into which shard. `fingerprint` changes with the name, size or time of any file."""

    items: list[list[Item]]
    other: list[list[tuple[str, int]]]
    fingerprint: str

    @property
    def names(self) -> dict[str, list[str]]:
        """The shards' names by kind."""
        numbers = {"trajectories": len(self.items), "other": len(self.other)}
        return {
            kind: [f"{kind}-{number:05d}-of-{total:05d}.parquet" for number in range(total)]
            for kind, total in numbers.items()
        }

    @property
    def counts(self) -> dict[str, int]:
        records = sum(item.number is not None for shard in self.items for item in shard)
        return {
            "records": records,
            "unreadable trajectory files": sum(len(shard) for shard in self.items) - records,
            "other files": sum(len(shard) for shard in self.other),
            "shards": len(self.items) + len(self.other),
        }


def pack(root: Path, out: Path, shard_bytes: int = SHARD_BYTES) -> dict[str, int]:
    """Write the shards that `out` lacks; returns counts. Raises UserError for a folder that does not fit."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder of trajectories")
    if out.resolve().is_relative_to(root.resolve()):
        raise UserError(f"{out}: lies inside {root}; choose an OUT outside of it")
    plan = make_plan(root, shard_bytes)
    manifest = {"format": FORMAT, "fingerprint": plan.fingerprint, "counts": plan.counts, "shards": plan.names}
    if (out / MANIFEST).is_file():
        if read_json(out / MANIFEST, "list of shards") != manifest:
            raise UserError(f"{out}: holds shards of other data, or of {root} before it changed; remove it first")
    elif out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out}: exists and holds no shards; choose another folder")
    else:
        write_json(out / MANIFEST, manifest)
    for left in out.glob(".*.tmp"):  # of a run that was killed
        left.unlink()
    schema, reader = _schema(), _Reader(root)
    total = sum(map(len, plan.items)) + sum(map(len, plan.other))
    with Progress("packing", total, "rows") as progress, ThreadPoolExecutor(8) as threads:
        for name, items in zip(plan.names["trajectories"], plan.items, strict=True):
            _write(out / name, schema, items, lambda item: item.size, reader.row, threads, progress)
        for name, files in zip(plan.names["other"], plan.other, strict=True):
            _write(out / name, OTHER, files, lambda file: file[1], reader.other, threads, progress)
    return plan.counts


def make_plan(root: Path, shard_bytes: int) -> Plan:
    """Read every trajectory file, look at every other, and deal them into shards."""
    names = find_trajectories(root)
    if not names:
        raise UserError(f"{root}: no trajectories here; expected CATEGORY/traj/*_trajectory.json")
    everything = _walk(root)
    below: dict[str, list[str]] = {}
    for name in everything:
        for parent in Path(name).parents:
            below.setdefault(parent.as_posix(), []).append(name)
    items: list[Item] = []
    with Progress("reading", len(names), "trajectory files") as progress:
        for name in names:
            items += _items(root, name, everything, below)
            progress.advance()
    claimed = {name for item in items for name in (item.file, item.target, *item.references, *item.files)}
    other = [(name, size) for name, (size, _) in everything.items() if name not in claimed]
    stamps = "\n".join(f"{name}\0{size}\0{time}" for name, (size, time) in everything.items())
    return Plan(
        _dealt(items, lambda item: item.size, shard_bytes),
        _dealt(other, lambda file: file[1], shard_bytes),
        digest(stamps, str(shard_bytes))[:16],
    )


def _walk(root: Path) -> dict[str, tuple[int, int]]:
    """(size, time) of every file below the root by relative name, sorted; an empty folder ends in a slash."""
    found = {}
    for folder, folders, files in os.walk(root, followlinks=True):
        place = Path(folder).relative_to(root)
        for name in files:
            status = os.stat(os.path.join(folder, name))
            found[(place / name).as_posix()] = (status.st_size, status.st_mtime_ns)
        if not folders and not files and place != Path("."):
            found[f"{place.as_posix()}/"] = (0, 0)
    for name in found:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UserError(f"{root}: the name {name!r} is not UTF-8; rename it") from None
    return dict(sorted(found.items()))


def _items(
    root: Path, file: str, everything: dict[str, tuple[int, int]], below: dict[str, list[str]]
) -> Iterator[Item]:
    data = (root / file).read_bytes()
    folder = folder_of(file)
    try:
        records = records_in(data, file)
        pieces = split_records(data.decode())
    except (Unusable, UnicodeDecodeError, ValueError):
        yield Item(file, file, None, (), None, (file,), len(data))
        return
    for number, record in enumerate(records):
        name = f"{file}#{number}" if len(records) > 1 else file
        references: tuple[str, ...] = ()
        target, files = None, []
        if not isinstance(record, Unusable) and is_file_name(record.ip_index):
            name = sample_id(folder, record.ip_index)
            place = f"{'' if folder == '.' else folder + '/'}intermediate/{record.ip_index}"
            try:
                *shown, target = (Path(each).as_posix() for each in pictures_of(root, folder, record.ip_index))
                references = tuple(shown)
            except Unusable:
                pass  # its references are among its other files
            files = [each for each in below.get(place, ()) if each not in references]
        taken = [*references, *files, *([target] if target else [])]
        size = sum(everything[each][0] for each in taken) + len(pieces[number][1])
        yield Item(name, file, number, references, target, tuple(files), size)


def _dealt(rows: Sequence[Row], size: Callable[[Row], int], most: int) -> list[list[Row]]:
    """Rows in order, cut where `most` bytes would be exceeded; a row alone may exceed it."""
    dealt: list[list[Row]] = []
    room = 0
    for row in rows:
        if not dealt or size(row) > room:
            dealt.append([])
            room = most
        dealt[-1].append(row)
        room -= size(row)
    return dealt


class _Reader:
    """Reads the rows of a plan from the folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pieces = lru_cache(maxsize=8)(self._pieces)

    def row(self, item: Item) -> dict[str, Any]:
        before, record, after = self.pieces(item.file)[item.number] if item.number is not None else ("", None, "")
        shown = [*item.references, *([item.target] if item.target else [])]
        pictures = [self.other((name, 0)) for name in shown]
        return {
            "id": item.id,
            "file": item.file,
            "number": item.number or 0,
            "before": before,
            "record": record,
            "after": after,
            "references": pictures[: len(item.references)],
            "target": pictures[-1] if item.target else None,
            "sizes": [_size(picture) for picture in pictures],
            "files": [self.other((name, 0)) for name in item.files],
        }

    def other(self, file: tuple[str, int]) -> dict[str, Any]:
        name = file[0]
        try:
            return {"path": name, "bytes": None if name.endswith("/") else (self.root / name).read_bytes()}
        except FileNotFoundError:
            raise UserError(f"{self.root / name}: vanished while it was packed; run the command again") from None

    def _pieces(self, file: str) -> list[tuple[str, str, str]]:
        return split_records((self.root / file).read_bytes().decode())


def _size(picture: dict[str, Any]) -> list[int]:
    """[width, height], empty for a picture that does not read."""
    try:
        with peek_picture(picture["bytes"], picture["path"]) as peeked:
            return list(peeked.size)
    except Unusable:
        return []


def _schema() -> pa.Schema:
    """The columns of a trajectory shard, with what `datasets` needs to know that pictures are pictures."""
    from datasets import Features, Image, List, Value

    text, file = Value("string"), {"bytes": Value("binary"), "path": Value("string")}
    return Features(
        {
            "id": text,
            "file": text,
            "number": Value("int64"),
            "before": text,
            "record": text,
            "after": text,
            "references": List(Image()),
            "target": Image(),
            "sizes": List(List(Value("int32"))),
            "files": List(file),
        }
    ).arrow_schema


def _write(
    path: Path,
    schema: pa.Schema,
    rows: Sequence[Row],
    size: Callable[[Row], int],
    read: Callable[[Row], dict[str, Any]],
    threads: ThreadPoolExecutor,
    progress: Progress,
) -> None:
    """Write one shard, unless it is there. Pictures are compressed already, so only texts are."""
    if path.is_file():
        progress.advance(len(rows))
        return
    work = path.with_name(f".{path.name}.tmp")
    with pq.ParquetWriter(
        work, schema, compression="zstd", use_dictionary=False, write_statistics=False
    ) as writer:
        for group in _dealt(rows, size, GROUP_BYTES):
            table = pa.Table.from_pylist(list(threads.map(read, group)), schema=schema)
            writer.write_table(table, row_group_size=len(group))
            progress.advance(len(group))
    with work.open("rb") as written:
        os.fsync(written.fileno())
    os.replace(work, path)
