"""When the next attempt may start: a bound on the rate, a pause that a server asked for, and waits that grow."""

from __future__ import annotations

import email.utils
import math
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
        seconds = float(value)
    except ValueError:
        try:
            date = email.utils.parsedate_tz(value)
            seconds = float("nan") if date is None else email.utils.mktime_tz(date) - time.time()
        except (ValueError, OverflowError):  # a date that no calendar has
            return None
    return None if math.isnan(seconds) else max(0.0, seconds)


class Pace:
    """Shared by the threads of a client. `rate` bounds the attempts a second, None does not."""

    def __init__(self, rate: float | None, backoff: float) -> None:
        self._gap = 0.0 if rate is None else 1.0 / rate
        self._backoff = backoff
        self._next = self._held = 0.0
        self._lock = threading.Lock()
        self._random = random.Random()
        self._stopped = threading.Event()

    def wait(self) -> None:
        """Sleeps until an attempt may start. Raises ChatError when none may any more."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + self._gap
        while not self._stopped.wait(start - now):
            with self._lock:
                now, start = time.monotonic(), self._held  # a pause may have been asked for while this one waited
            if start <= now:
                return
        raise ChatError("unreachable", "stopped before it was asked")

    def hold(self, seconds: float) -> None:
        """No attempt of any thread starts before so many seconds have passed."""
        with self._lock:
            self._held = max(self._held, time.monotonic() + min(seconds, LONGEST_WAIT))
            self._next = max(self._next, self._held)

    def back_off(self, attempt: int) -> None:
        """Sleeps before attempt number `attempt` + 1: twice as long each time, with chance so that threads spread."""
        seconds = min(self._backoff * 2 ** (attempt - 1), LONGEST_WAIT) * self._random.uniform(0.5, 1.0)
        self._stopped.wait(seconds)

    def stop(self) -> None:
        """Ends all waits; no attempt may start any more."""
        self._stopped.set()
