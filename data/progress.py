"""Progress of a long command on stderr: a live bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

EVERY = 10.0
"""Seconds between plain lines."""


class Progress:
    """`with Progress("checking", 1200, "samples") as progress: ... progress.advance()`."""

    def __init__(self, what: str, total: int, unit: str) -> None:
        self.what, self.total, self.unit, self.done = what, total, unit, 0

    def __enter__(self) -> Progress:
        self.started = self.told = time.monotonic()
        self.bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Bars(*columns, console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task(f"{self.what} {self.unit}", total=self.total)
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
        elif kind is None:
            self._line()

    def advance(self, count: int = 1) -> None:
        """So many more are done."""
        self.done += count
        if self.bar is not None:
            self.bar.advance(self.task, count)
        elif time.monotonic() - self.told >= EVERY:
            self.told = time.monotonic()
            self._line()

    def _line(self) -> None:
        seconds = time.monotonic() - self.started
        print(f"{self.what}: {self.done}/{self.total} {self.unit} in {seconds:.0f} s", file=sys.stderr, flush=True)
