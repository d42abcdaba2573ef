"""The length index: how many slots and visible pairs each sample has, known before anything is decoded.

One JSON file for a source, in a cache folder; its name says what lengths depend on (the folder, the tokenizer, the
transforms, the preset) and the version of this index. A file of records is measured anew when it, or a picture or
folder that was looked at for it, has another size or time; when only the time of the records is another, their content
decides. Several processes measure many files, and of several ranks one measures while the others wait for its result.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from unify_agent.errors import UserError
from unify_agent.files import digest, write_json
from unify_agent.interleave.layout import Part

VERSION = 3
PARALLEL_FROM = 2000
"""Fewer new files than this are measured in this process: starting others costs seconds."""

HASHED_BYTES = 16 * 1024 * 1024
"""Larger files of records are known by size and time alone."""

RACE_NS = 2_000_000_000
"""A file written this shortly before it was measured may change without another time, so its content is compared."""

REPORT_SECONDS = 10.0
"""Between two lines of progress where there is no terminal."""

STAT_THREADS = 16
"""On a network file system a look at a file takes long and little of the processor."""


@dataclass(frozen=True)
class Entry:
    """One document of a sample, or what takes the sample's place when it cannot be used (`reason` is set then)."""

    id: str
    """Of the sample, which in some layouts is trained as several documents."""
    record: int
    """Its position in its file."""
    slots: int = 0
    pairs: int = 0
    reason: str = ""
    detail: str = ""
    part: Part = "whole"

    @property
    def name(self) -> str:
        """Of the document: unique where ids are, since no part's name has a separator."""
        return self.id if self.part == "whole" else f"{self.id}/{self.part}"


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
    kept = _kept(root, names, _read(cache))
    if len(kept) < len(set(names)):
        with _one_at_a_time(cache):
            kept = _kept(root, names, _read(cache))  # another process may have measured meanwhile
            stale = [name for name in names if name not in kept]
            for name, found in zip(stale, _measured(stale, partial(_measure, root, measure), workers), strict=True):
                kept[name] = found
            if cache is not None:
                write_json(cache, {"version": VERSION, "files": kept}, indent=None)
    return {name: [Entry(**entry) for entry in kept[name]["entries"]] for name in names}


def _measure(root: Path, measure: Measure, name: str) -> dict[str, Any]:
    """What the cache keeps of one file."""
    began, size, content = time.time_ns(), stamp(root, name), _hash(root / name)
    measured = measure(name)
    return {
        "measured": began,
        "stamp": size,
        "hash": content,
        "looked_at": [[path, stamp(root, path)] for path in measured.looked_at if path != name],
        "entries": [asdict(entry) for entry in measured.entries],
    }


def _kept(root: Path, names: Sequence[str], known: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those of the known files that are what they were."""

    def same(name: str) -> bool:
        old, now = known[name], stamp(root, name)
        if now is None or old["stamp"] is None or now[0] != old["stamp"][0]:
            return False
        settled = now == old["stamp"] and (old["hash"] is None or now[1] < old["measured"] - RACE_NS)
        if not settled and (old["hash"] is None or _hash(root / name) != old["hash"]):
            return False
        return all(stamp(root, path) == seen for path, seen in old["looked_at"])

    candidates = [name for name in dict.fromkeys(names) if name in known]
    with ThreadPoolExecutor(STAT_THREADS) as pool:
        return {name: known[name] for name, kept in zip(candidates, pool.map(same, candidates), strict=True) if kept}


def _hash(path: Path) -> str | None:
    """Of the content; None for a file that is large or not there."""
    try:
        return digest(path.read_bytes())[:16] if path.stat().st_size <= HASHED_BYTES else None
    except OSError:
        return None


@contextmanager
def _one_at_a_time(cache: Path | None) -> Iterator[None]:
    if cache is None:
        yield
        return
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(cache.parent, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{cache.parent}: no length index can be kept here ({error.strerror})") from None
    try:
        with suppress(OSError):  # some network file systems have no locks; then every process measures
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _measured(
    names: Sequence[str], measure: Callable[[str], dict[str, Any]], workers: int | None
) -> Iterator[dict[str, Any]]:
    workers = workers if workers is not None else os.cpu_count() or 1
    if len(names) < PARALLEL_FROM or workers < 2:
        yield from _followed(map(measure, names), len(names))
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from _followed(pool.map(measure, names, chunksize=64), len(names))


def _followed(results: Iterable[dict[str, Any]], total: int) -> Iterator[dict[str, Any]]:
    """The results as they come; many are announced by a bar on a terminal, by plain lines elsewhere."""
    if total >= PARALLEL_FROM and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        yield from track(results, "measuring lengths", total, console=Console(stderr=True))
        return
    said = time.monotonic()
    for number, result in enumerate(results, 1):
        if time.monotonic() - said >= REPORT_SECONDS:
            said = time.monotonic()
            print(f"measuring lengths: {number:,} of {total:,} files", file=sys.stderr, flush=True)
        yield result


def _read(cache: Path | None) -> dict[str, dict[str, Any]]:
    if cache is None:
        return {}
    try:
        content = json.loads(cache.read_text(encoding="utf-8"))
        return content["files"] if content["version"] == VERSION else {}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UserError(f"{cache}: the length index cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        return {}  # a cache is never worth an error: it is built again
