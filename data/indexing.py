"""An index that is brought up to date, file by file: what `python -m data index` does with what it found.

The database is made beside the index (`building.sqlite`), committed every few seconds, and takes the index's place when
it is whole. Two tables more than an index needs say which file each passage and picture came from, in which state.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from data.documents import Document, Fault, read_documents, spoken
from data.progress import Progress
from unify_agent.errors import UserError
from unify_agent.files import digest, write_bytes
from unify_agent.interleave.segments import Unusable
from unify_agent.search.building import Writer
from unify_agent.search.index import DATABASE, FORMAT, PICTURES
from unify_agent.search.pictures import Cleaned, clean

BUILDING = "building.sqlite"
"""The database while it is made; a stopped command leaves it, the next one goes on with it."""
COMMIT_EVERY = 2.0  # seconds
FAULTS = 100  # of one file that are kept
LARGEST_PICTURE = 200 * 2**20  # bytes

_TABLES = """
CREATE TABLE inputs (file TEXT PRIMARY KEY, stamp TEXT NOT NULL, faults TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE made (file TEXT NOT NULL, doc INTEGER, image TEXT);
CREATE INDEX made_file ON made(file);
"""


@dataclass(frozen=True)
class Input:
    """A file to read. `name` is what sources and messages call it; `stamp` changes when it must be read again."""

    path: Path
    name: str
    stamp: str
    is_picture: bool
    lang: str = ""
    caption: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{'picture' if self.is_picture else 'text'}:{self.name}"


def update(inputs: list[Input], out: Path, faults: list[Fault]) -> dict[str, int]:
    """Makes `out` the index of `inputs`; returns counts. What can't be read is added to `faults`.

    Raises UserError for a folder that is something else, or that another command is working on.
    """
    known = _known(out)
    wanted = {each.key: each for each in inputs}
    gone = [key for key in known if key not in wanted]
    fresh = [each for each in inputs if known.get(each.key) != each.stamp]
    if gone or fresh or (out / BUILDING).is_file():
        with _building(out) as database:
            _apply(database, gone, fresh, out)
            if not database.execute("SELECT 1 FROM docs UNION ALL SELECT 1 FROM images LIMIT 1").fetchone():
                raise UserError(f"{_first_fault(database)}; nothing is left to index")
            _publish(database, out)
        _tidy(out)
    database = _open(out / DATABASE)
    try:
        for (kept,) in database.execute("SELECT faults FROM inputs WHERE faults != '[]' ORDER BY file"):
            faults += [Fault(**each) for each in json.loads(kept)]
        passages, pictures = (database.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("docs", "images"))
    finally:
        database.close()
    return {
        "passages": passages, "pictures": pictures, "files read": len(fresh),
        "as before": len(inputs) - len(fresh), "taken out": len(gone), "skipped": len(faults),
    }  # fmt: skip


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=1.0, isolation_level=None)


def _known(out: Path) -> dict[str, str]:
    """Stamps of the files that are in the index, or in the one that a stopped command left."""
    path = next((each for each in (out / BUILDING, out / DATABASE) if each.is_file()), None)
    if path is None:
        there = list(out.iterdir()) if out.is_dir() else []
        if any(n.name != PICTURES and not n.name.startswith(".") for n in there) or (out.exists() and not out.is_dir()):
            raise UserError(f"{out}: exists and is not an index; choose another --out or remove it")
        return {}
    database = _open(path)
    try:
        if database.execute("PRAGMA user_version").fetchone()[0] != FORMAT:
            raise UserError(f"{out}: an index of another format; remove it and build it again")
        return dict(database.execute("SELECT file, stamp FROM inputs"))
    except sqlite3.OperationalError as error:
        raise UserError(_busy(out, error) or f"{out}: was not made by this command; choose another --out") from None
    except sqlite3.DatabaseError as error:
        raise UserError(f"{path}: not a readable index ({error}); remove it and build it again") from None
    finally:
        database.close()


def _busy(out: Path, error: sqlite3.OperationalError) -> str | None:
    return f"{out}: another command is working on this index; wait for it" if "locked" in str(error) else None


@contextlib.contextmanager
def _building(out: Path) -> Iterator[sqlite3.Connection]:
    """The database that is being made, locked for this command."""
    (out / PICTURES).mkdir(parents=True, exist_ok=True)
    path, start = out / BUILDING, out / f".{BUILDING}.tmp"
    if not path.is_file():
        start.unlink(missing_ok=True)
        if (out / DATABASE).is_file():
            shutil.copyfile(out / DATABASE, start)
        else:
            database = _open(start)
            Writer.create(database)
            database.executescript(_TABLES)
            database.close()
        os.replace(start, path)
    database = _open(path)
    try:
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("BEGIN EXCLUSIVE")
        database.execute("COMMIT")
        yield database
    except sqlite3.OperationalError as error:
        if "full" in str(error):
            raise UserError(f"{out}: no room on the disk; make some and run the same command again") from None
        busy = _busy(out, error)
        if busy is None:
            raise
        raise UserError(busy) from None
    finally:
        database.close()


def _apply(database: sqlite3.Connection, gone: list[str], fresh: list[Input], out: Path) -> None:
    """Takes out and adds, committing every few seconds: what is committed is not done again."""
    writer = Writer(database)
    started = time.monotonic()
    database.execute("BEGIN")
    for key in gone:
        _remove(database, writer, key)
        database.execute("DELETE FROM inputs WHERE file = ?", (key,))
    with Progress("indexing", len(fresh), "files") as progress, ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for each, found in _read(fresh, pool):
            _remove(database, writer, each.key)
            faults = _add(database, writer, each, found, out)
            kept = json.dumps([asdict(fault) for fault in faults], ensure_ascii=False)
            stamp = "" if any(fault.passing for fault in faults) else each.stamp
            database.execute("INSERT OR REPLACE INTO inputs VALUES (?, ?, ?)", (each.key, stamp, kept))
            progress.advance()
            if time.monotonic() - started > COMMIT_EVERY:
                database.execute("COMMIT")
                started = time.monotonic()
                database.execute("BEGIN")
    database.execute("COMMIT")


Found = Cleaned | Fault | Iterator[Document | Fault]


def _read(fresh: list[Input], pool: ThreadPoolExecutor) -> Iterator[tuple[Input, Found]]:
    """Each file with what is in it; pictures are decoded several at once."""
    for each in (each for each in fresh if not each.is_picture):
        yield each, read_documents(each.path, each.name, each.lang)
    pictures = iter([each for each in fresh if each.is_picture])
    while batch := list(islice(pictures, 16)):
        yield from zip(batch, pool.map(_decode, batch), strict=True)


def _decode(each: Input) -> Cleaned | Fault:
    try:
        if each.path.stat().st_size > LARGEST_PICTURE:
            return Fault(each.name, f"larger than {LARGEST_PICTURE >> 20} MB")
        return clean(each.path.read_bytes(), each.name)
    except Unusable as error:
        return Fault(each.name, error.reason)
    except OSError as error:
        return Fault(each.name, f"cannot be read ({error.strerror})", passing=True)


def _add(database: sqlite3.Connection, writer: Writer, each: Input, found: Found, out: Path) -> list[Fault]:
    if isinstance(found, Fault):
        return [found]
    if isinstance(found, Cleaned):
        if not (out / PICTURES / found.name).is_file():
            write_bytes(out / PICTURES / found.name, found.content)
        image = digest(each.name)[:16]
        titles = each.caption.get("titles") or {"": spoken(each.path.stem)}
        source = each.caption.get("source") or each.name
        writer.add_image(
            image, found.name, (found.width, found.height), titles, source, each.caption.get("licence", "")
        )
        database.execute("INSERT INTO made VALUES (?, NULL, ?)", (each.key, image))
        return []
    faults: list[Fault] = []
    for part in found:
        if isinstance(part, Fault):
            faults.append(part)
            continue
        number = writer.add_document(part.title, part.text, part.lang, part.source)
        database.execute("INSERT INTO made VALUES (?, ?, NULL)", (each.key, number))
    if len(faults) > FAULTS:
        faults[FAULTS:] = [Fault(each.name, f"{len(faults) - FAULTS} more lines like these")]
    return faults


def _remove(database: sqlite3.Connection, writer: Writer, key: str) -> None:
    for number, image in database.execute("SELECT doc, image FROM made WHERE file = ?", (key,)).fetchall():
        if image is None:
            writer.remove_document(number)
        else:
            writer.remove_image(image)
    database.execute("DELETE FROM made WHERE file = ?", (key,))


def _first_fault(database: sqlite3.Connection) -> str:
    row = database.execute("SELECT faults FROM inputs WHERE faults != '[]' ORDER BY file").fetchone()
    fault = Fault(**json.loads(row[0])[0]) if row else Fault("--docs, --images", "no file")
    return f"{fault.where}: {fault.reason}"


def _publish(database: sqlite3.Connection, out: Path) -> None:
    """The finished database takes the place of the old one in one step."""
    Writer(database).optimise()
    ready = out / f".{DATABASE}.tmp"
    ready.unlink(missing_ok=True)
    database.execute("VACUUM INTO ?", (str(ready),))
    with ready.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(ready, out / DATABASE)


def _tidy(out: Path) -> None:
    """Removes what only the making needed, and pictures that the index no longer shows."""
    (out / BUILDING).unlink(missing_ok=True)
    database = _open(out / DATABASE)
    shown = {file for (file,) in database.execute("SELECT file FROM images")}
    database.close()
    for each in (out / PICTURES).iterdir():
        if each.name not in shown:
            each.unlink()
