"""What became of every entity and every task: one JSON line each, appended as it is settled.

    {"kind": "entity", "id": ..., "state": "done", "made": ..., "category": ..., "names": {...}, "tasks": [...]}
    {"kind": "task", "id": ..., "entity": ..., "state": "dropped", "stage": "verification", "reason": ...,
     "detail": ..., "made": ..., "prompt": ..., "language": ..., "form": ..., "difficulty": ...,
     "trials": [{"number": 1, "picture": "pictures/...", "accepted": false, "reason": ..., "scores": {...}}]}

The last line of an id counts. A line that a kill cut off is dropped. The journal says what need not be looked at again;
what was paid for is kept elsewhere (data/build/answers.py), so a line that is lost costs no call.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from unify_agent.errors import UserError

JOURNAL = "journal.jsonl"
"""Its name in a run folder."""
Kind = Literal["entity", "task"]
State = Literal["done", "dropped", "failed", "waiting", "held_out"]
"""waiting: for a budget. held_out: a task of a benchmark entity, whose prompt is all that is made of it."""
SETTLED = frozenset({"done", "dropped", "held_out"})
CLAIMS = 20
"""How often, within a second, a journal is asked for."""
_OWN = ("kind", "id", "state", "entity", "stage", "reason", "detail", "made")


@dataclass(frozen=True)
class Outcome:
    """A line. `made`: digest of all that decided it; another one now makes it worth another look. `about`: the rest.

    Of an entity: category, country, names, remark, attributes, seeds, tasks. Of a task: prompt, language, form,
    difficulty, category and `trials`, whose pictures are paths below the run folder.
    """

    kind: Kind
    id: str
    state: State
    entity: str = ""
    stage: str = ""
    reason: str = ""
    detail: str = ""
    made: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def why(self) -> str:
        """Stage and reason, for counts."""
        return f"{self.stage}: {self.reason}" if self.reason else self.stage

    def line(self) -> bytes:
        """The line, with its end."""
        said = {name: value for name in _OWN if (value := getattr(self, name))}
        return (json.dumps(said | dict(self.about), ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _parsed(line: bytes, where: str) -> Outcome:
    try:
        said = json.loads(line)
        own = {name: said.pop(name, "") for name in _OWN}
        if own["kind"] not in get_args(Kind) or own["state"] not in get_args(State) or not own["id"]:
            raise ValueError("not an outcome")
        if not all(isinstance(each, str) for each in (*own.values(), *said.get("tasks", ()))):
            raise ValueError("not texts")
        return Outcome(**own, about=said)
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{where}: not a line of a build's journal") from None


def _lines(path: Path) -> Iterator[tuple[int, bytes, Outcome]]:
    """(place, line, outcome) of each whole line."""
    place = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            yield place, line, _parsed(line, f"{path}:{number}")
            place += len(line)


def read_journal(path: Path) -> Iterator[Outcome]:
    """The last outcome of each id, in the order in which the ids first came; none where no journal is.

    Holds the places of the lines in memory, not the lines. Raises UserError for a damaged line.
    """
    if not path.is_file():
        return
    last: dict[tuple[str, str], int] = {}
    for place, _, outcome in _lines(path):
        last[outcome.kind, outcome.id] = place
    with open(path, "rb") as file:
        for place in last.values():
            file.seek(place)
            yield _parsed(file.readline(), f"{path}: byte {place}")


@dataclass(frozen=True)
class Known:
    """What a run must know of an earlier outcome. `tasks`: of an entity."""

    state: State
    made: str
    why: str
    tasks: tuple[str, ...] = ()


class Journal:
    """The journal at `path`, open to be added to. One process at a time; safe for many threads.

    Raises UserError: another process has it, or a line is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._known: dict[tuple[str, str], Known] = {}
        try:
            self._claim()
            whole = 0
            for place, line, outcome in _lines(path):
                whole = place + len(line)
                self._keep(outcome)
            os.ftruncate(self._file, whole)
        except BlockingIOError:
            os.close(self._file)
            raise UserError(f"{path}: another process writes this build; wait, or choose another out") from None
        except BaseException:
            os.close(self._file)
            raise

    def _claim(self) -> None:
        """Keeps others out; waits a moment, for whoever asks how a run stands holds the file so long."""
        for _ in range(CLAIMS):
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(1 / CLAIMS)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _keep(self, outcome: Outcome) -> None:
        tasks = tuple(outcome.about.get("tasks", ())) if outcome.kind == "entity" else ()
        self._known[outcome.kind, outcome.id] = Known(outcome.state, outcome.made, outcome.why, tasks)

    def known(self, kind: Kind, name: str) -> Known | None:
        """The last outcome of an id."""
        with self._lock:
            return self._known.get((kind, name))

    def all(self, kind: Kind) -> list[tuple[str, Known]]:
        """All ids of a kind with their last outcome."""
        with self._lock:
            return [(name, known) for (of, name), known in self._known.items() if of == kind]

    def append(self, outcome: Outcome) -> None:
        """Adds a line."""
        line = outcome.line()
        with self._lock:
            before = os.fstat(self._file).st_size
            if os.write(self._file, line) != len(line):
                os.ftruncate(self._file, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            self._keep(outcome)

    def close(self) -> None:
        """Flushes to the disk and lets others in."""
        os.fsync(self._file)
        os.close(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
