"""What every call of a build passes: slots, rate, budget, counters, and the moment at which a service is given up.

Roles that are the same as another share its lane: its slots, its rate, its budget. Each has counters and prices of its
own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from data.build.answers import Answers, Total
from data.build.contracts import Halted, OverBudget
from data.build.spec import Budget, Paced, Price
from unify_agent.judging import Spent
from unify_agent.judging.pace import Pace

SILENT = frozenset({"unreachable", "timeout", "server", "rate_limited", "service_down"})
"""Kinds of errors of a service that does not do its work; others are answers."""
WRONG_KEY = frozenset({"auth", "wrong_key"})


def cost(price: Price, spent: Spent, calls: int = 1) -> float:
    """What it takes, in the currency of the spec."""
    tokens = price.prompt * spent.prompt + price.completion * spent.completion
    return tokens / 1e6 + price.call * calls + price.picture * spent.pictures


class Lane:
    """What services that are the same share. `taken`: what they took in earlier runs.

    A service that has answered nothing for `patience` seconds, and failed `attempts` times since, is down.
    """

    def __init__(self, name: str, paced: Paced, taken: Total, patience: float, overall: threading.Semaphore | None):
        self.name, self.budget = name, paced.budget
        self._slots, self._overall = threading.Semaphore(paced.concurrency), overall
        self._pace = Pace(paced.rate, 1.0)
        self._attempts, self._patience = paced.attempts, patience
        self._change = threading.Condition()
        self._money, self._calls = taken.money, taken.calls
        self._reserved, self._running = 0.0, 0
        self._silent_since: float | None = None
        self._silent = 0

    @contextmanager
    def enter(self, most: float) -> Iterator[None]:
        """A place in the lane for an attempt that takes `most` money. Raises OverBudget."""
        with self._slots:
            self._pace.wait()
            self._reserve(most)
            try:
                if self._overall is None:
                    yield
                else:
                    with self._overall:
                        yield
            finally:
                with self._change:
                    self._reserved -= most
                    self._running -= 1
                    self._change.notify_all()

    def _reserve(self, most: float) -> None:
        """Waits where only what is under way stands against it: it may take less than it reserved."""
        with self._change:
            while not self._fits(most, self._reserved, self._running):
                if not self._running or not self._fits(most, 0.0, 0):
                    raise OverBudget(self.name)
                self._change.wait()
            self._reserved += most
            self._running += 1

    def _fits(self, most: float, reserved: float, running: int) -> bool:
        money, calls = self.budget.money, self.budget.calls
        return (money is None or self._money + reserved + most <= money) and (
            calls is None or self._calls + running + 1 <= calls
        )

    def took(self, money: float) -> None:
        """An attempt has ended."""
        with self._change:
            self._money += money
            self._calls += 1

    def heard(self, began: float, error: Exception | None) -> None:
        """What came of an attempt that began then. Raises Halted for a key that is wrong and a service that is down."""
        kind = getattr(error, "kind", "")
        if kind in WRONG_KEY:
            raise Halted(f"{self.name}: the key is not accepted ({error})")
        with self._change:
            if kind not in SILENT:
                self._silent_since, self._silent = None, 0
                return
            self._silent += 1
            if self._silent_since is None:
                self._silent_since = began
            down = time.monotonic() - self._silent_since >= self._patience and self._silent >= self._attempts
        if down:
            raise Halted(f"{self.name}: the service is down ({error}); run the same command again when it is back")

    def stop(self) -> None:
        """No attempt may start any more."""
        self._pace.stop()


class Metered:
    """The gate of one service in its lane; what is spent is written into `answers`. `total`: of all runs."""

    def __init__(self, name: str, lane: Lane, price: Price, answers: Answers, total: Total) -> None:
        self.name, self.lane, self.price, self.total = name, lane, price, total
        self._answers, self._lock = answers, threading.Lock()

    @property
    def budget(self) -> Budget:
        return self.lane.budget

    @contextmanager
    def attempt(self, most: Spent) -> Iterator[Spent]:
        """As `unify_agent.judging.Gate`."""
        spent = Spent()
        error: Exception | None = None
        with self.lane.enter(cost(self.price, most)):
            began = time.monotonic()
            try:
                yield spent
            except Exception as fault:
                error = fault
                raise
            finally:
                self._count(spent, error)
                self.lane.heard(began, error)

    def _count(self, spent: Spent, error: Exception | None) -> None:
        money = cost(self.price, spent, calls=getattr(error, "kind", "") not in SILENT)
        taken = Total(1, error is not None, spent.prompt, spent.completion, spent.pictures, money)
        self.lane.took(money)
        with self._lock:
            self.total.add(taken)
        self._answers.spend(self.name, taken)
