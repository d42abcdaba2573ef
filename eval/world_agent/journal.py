"""Append-only JSON lines that survive a kill: each line is on the disk before its record is used."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from unify_agent.errors import UserError


class Journal:
    """The records of a file, in order. A torn last line is dropped. One process writes a journal at a time.

    A process that repeats its work from the start uses `put`: it compares with the old records first and appends
    after them. `keys`: what each record has.
    """

    def __init__(self, path: Path, *keys: str):
        self.path, self.at = path, 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UserError(f"{path}: another process writes here; wait, or choose another --out") from None
        self.records = read_lines(path, *keys)
        self._file.truncate(path.read_bytes().rfind(b"\n") + 1)

    def append(self, record: dict[str, Any]) -> None:
        """Add a record; it is on the disk when this returns."""
        self._file.write(_line(record))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.records.append(record)

    def put(self, record: dict[str, Any]) -> None:
        """The next record of work that is repeated from its start. Raises UserError when it differs from before."""
        if self.at < len(self.records):
            if self.records[self.at] != record:
                raise UserError(f"{self.path}:{self.at + 1}: this run goes differently now; choose another --out")
        else:
            self.append(json.loads(_line(record)))
        self.at += 1

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def read_lines(path: Path, *keys: str) -> list[dict[str, Any]]:
    """The whole records of a journal, each with these keys; [] where there is none. Raises UserError for a line that
    is no such record."""
    if not path.is_file():
        return []
    records = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            record = json.loads(line.decode("utf-8", "surrogatepass"))
        except ValueError:
            raise UserError(f"{path}:{number}: not a line of this record") from None
        if not isinstance(record, dict) or not all(key in record for key in keys):
            raise UserError(f"{path}:{number}: not a line of this record")
        records.append(record)
    return records
