"""Bounded work in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_bounded(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, stop: Callable[[], None] | None = None
) -> Iterator[tuple[int, Result]]:
    """(number, result) as they come; at most `workers` at a time, and no item is drawn before it is due.

    When the loop is left early, or by an exception, nothing new is started, `stop` is called and what runs is
    waited for.
    """
    numbered = enumerate(items)
    running: dict[Future[Result], int] = {}
    finished = False
    with ThreadPoolExecutor(workers) as pool:
        try:
            while True:
                while len(running) < workers and (drawn := next(numbered, None)) is not None:
                    running[pool.submit(function, drawn[1])] = drawn[0]
                if not running:
                    finished = True
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(done), done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            if stop is not None and not finished:
                stop()
