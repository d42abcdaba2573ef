"""Verdicts of a judge are claims; here a program checks them against the log (facts/benchmarks.md 3.5).

An event is bound only to accepted triggers of its own rounds, before its round was frozen, that changed what the event
changes in the reference course. A matching final state alone binds nothing, and one trigger realises one event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eval.world_agent.cases import Case
from eval.world_agent.contracts import Availability, Event, Interval, Probe, Step
from eval.world_agent.engine import Engine, Row, Tier, Trigger
from eval.world_agent.expressions import Scalar, same

BUILD_OF = {"type": "define_type", "entity": "create_entity", "capability": "define_capability"}


@dataclass(frozen=True)
class Done:
    """An accepted trigger with where it stands."""

    id: str
    seq: int
    round: int
    step: int
    capability: str
    actor: str | None
    args: Mapping[str, Any]
    write: Mapping[str, Any] | None
    state_hash: str

    def told(self) -> dict[str, Any]:
        """What a judge sees of it."""
        return {
            "trigger_id": self.id, "step": self.step, "capability": self.capability, "actor": self.actor,
            "args": dict(self.args), "write": self.write and dict(self.write),
        }  # fmt: skip


def accepted_triggers(log: Sequence[Row], first: int = 1, last: int = 10**9) -> list[Done]:
    """The accepted triggers of rounds `first` to `last`."""
    return [
        Done(item["trigger_id"], row["seq"], row["round"], row["step_after"], item["capability"], item["actor"],
             item["args"], item["write"], row["state_hash"])
        for row in log
        if row["kind"] == "trigger" and row["accepted"] and first <= row["round"] <= last
        for item in row["batch"]
    ]  # fmt: skip


def built(log: Sequence[Row], kind: str, last: int) -> list[dict[str, Any]]:
    """The structures of a kind that the player built up to round `last`."""
    return [
        row["batch"][0] for row in log if row["kind"] == BUILD_OF[kind] and row["accepted"] and row["round"] <= last
    ]


@dataclass(frozen=True)
class Act:
    """A trigger of the reference course that writes nothing: `who` takes part, by ids of the case."""

    capability: str
    who: frozenset[str]

    def told(self, tier: Tier) -> str:
        """In words."""
        return f"an act of {', '.join(sorted(self.who))}" if tier == "hard" else f"such a {self.capability!r}"

    def met(self, done: Done, tier: Tier) -> bool:
        """Whether a trigger does the same: the given capability, or those who take part, as far as they are given."""
        there = {done.actor, *(value for value in done.args.values() if isinstance(value, str))}
        return tier == "extreme" or (self.who <= there and (tier == "hard" or done.capability == self.capability))


@dataclass(frozen=True)
class Effect:
    """What an event changes in the reference course. `delta`: how much is added, where the value itself is free."""

    path: str
    new: Scalar
    delta: int | None

    @property
    def moves(self) -> bool:
        return self.path.endswith(".holder")

    def told(self, tier: Tier) -> str:
        """In words."""
        if tier == "extreme":
            return "a change of holder" if self.moves else "a change of a field"
        return f"{self.path} = {self.new!r}" if self.delta is None else f"{self.path} {self.delta:+}"

    def met(self, done: Done, tier: Tier) -> bool:
        """Whether a trigger does the same: the same value in the same place, or, where the player chose the names
        itself, a change of the same sort."""
        write = done.write
        if write is None or same(write["old"], write["new"]):
            return False
        if tier == "extreme":
            return write["path"].endswith(".holder") == self.moves
        if write["path"] != self.path:
            return False
        if self.delta is not None and type(write["old"]) is int and type(write["new"]) is int:
            return write["new"] - write["old"] == self.delta
        return same(write["new"], self.new)


def trigger_of(step: Step) -> Trigger:
    """The trigger of a reference step."""
    return Trigger(capability=step.capability, actor=step.actor, args=step.args)


def run_reference(case: Case) -> Engine:
    """The reference course, run in the given world of tier easy."""
    engine = case.engine("easy")
    for round_ in case.rounds:
        for batch in round_.plan:
            engine.trigger([trigger_of(step) for step in batch])
        engine.end_round()
    return engine


def effects_of(case: Case) -> dict[str, list[Effect | Act]]:
    """What each event does, from the reference course. Known for a case once it was asked for."""
    if case.digest not in _EFFECTS:
        _EFFECTS[case.digest] = _effects(case)
    return _EFFECTS[case.digest]


_EFFECTS: dict[str, dict[str, list[Effect | Act]]] = {}


def _effects(case: Case) -> dict[str, list[Effect | Act]]:
    engine = run_reference(case)
    rows: Iterator[Row] = iter([row for row in engine.log if row["kind"] == "trigger"])
    result: dict[str, list[Effect | Act]] = {}
    for round_ in case.rounds:
        for batch in round_.plan:
            row = next(rows)
            for step, item in zip(batch, row["batch"], strict=True):
                if step.event is None or not row["accepted"]:
                    continue
                write, definition = item["write"], case.full.capabilities[step.capability].write
                if write is None:
                    entities = {step.actor, *step.args.values()} & case.full.entities.keys()
                    result.setdefault(step.event, []).append(Act(step.capability, frozenset(entities)))
                else:
                    added = definition is not None and definition.op == "add"
                    delta = write["new"] - write["old"] if added else None
                    result.setdefault(step.event, []).append(Effect(write["path"], write["new"], delta))
    return result


@dataclass
class Bindings:
    """What is bound so far, round after round; nothing that is bound is ever changed. `open`: no verdict yet."""

    case: Case
    tier: Tier
    log: Sequence[Row]
    effects: Mapping[str, list[Effect | Act]]
    intervals: dict[str, Interval] = field(default_factory=dict)
    bound: dict[str, list[Done]] = field(default_factory=dict)
    structures: dict[str, str] = field(default_factory=dict)
    taken: dict[str, str] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)

    def bind(self, event: Event, verdict: Mapping[str, Any]) -> str:
        """Bind an event to the triggers that a judge names. Returns why it could not be, '' when it is bound."""
        if not verdict["bound"]:
            return f"not bound: {verdict['reason']}"
        window = {done.id: done for done in accepted_triggers(self.log, event.since, event.round)}
        if not verdict["trigger_ids"]:
            return "refused: the judge names no trigger"
        for name in verdict["trigger_ids"]:
            if name not in window:
                return f"refused: {name!r} is no accepted trigger of rounds {event.since} to {event.round}"
            if name in self.taken:
                return f"refused: {name} already realises {self.taken[name]}"
        found = [window[name] for name in dict.fromkeys(verdict["trigger_ids"])]
        if missing := self._missing(self.effects.get(event.id, []), found):
            return f"refused: none of {', '.join(done.id for done in found)} brings {missing.told(self.tier)}"
        self.taken |= {done.id: event.id for done in found}
        self.bound[event.id] = found
        steps = [done.step for done in found]
        self.intervals[event.id] = min(steps), max(steps)
        return ""

    def _missing(self, effects: list[Effect | Act], found: list[Done]) -> Effect | Act | None:
        """The first effect that no trigger brings. In tier extreme one trigger may bring several of one sort, for the
        player decided what its capabilities do; else each effect has its own."""
        free = list(found)
        acts = sorted((each for each in effects if isinstance(each, Act)), key=lambda act: -len(act.who))
        choosy: list[Effect | Act] = [each for each in effects if isinstance(each, Effect)]
        for effect in choosy + acts:
            match = next((done for done in free if effect.met(done, self.tier)), None)
            if match is None:
                return effect
            if self.tier != "extreme":
                free.remove(match)
        return None

    def broken(self, probe: Probe, round_: int, verdict: Mapping[str, Any]) -> list[str]:
        """The accepted triggers that broke a prohibition while it was in force, of those that a judge names."""
        if not verdict["violated"]:
            return []
        start, end = self.intervals[probe.after][1], self.intervals.get(probe.until or "", (10**9, 0))[0]
        steps = {done.id: done.step for done in accepted_triggers(self.log, 1, round_)}
        return [name for name in dict.fromkeys(verdict["evidence"]) if start < steps.get(name, 0) < end]

    def find(self, need: Availability, round_: int, verdict: Mapping[str, Any] | None) -> str:
        """Bind a structure that must exist. `verdict` is None where the world is given. Returns why not, or ''."""
        if verdict is None:
            self.structures[need.id] = need.name
            return ""
        if not verdict["found"]:
            return f"not there: {verdict['reason']}"
        known = {each["id"]: each for each in built(self.log, need.kind, round_)}
        name = verdict["id"]
        if name not in known:
            return f"refused: {name!r} is no {need.kind} built by the end of round {round_}"
        if need.kind == "capability":
            wanted, given = self.case.full.capabilities[need.name].write, known[name].get("write")
            if _sort(wanted.op if wanted else None) != _sort(given.get("op", "set") if given else None):
                return f"refused: {name!r} does not write what such a capability writes"
        self.structures[need.id] = name
        return ""


def _sort(op: str | None) -> str | None:
    return "field" if op in ("set", "add") else op


def is_built(kind: str, tier: Tier) -> bool:
    """Whether structures of a kind must be built by the player in this tier."""
    return tier == "extreme" or (tier == "hard" and kind == "capability")
