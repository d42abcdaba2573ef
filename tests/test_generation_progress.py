"""The bar of the sampler's steps: on a terminal only."""

import io

from rich.console import Console
from rich.progress import Progress

from unify_agent.generation.progress import step_bar, steps_in


def test_there_is_no_bar_where_nobody_looks():
    console = Console(file=io.StringIO())
    with step_bar(console) as progress:
        assert progress is None
    assert console.file.getvalue() == ""


def test_a_terminal_shows_the_steps():
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with step_bar(console) as progress:
        for done in range(1, 9):
            progress(done, 9)
    assert "drawing" in console.file.getvalue() and "8/9" in console.file.getvalue()


def test_a_row_is_shown_only_while_there_is_something_to_draw():
    bars = Progress(disable=True)
    told = steps_in(bars, "drawing two pictures")
    seen = [(bars.tasks[0].completed, bars.tasks[0].visible) for done in (1, 2, 3) if told(done, 3) is None]
    assert seen == [(1, True), (2, True), (3, False)]
    assert bars.tasks[0].description == "drawing two pictures"
