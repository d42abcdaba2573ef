"""Which rank is at what, when nothing moves any more.

A collective waits for every rank, so a run hangs as a whole because of one of them, and its ranks look alike from
outside. Each rank's main thread notes the phase it enters, which costs nothing. A thread writes that note to
RUN/ranks/rank_0003.json now and then, so a person can look at any time; and once its own rank has been in one phase
for too long, it writes the Python stacks beside it, and the first rank that still shows signs of life prints where all
of them are.

A rank that fails says so in RUN/ranks/failed.json. The others then end within a minute or so: they wait for it in a
collective, where no signal reaches them, and torchrun would give them the time that saving a state takes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any

from unify_agent import files
from unify_agent.errors import STOPPED, UserError
from unify_agent.training.parallel import World

FAILED = "failed.json"
"""File beside the ranks' notes: the rank that failed, with what, and when."""
LONGEST_BEAT = 15.0
"""Seconds between two notes on the disk."""
SILENT_BEATS = 4
"""A rank that has missed so many is taken for dead."""
GRACE = 60.0
"""Seconds that a rank has to leave its phase after another one has failed."""


@dataclass(frozen=True)
class Note:
    """Where a rank was at time `at` (seconds since 1970): in `phase` of `step` for `seconds`."""

    rank: int
    host: str
    step: int
    phase: str
    seconds: float
    at: float


class Watchdog:
    """A context manager around the work; `after`: seconds in one phase that are too long. `say` prints a table."""

    def __init__(self, folder: Path, world: World, after: float, say: Callable[[str], None] | None = None) -> None:
        self.folder, self.world, self.after = folder / "ranks", world, after
        self.say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self.beat = min(LONGEST_BEAT, after / 4)
        self.step = 0
        self._began = time.time()
        self._now = ("start", time.monotonic())
        self._told: tuple[tuple[str, float], float] | None = None
        self._ended = Event()
        self._thread = Thread(target=self._watch, name="watchdog", daemon=True)

    def enter(self, phase: str) -> None:
        """What this rank's main thread does from now on."""
        self._now = (phase, time.monotonic())

    def __enter__(self) -> Watchdog:
        self._began = time.time()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._file(self.world.rank).unlink(missing_ok=True)
            if error is not None and self.world.size > 1:
                told = {"rank": self.world.rank, "error": f"{type(error).__name__}: {error}"[:500], "at": time.time()}
                files.write_json(self.folder / FAILED, told)
            elif self.world.main:
                (self.folder / FAILED).unlink(missing_ok=True)
            self.folder.rmdir()

    def _watch(self) -> None:
        while not self._ended.wait(self.beat):
            with contextlib.suppress(OSError):  # a full disk is for others to tell
                self.look()
            told = self.left_behind()
            if told is not None:
                if self.world.rank == (told["rank"] == 0):
                    self.say(f"rank {told['rank']} has failed ({told['error']}); the other ranks end too")
                os._exit(STOPPED)

    def left_behind(self) -> dict[str, Any] | None:
        """What the failed rank said, if one has failed since this one began and it has not moved from there on."""
        if self.world.size == 1 or not (self.folder / FAILED).exists():
            return None
        try:
            told: dict[str, Any] = files.read_json(self.folder / FAILED)
        except (UserError, OSError):
            return None
        passed = time.time() - told["at"]
        stayed = time.monotonic() - self._now[1]
        return told if told["at"] >= self._began and min(passed, stayed) > GRACE else None

    def look(self) -> None:
        """Write this rank's note; when it has been in its phase for too long, its stacks, and maybe print the table.

        A phase is told again whenever its time has doubled.
        """
        now = self._now
        seconds = time.monotonic() - now[1]
        rank = self.world.rank
        note = Note(rank, socket.gethostname(), self.step, now[0], round(seconds, 1), time.time())
        files.write_json(self._file(rank), asdict(note))
        limit = 2 * self._told[1] if self._told is not None and self._told[0] == now else self.after
        if seconds < limit:
            return
        self._told = now, seconds
        with open(self._file(rank).with_suffix(".stack"), "w", encoding="utf-8") as stacks:
            faulthandler.dump_traceback(stacks)
        notes = self.notes()
        alive = [each.rank for each in notes if each is not None and note.at - each.at < SILENT_BEATS * self.beat]
        if rank == min(alive):
            self.say(self.table(note, notes))

    def notes(self) -> list[Note | None]:
        """The last note of every rank; None for one that has left none."""
        found: list[Note | None] = []
        for rank in range(self.world.size):
            try:
                found.append(Note(**files.read_json(self._file(rank))))
            except UserError:
                found.append(None)
        return found

    def table(self, mine: Note, notes: Sequence[Note | None]) -> str:
        """`rank 0 is in "backward" for 31 s; where the ranks are:`, and a line for each."""
        lines = [
            f'no progress: rank {mine.rank} is in "{mine.phase}" of step {mine.step} for {mine.seconds:.0f} s '
            f"(Python stacks: {self.folder}/*.stack); where the ranks are:",
            f"{'rank':>6}  {'host':20}  {'step':>7}  {'phase':16}  {'for':>8}  last sign",
        ]
        for rank, note in enumerate(notes):
            if note is None:
                lines.append(f"{rank:>6}  has left no sign")
                continue
            age = max(0.0, mine.at - note.at)
            lines.append(
                f"{rank:>6}  {note.host[:20]:20}  {note.step:>7}  {note.phase[:16]:16}  {note.seconds + age:>6.0f} s  "
                f"{age:.0f} s ago"
            )
        return "\n".join(lines)

    def _file(self, rank: int) -> Path:
        return self.folder / f"rank_{rank:04d}.json"
