"""When the next attempt may start: a bound on the rate, a pause that a server asked for, and waits that grow."""

from __future__ import annotations

import email.utils
import random
import threading
import time
from collections.abc import Mapping

from unify_agent.judging.answers import ChatError

LONGEST_WAIT = 120.0
"""Seconds. A server that asks for more is given up as any failing one is."""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a `Retry-After` header asks for, as a number or a date; None when there is none."""
    value = headers.get("retry-after", "").strip()
    try:
        return max(0.0, float(value))
    except ValueError:
        date = email.utils.parsedate_tz(value) if value else None
        return None if date is None else max(0.0, email.utils.mktime_tz(date) - time.time())


class Pace:
    """Shared by the threads of a client. `rate` bounds the attempts a second, None does not."""

    def __init__(self, rate: float | None, backoff: float) -> None:
        self._gap = 0.0 if rate is None else 1.0 / rate
        self._backoff = backoff
        self._next = 0.0
        self._lock = threading.Lock()
        self._random = random.Random()
        self._stopped = threading.Event()

    def wait(self) -> None:
        """Sleeps until an attempt may start. Raises ChatError when none may any more."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + self._gap
        if self._stopped.wait(start - now):
            raise ChatError("unreachable", "stopped before it was asked")

    def hold(self, seconds: float) -> None:
        """No attempt of any thread starts before so many seconds have passed."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + min(seconds, LONGEST_WAIT))

    def back_off(self, attempt: int) -> None:
        """Sleeps before attempt number `attempt` + 1: twice as long each time, with chance so that threads spread."""
        seconds = min(self._backoff * 2 ** (attempt - 1), LONGEST_WAIT) * self._random.uniform(0.5, 1.0)
        self._stopped.wait(seconds)

    def stop(self) -> None:
        """Ends all waits; no attempt may start any more."""
        self._stopped.set()
