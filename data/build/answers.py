"""Where a run keeps what it was answered and what it spent: a log of calls whose memory does not grow with it.

One SQLite file in write-ahead mode. Whoever appends waits until the record is on the disk; what several threads append
at the same time goes there with one flush. One process at a time writes a file.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from unify_agent.errors import UserError

FORMAT = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS failures (key BLOB PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS spent (service TEXT PRIMARY KEY, calls INTEGER NOT NULL, failures INTEGER NOT NULL,
    prompt INTEGER NOT NULL, completion INTEGER NOT NULL, pictures INTEGER NOT NULL, money REAL NOT NULL);
"""
_KEEP = "INSERT OR REPLACE INTO {} VALUES (?, ?)"
_COUNT = """
INSERT INTO spent VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (service) DO UPDATE SET calls = calls + excluded.calls,
    failures = failures + excluded.failures, prompt = prompt + excluded.prompt,
    completion = completion + excluded.completion, pictures = pictures + excluded.pictures,
    money = money + excluded.money
"""


@dataclass
class Total:
    """What a service took: attempts over the wire, those that failed, tokens, pictures, money."""

    calls: int = 0
    failures: int = 0
    prompt: int = 0
    completion: int = 0
    pictures: int = 0
    money: float = 0.0

    def add(self, other: Total) -> None:
        """Adds another to this one."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def values(self) -> tuple[float, ...]:
        """The figures, in order."""
        return tuple(getattr(self, each.name) for each in fields(self))


class _Maybe:
    """Which keys may be there: a Bloom filter of fixed size, so that a question that was never asked costs no reading.

    Keys are digests, so their own bytes serve as hashes. With 1.5 million of them one of some 1,500 others looks known.
    """

    SIZE = 1 << 22

    def __init__(self) -> None:
        self._bits = bytearray(self.SIZE)

    def _places(self, key: bytes) -> Iterator[tuple[int, int]]:
        for at in range(0, 16, 4):
            place = int.from_bytes(key[at : at + 4], "little")
            yield (place >> 3) % self.SIZE, 1 << (place & 7)

    def add(self, key: bytes) -> None:
        for place, bit in self._places(key):
            self._bits[place] |= bit

    def __contains__(self, key: bytes) -> bool:
        return all(self._bits[place] & bit for place, bit in self._places(key))


class Answers:
    """The file at `path`; a `Log` for ChatClient. Raises UserError when another process has it, or it is damaged."""

    replay = False

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._base = self._open(path)
        self._lock = threading.Lock()
        self._maybe = _Maybe()
        for (key,) in self._base.execute("SELECT key FROM answers"):
            self._maybe.add(key)
        self._queue: queue.SimpleQueue[tuple[str, tuple[Any, ...], Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="answers", daemon=True)
        self._thread.start()

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        base = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        try:
            base.execute("PRAGMA locking_mode = EXCLUSIVE")  # no shared memory: works on a network file system too
            base.execute("PRAGMA journal_mode = WAL")
            base.execute("PRAGMA synchronous = FULL")
            base.executescript(f"BEGIN EXCLUSIVE; {_TABLES} COMMIT")
            version = base.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                base.execute(f"PRAGMA user_version = {FORMAT}")
            elif version != FORMAT:
                raise UserError(f"{path}: answers of another version ({version}, not {FORMAT}); choose another out")
        except sqlite3.OperationalError as error:
            base.close()
            if "locked" in str(error):
                raise UserError(f"{path}: another process writes here; wait, or choose another out") from None
            raise UserError(f"{path}: cannot be written ({error})") from None
        except sqlite3.DatabaseError as error:
            base.close()
            raise UserError(f"{path}: damaged ({error}); remove it to ask anew") from None
        except UserError:
            base.close()
            raise
        return base

    def find(self, key: str) -> dict[str, Any] | None:
        """The answer under this key, as it was kept."""
        if bytes.fromhex(key) not in self._maybe:
            return None
        found = self._record("answers", key)
        return None if found is None else found["answer"]

    def failure(self, key: str) -> dict[str, Any] | None:
        """The last error under this key."""
        found = self._record("failures", key)
        return None if found is None else found["error"]

    def append(self, record: dict[str, Any]) -> None:
        """Keeps a record with `key` (SHA-256 in hex), and `answer` or `error`; it is on the disk when this returns."""
        table = "answers" if "answer" in record else "failures"
        key = bytes.fromhex(record["key"])
        packed = zlib.compress(json.dumps(record, ensure_ascii=True).encode(), 1)
        self._put(_KEEP.format(table), (key, packed)).result()
        if table == "answers":
            self._maybe.add(key)

    def spend(self, service: str, total: Total) -> None:
        """Adds what was spent; it reaches the disk no later than what is appended afterwards."""
        self._put(_COUNT, (service, *total.values()))

    def spent(self) -> Mapping[str, Total]:
        """What each service took in all runs so far."""
        with self._lock:
            rows = self._base.execute("SELECT * FROM spent").fetchall()
        return {name: Total(*figures) for name, *figures in rows}

    def keys(self) -> Iterator[str]:
        """The keys of all answers."""
        with self._lock:
            rows = self._base.execute("SELECT key FROM answers ORDER BY key").fetchall()
        return (key.hex() for (key,) in rows)

    def close(self) -> None:
        """Writes what is left and releases the file."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._base.close()

    def _record(self, table: str, key: str) -> dict[str, Any] | None:
        with self._lock:
            row = self._base.execute(f"SELECT record FROM {table} WHERE key = ?", (bytes.fromhex(key),)).fetchone()
        return None if row is None else json.loads(zlib.decompress(row[0]))

    def _put(self, statement: str, values: tuple[Any, ...]) -> Future[None]:
        if not self._thread.is_alive():
            raise UserError(f"{self.path}: closed")
        done: Future[None] = Future()
        self._queue.put((statement, values, done))
        return done

    def _write(self) -> None:
        """The life of the writer: all that waits goes into one transaction."""
        ended = False
        while not ended:
            waiting = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.append(self._queue.get_nowait())
            ended = None in waiting
            batch = [each for each in waiting if each is not None]
            try:
                with self._lock:
                    self._base.execute("BEGIN")
                    for statement, values, _ in batch:
                        self._base.execute(statement, values)
                    self._base.execute("COMMIT")
            except Exception as error:  # whatever it is, nobody waits for it in vain
                with contextlib.suppress(sqlite3.Error), self._lock:
                    self._base.execute("ROLLBACK")
                for *_, done in batch:
                    done.set_exception(UserError(f"{self.path}: cannot be written ({error})"))
            else:
                for *_, done in batch:
                    done.set_result(None)
