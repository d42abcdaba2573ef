"""Every call as it happens, one JSON line each, appended and flushed to the disk before the answer is used.

The log is the cache: an answer is found again under the digest of what was asked. Failures are kept to be counted,
never to be used, so the same run continued repeats no success and retries every failure. A process that was killed
while it wrote leaves a torn last line, which is dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from pathlib import Path
from typing import Any, Protocol

from unify_agent.errors import UserError


class Log(Protocol):
    """Where a client keeps what it was answered. With `replay` nothing may be asked. Safe for several threads."""

    @property
    def replay(self) -> bool: ...

    def find(self, key: str) -> dict[str, Any] | None:
        """The answer under this key, a SHA-256 in hex, as it was kept."""

    def failure(self, key: str) -> dict[str, Any] | None:
        """The last error under this key: its kind and detail."""

    def append(self, record: dict[str, Any]) -> None:
        """Keeps a record with `key`, and `answer` or `error`; it is on the disk when this returns."""


class CallLog:
    """The log at `path`. With `replay` nothing is written and no call may be made: what is missing is an error.

    Only one process writes a log at a time; a second one gets a UserError. Safe for several threads.
    """

    def __init__(self, path: Path | str, *, replay: bool = False) -> None:
        self.path, self.replay = Path(path), replay
        self._successes: dict[str, dict[str, Any]] = {}
        self._failures: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._file: int | None = None
        if not replay:
            self._open()
        elif not self.path.is_file():
            raise UserError(f"{self.path}: no such log of calls")
        try:
            self._read()
        except UserError:
            self.close()
            raise

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise UserError(f"{self.path}: another process writes this log; wait, or choose another folder") from None

    def _read(self) -> None:
        whole = 0
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                try:
                    self._keep(json.loads(line))
                except (ValueError, KeyError, TypeError):
                    raise UserError(f"{self.path}:{number}: not a line of a log of calls") from None
        if self._file is not None:
            os.ftruncate(self._file, whole)

    def _keep(self, record: dict[str, Any]) -> None:
        key = record["key"]
        if "answer" in record:
            self._successes[key] = record["answer"]
        else:
            self._failures[key] = record["error"]

    def find(self, key: str) -> dict[str, Any] | None:
        """The answer under this key, as it was logged."""
        with self._lock:
            return self._successes.get(key)

    def failure(self, key: str) -> dict[str, Any] | None:
        """The last error under this key: its kind and detail."""
        with self._lock:
            return self._failures.get(key)

    def append(self, record: dict[str, Any]) -> None:
        """Adds a record with `key`, and `answer` or `error`; it is on the disk when this returns."""
        assert self._file is not None, "a log that is replayed is not written"
        line = (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")
        with self._lock:
            before = os.fstat(self._file).st_size
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(self._file, view) :]
                os.fsync(self._file)
            except OSError as error:
                os.ftruncate(self._file, before)
                error.filename = error.filename or str(self.path)
                raise
            self._keep(record)

    def close(self) -> None:
        """Releases the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> CallLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
