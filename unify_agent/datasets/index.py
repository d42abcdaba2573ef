"""The length index: how many slots and visible pairs each sample has, known before anything is decoded.

One JSON file for a source, in a cache folder. An entry is kept as long as every file that it looked at has
the same size and time, so a changed corpus costs only what changed. Several processes measure many files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from unify_agent.errors import UserError
from unify_agent.files import write_json

VERSION = 1
PARALLEL_FROM = 2000
"""Fewer new files than this are measured in this process: starting others costs seconds."""


@dataclass(frozen=True)
class Entry:
    """One sample, or what takes its place when it cannot be used (`reason` is set then)."""

    id: str
    record: int
    """Its position in its file."""
    slots: int = 0
    pairs: int = 0
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Measured:
    """What a file holds, and every file or folder that was looked at to know."""

    entries: list[Entry]
    looked_at: list[str]


Measure = Callable[[str], Measured]
"""Measures one file, named relative to the root. Must be picklable."""


def stamp(root: Path, name: str) -> list[int] | None:
    """[size, modification time in ns] of a file or folder, None when it is not there."""
    try:
        status = os.stat(root / name)
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def build_index(
    root: Path, names: Sequence[str], measure: Measure, *, cache: Path | None, workers: int | None = None
) -> dict[str, list[Entry]]:
    """Entries by file name, measured anew only where `cache` (a file; None: no cache) is out of date."""
    known = _read(cache)
    index: dict[str, list[Entry]] = {}
    kept: dict[str, dict] = {}
    stale: list[str] = []
    for name in names:
        old = known.get(name)
        if old is not None and all(stamp(root, path) == seen for path, seen in old["looked_at"]):
            index[name] = [Entry(**entry) for entry in old["entries"]]
            kept[name] = old
        else:
            stale.append(name)
    for name, measured in zip(stale, _measured(stale, measure, workers), strict=True):
        index[name] = measured.entries
        kept[name] = {
            "looked_at": [[path, stamp(root, path)] for path in measured.looked_at],
            "entries": [asdict(entry) for entry in measured.entries],
        }
    if cache is not None and (stale or kept.keys() != known.keys()):
        write_json(cache, {"version": VERSION, "files": kept}, indent=None)
    return {name: index[name] for name in names}


def _measured(names: Sequence[str], measure: Measure, workers: int | None) -> Iterable[Measured]:
    workers = workers if workers is not None else os.cpu_count() or 1
    if len(names) < PARALLEL_FROM or workers < 2:
        yield from map(measure, names)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(measure, names, chunksize=64)


def _read(cache: Path | None) -> dict[str, dict]:
    if cache is None:
        return {}
    try:
        content = json.loads(cache.read_text(encoding="utf-8"))
        return content["files"] if content["version"] == VERSION else {}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"{cache}: the length index cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        return {}  # a cache is never worth an error: it is built again
