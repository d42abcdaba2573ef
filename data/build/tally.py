"""How many entities and tasks are done, dropped, failed or waiting, for which reasons, and how fast that grows."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from data.build.journal import SETTLED, Journal, Kind, Known, Outcome

WINDOW = 600.0
"""Seconds over which a rate is taken."""
STATES = ("done", "held_out", "dropped", "failed", "waiting")
REASONED = ("dropped", "failed", "waiting")


class Tally:
    """Counts over the entities in `made` (id -> digest of what decides it); what was made otherwise does not count."""

    def __init__(self, journal: Journal, made: Mapping[str, str]) -> None:
        self.entities = len(made)
        self._states: dict[tuple[Kind, str], tuple[str, str]] = {}
        self._counts: Counter[tuple[Kind, str, str]] = Counter()
        self._tasks: dict[str, int] = {}
        self._lock = threading.Lock()
        self._times: deque[float] = deque()
        self._began = time.monotonic()
        for name, now in made.items():
            known = journal.known("entity", name)
            if known is not None and known.made == now:
                self._put("entity", name, known)
                for task in known.tasks:
                    of = journal.known("task", task)
                    if of is not None and of.made == now:
                        self._put("task", task, of)
        self.earlier = self.settled("task")

    def take(self, outcome: Outcome) -> None:
        """Counts an outcome in place of what its id was before."""
        with self._lock:
            tasks = tuple(outcome.about.get("tasks", ()))
            self._put(outcome.kind, outcome.id, Known(outcome.state, outcome.made, outcome.why, tasks))
            if outcome.kind == "task":
                now = time.monotonic()
                self._times.append(now)
                while now - self._times[0] > WINDOW:
                    self._times.popleft()

    def _put(self, kind: Kind, name: str, known: Known) -> None:
        before = self._states.get((kind, name))
        if before is not None:
            self._counts[kind, *before] -= 1
        self._states[kind, name] = (known.state, known.why)
        if kind == "entity":
            self._tasks[name] = len(known.tasks) if known.state in SETTLED else 0
        self._counts[kind, known.state, known.why] += 1

    def count(self, kind: Kind, *states: str) -> int:
        """How many are in one of the states."""
        return sum(number for (of, state, _), number in self._counts.items() if of == kind and state in states)

    def settled(self, kind: Kind) -> int:
        """How many need not be looked at again."""
        return self.count(kind, *SETTLED)

    def left(self, per_entity: int) -> tuple[int, int]:
        """Entities to describe and tasks to bring to an end; `per_entity` are expected of the former."""
        with self._lock:
            entities = self.entities - self.settled("entity")
            return entities, sum(self._tasks.values()) + entities * per_entity - self.settled("task")

    def rate(self) -> float:
        """Tasks a second that come to an end, over the last ten minutes."""
        with self._lock:
            seconds = min(WINDOW, time.monotonic() - self._began)
            return len(self._times) / seconds if self._times and seconds > 0 else 0.0

    def record(self) -> dict[str, Any]:
        """The counts, for the status file: by kind and state, and the reasons of what did not come to be."""
        with self._lock:
            counts: dict[str, Any] = {
                "entities": {state: self.count("entity", state) for state in STATES},
                "tasks": {state: self.count("task", state) for state in STATES},
            }
            counts["entities"]["listed"] = self.entities
            for state in REASONED:
                found: Counter[str] = Counter()
                for (_, of, why), number in self._counts.items():
                    if of == state and number:
                        found[why] += number
                counts[state] = dict(sorted(found.items()))
        return counts
