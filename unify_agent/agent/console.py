"""What a person sees of a run on stderr: a bar with the time left on a terminal, and a line for each item."""

from __future__ import annotations

import re
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from unify_agent.agent.batch import Outcome
from unify_agent.agent.episode import Episode
from unify_agent.generation.progress import steps_in

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Told:
    """`with Told(console, 120) as told:`; then tell it events and outcomes. The first `quick` take no time."""

    def __init__(self, console: Console, total: int, quick: int = 0):
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.console, self.total, self.quick, self.done = console, total, quick, 0
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self._bar = self._bars.add_task("starting", total=total)
        self._turns: dict[str, int] = {}
        self.on_step = steps_in(self._bars)

    def __enter__(self) -> Told:
        self._began = time.monotonic()
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def event(self, item: str, what: str) -> None:
        """Something happened to an item."""
        if what == "reply":
            self._turns[item] = self._turns.get(item, 0) + 1
            self._bars.update(self._bar, description=f"{item}: turn {self._turns[item]}")
        elif what == "drawn":
            self._bars.update(self._bar, description=f"{item}: drawn")
        elif what == "lost":
            self.line(f"{item}: no worker can begin there any more; the others go on")

    def episode_event(self, episode: Episode, what: str) -> None:
        """The same, from a loop in this process."""
        self.event(episode.id, what)

    def outcome(self, outcome: Outcome, place: str) -> None:
        """An item has ended."""
        self.done += 1
        self._turns.pop(outcome.id, None)
        self._bars.update(self._bar, advance=1)
        reason = f"{outcome.reason}{f' ({outcome.error})' if outcome.error else ''}"
        self.line(
            f"{self.done}/{self.total} {outcome.id}: {outcome.status}, {reason}, {outcome.references} references"
            f"{f' -> {place}' if place else ''}{self._left()}"
        )

    def line(self, text: str) -> None:
        """A line of its own; what a terminal would obey, in a service's message say, is left out."""
        self.console.print(_CONTROL.sub(" ", text), soft_wrap=True, markup=False)

    def _left(self) -> str:
        """How long it will still take, where no bar says so."""
        left = self.total - self.done
        if self.console.is_terminal or not left or self.done <= self.quick:
            return ""
        seconds = (time.monotonic() - self._began) / (self.done - self.quick) * left
        return f" [{seconds / 3600:.1f} h left]" if seconds > 5400 else f" [{seconds / 60:.1f} min left]"
