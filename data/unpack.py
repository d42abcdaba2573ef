"""`python -m data unpack IN OUT`: the files that `python -m data pack` packed, byte for byte.

A file that is there with the same content is left alone, so an interrupted command goes on; one with another content
is an error, never overwritten.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from data.progress import Progress
from unify_agent.datasets.parquet import open_parquet, shards
from unify_agent.errors import UserError
from unify_agent.files import write_bytes
from unify_agent.interleave.segments import Unusable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m data unpack`."""
    parser.add_argument("packed", type=Path, metavar="IN", help="folder that `python -m data pack` wrote")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to unpack into; an unfinished one is continued")


def main(args: argparse.Namespace) -> None:
    """`python -m data unpack`."""
    print(f"{args.out}: {unpack(args.packed, args.out)} files")


def unpack(packed: Path, out: Path) -> int:
    """Write every file of a pack below `out`; returns how many there are."""
    if not packed.is_dir():
        raise UserError(f"{packed}: no such folder of packed data")
    names = shards(packed)
    tables = {name: _open(packed / name) for kind in names.values() for name in kind}
    total = sum(table.metadata.num_rows for table in tables.values())
    files: set[str] = set()
    with Progress("unpacking", total, "rows") as progress:
        for name, data in _files(names, tables, progress):
            _put(out, name, data)
            files.add(name)
    return len(files)


def _files(
    names: dict[str, list[str]], tables: dict[str, Any], progress: Progress
) -> Iterator[tuple[str, bytes | None]]:
    """(name, content) of every file; a JSON file is put together from its records."""
    file = ""
    pieces: list[str] = []
    for row in _rows(names["trajectories"], tables, progress):
        if row["record"] is not None:
            if row["file"] != file:
                if pieces:
                    yield file, "".join(pieces).encode()
                file, pieces = row["file"], []
            pieces += [row["before"], row["record"], row["after"]]
        for each in (*row["references"], row["target"], *row["files"]):
            if each is not None:
                yield each["path"], each["bytes"]
    if pieces:
        yield file, "".join(pieces).encode()
    for row in _rows(names["other"], tables, progress):
        yield row["path"], row["bytes"]


def _rows(names: list[str], tables: dict[str, Any], progress: Progress) -> Iterator[dict[str, Any]]:
    for name in names:
        for group in range(tables[name].num_row_groups):
            rows = tables[name].read_row_group(group).to_pylist()
            yield from rows
            progress.advance(len(rows))


def _put(out: Path, name: str, data: bytes | None) -> None:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        raise UserError(f"{name}: the pack holds a name that leads out of its folder; it was not written by us")
    path = out / name
    if data is None:
        path.mkdir(parents=True, exist_ok=True)
    elif not path.is_file():
        write_bytes(path, data)
    elif path.read_bytes() != data:
        raise UserError(f"{path}: is there with another content; unpack into another folder")


def _open(path: Path) -> Any:
    try:
        return open_parquet(path)
    except Unusable as error:
        raise UserError(f"{error}; pack the folder again") from None
