"""The sampler's steps as a bar, where a person looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from unify_agent.generation.sampler import Progress


def steps_in(bars: Bars, name: str = "drawing") -> Progress:
    """A callback that shows its steps as a row of its own in `bars`, as long as there is something to draw."""
    row = bars.add_task(name, visible=False)

    def told(done: int, total: int) -> None:
        bars.update(row, completed=done, total=total, visible=done < total)

    return told


@contextmanager
def step_bar(console: Console | None = None) -> Iterator[Progress | None]:
    """A bar of its own on a terminal (of stderr by default); elsewhere there is no bar, and the callback is None."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console) as bars:
        yield steps_in(bars)
