"""What a round is judged by (facts/benchmarks.md 3.4), and the relations between events, settled by code.

An event's interval is [first, last] Step of the triggers bound to it. A relation with an absent end fails; whether it
holds says nothing about completion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Interval = tuple[int, int]
"""First and last Step of the triggers that realise an event."""

COMPONENTS = ("E", "A", "CA", "TM", "CC", "CH")
"""Events, structure (availability and use), causal, temporal, concurrency, order within a chain."""
COMPONENT_NAMES = {
    "E": "events", "A": "structure", "CA": "causal", "TM": "temporal", "CC": "concurrency", "CH": "chain order",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A trigger of the reference course: what the oracle does for an event (None: only preparation)."""

    event: str | None
    capability: str
    actor: str | None
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """`condition` is what must happen; it may be bound to triggers of the rounds `since`..`round`."""

    id: str
    condition: str
    round: int
    since: int


@dataclass(frozen=True)
class Availability:
    """A structure (`kind`: type, entity or capability) that must exist at the end of its round. `name`: its id in
    the reference, which a given world uses."""

    id: str
    requirement: str
    kind: str
    name: str


@dataclass(frozen=True)
class Use:
    """The event must be realised through the capability that `availability` asks for."""

    id: str
    event: str
    availability: str


@dataclass(frozen=True)
class Probe:
    """After event `after` (and before `until` begins, when there is one) no trigger may do what is `forbidden`.

    `pattern`: the forbidden trigger in the reference's ids: capability, actor or '*', some arguments.
    """

    id: str
    rule: str
    after: str
    until: str | None
    pattern: Step


@dataclass(frozen=True)
class Relation:
    """`kind`: CA, TM, CC or CH; `test`: before, lag, duration, overlap or same; `low`, `high`: bounds in Steps."""

    id: str
    kind: str
    test: str
    first: str
    second: str | None = None
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True)
class Round:
    """One round: its narrative, the contract that is hidden from the player, and the reference course."""

    narrative: str
    marks: Mapping[str, str]
    events: tuple[Event, ...]
    availability: tuple[Availability, ...]
    use: tuple[Use, ...]
    probes: tuple[Probe, ...]
    relations: tuple[Relation, ...]
    plan: tuple[tuple[Step, ...], ...]


def _within(value: int, relation: Relation) -> bool:
    return (relation.low is None or value >= relation.low) and (relation.high is None or value <= relation.high)


def settle(relation: Relation, intervals: Mapping[str, Interval]) -> bool:
    """Whether a relation holds, given the intervals of the events that are present.

    before: the first ends before the second starts. lag: Steps from the first's end to the second's start.
    duration: Steps that the event covers. overlap: both cover a common Step. same: both cover the same Steps.
    """
    first = intervals.get(relation.first)
    if first is None:
        return False
    if relation.test == "duration":
        return _within(first[1] - first[0] + 1, relation)
    second = intervals.get(relation.second or "")
    if second is None:
        return False
    match relation.test:
        case "before":
            return first[1] < second[0]
        case "lag":
            return _within(second[0] - first[1], relation)
        case "overlap":
            return first[0] <= second[1] and second[0] <= first[1]
        case _:
            return first == second
