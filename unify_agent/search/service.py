"""One service: its key, its pace, and what is tried again.

An answer that says "later" (429, 408, 425, 5xx), none at all, or one that does not parse is asked for again, after the
time that the service names (Retry-After) or after 1, 2, 4 s with some chance in it. While one thread waits because of
a Retry-After, so do all others that ask the same service.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode

from unify_agent.errors import UserError
from unify_agent.search.base import SearchError
from unify_agent.search.fetch import USUAL, Answer, Fetcher, Limits

LATER = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
LONGEST_WAIT = 60.0
"""Seconds: a service that asks for more is down, as far as this run is concerned."""


def key_from_env(name: str, what: str, required: bool = True) -> str:
    """A key out of the environment, never shown. Raises UserError when it is missing or can't be one."""
    key = os.environ.get(name, "").strip()
    if not key and required:
        raise UserError(f"{what} needs a key: set the environment variable {name}")
    if not all("!" <= character <= "~" for character in key):
        raise UserError(f"{name}: holds characters that no key has; set it again")
    return key


class Pace:
    """At most so many requests per second, over all threads."""

    def __init__(self, per_second: float, sleep: Callable[[float], None], now: Callable[[], float]) -> None:
        self._gap, self._sleep, self._now = 1.0 / per_second, sleep, now
        self._lock, self._next = threading.Lock(), 0.0

    def wait(self) -> None:
        """Returns when it is this request's turn."""
        with self._lock:
            turn = max(self._now(), self._next)
            self._next = turn + self._gap
        if (pause := turn - self._now()) > 0:
            self._sleep(pause)

    def hold(self, seconds: float) -> None:
        """No request of anyone for so long."""
        with self._lock:
            self._next = max(self._next, self._now() + seconds)


class Service:
    """Asks one service, from any number of threads. Its key never appears in what it returns or raises.

    per_second: requests over all threads. tries: of one request, the first included. key_name: the variable that holds
    the key, for messages. sleep and now: for tests.
    """

    def __init__(
        self,
        name: str,
        fetcher: Fetcher,
        per_second: float,
        tries: int = 4,
        limits: Limits = USUAL,
        key_name: str = "",
        key: str = "",
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self._fetcher, self._tries, self._limits = name, fetcher, tries, limits
        self._key_name, self._key, self._sleep = key_name, key, sleep
        self._pace = Pace(per_second, sleep, now)

    def __repr__(self) -> str:
        return f"Service({self.name!r})"

    def fetch(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """An answer with a status of 200 to 299, tried as often as it makes sense. Raises SearchError."""
        return self._again(lambda: self._once(method, url, headers, body))

    def json(
        self,
        method: str,
        url: str,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        check: Callable[[dict[str, Any], Mapping[str, str]], None] | None = None,
    ) -> dict[str, Any]:
        """A JSON object, the key cut out of whatever the service says. None in `params` and `body` is left out.

        `check` may raise `Later` for an answer that says in its own way that it should be asked for later.
        """
        if params:
            given = {name: value for name, value in params.items() if value is not None}
            url += ("&" if "?" in url else "?") + urlencode(given, errors="replace")
        sent = {"accept": "application/json", **(headers or {})}
        data = None
        if body is not None:
            given = {name: value for name, value in body.items() if value is not None}
            data = json.dumps(given, ensure_ascii=False).encode("utf-8", "replace")
            sent["content-type"] = "application/json"

        def once() -> dict[str, Any]:
            answer = self._once(method, url, sent, data)
            found = self._object(answer)
            if check is not None:
                check(found, answer.headers)
            return found

        return self._again(once)

    # ------------------------------------------------------------ tries

    def _again(self, once: Callable[[], Any]) -> Any:
        for number in range(1, self._tries + 1):
            try:
                self._pace.wait()
                return once()
            except Later as later:
                fault: SearchError = SearchError(later.kind, later.text)
                pause = later.seconds
            except SearchError as error:
                if error.kind != "service_down":
                    raise SearchError(error.kind, f"{self.name}: {error}") from None
                fault, pause = error, None
            if pause is not None and pause > LONGEST_WAIT:
                raise SearchError("service_down", f"{self.name}: {fault}; it asks to wait {pause:.0f} s")
            if number == self._tries:
                break
            if pause is None:
                self._sleep(2.0 ** (number - 1) * random.uniform(0.8, 1.2))
            else:
                self._pace.hold(pause)
        raise SearchError(fault.kind, f"{self.name}: {fault} (tried {self._tries} times)") from None

    def _once(self, method: str, url: str, headers: Mapping[str, str] | None, body: bytes | None) -> Answer:
        answer = self._fetcher.request(method, url, headers, body, self._limits)
        status = answer.status
        if 200 <= status < 300:
            return answer
        said = self._message(answer)
        if status in LATER:
            raise Later(f"HTTP {status}{said}", wait_of(answer.headers))
        if status in (401, 402, 403) and self._key:
            raise SearchError("wrong_key", f"the key in {self._key_name} is not accepted (HTTP {status}{said})")
        raise SearchError("bad_request" if 400 <= status < 500 else "bad_answer", f"HTTP {status}{said}")

    def _object(self, answer: Answer) -> dict[str, Any]:
        try:
            found = json.loads(self._without_key(answer.content.decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            raise Later("the answer is not JSON", None, "bad_answer") from None
        if not isinstance(found, dict):
            raise SearchError("bad_answer", "the answer is not a JSON object")
        return found

    def _message(self, answer: Answer) -> str:
        """What the service says of its refusal, when it says it in JSON: `": not enough credits"`."""
        try:
            found = json.loads(self._without_key(answer.content.decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            return ""
        text = found.get("message") or found.get("detail") if isinstance(found, dict) else None
        return f": {' '.join(text.split())[:160]}" if isinstance(text, str) else ""

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


class Later(Exception):
    """Not now: ask again after `seconds`, or after a while that grows when it is None."""

    def __init__(self, text: str, seconds: float | None, kind: Any = "service_down") -> None:
        super().__init__(text)
        self.text, self.seconds, self.kind = text, seconds, kind


def wait_of(headers: Mapping[str, str]) -> float | None:
    """Seconds that a Retry-After header asks for (a number or a date), None without a readable one."""
    value = headers.get("retry-after", "").strip()
    if value.isdecimal():
        return float(value[:10])
    try:
        until = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
