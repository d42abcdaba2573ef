"""The rounds of a case file: narratives, contracts and the reference course, parsed and traced to marks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from pydantic import Field, StrictInt, StrictStr

from eval.world_agent.contracts import Availability, Event, Probe, Relation, Round, Step, Use
from eval.world_agent.shorthand import cut, step_of
from eval.world_agent.world import Refusal, Strict
from unify_agent.errors import nearest

_BOUND = re.compile(r"-?\d{1,6}", re.ASCII)


class ProbeFile(Strict):
    after: StrictStr
    until: StrictStr | None = None
    never: StrictStr


class RoundFile(Strict):
    narrative: StrictStr
    plan: list[dict[str, StrictStr | list[StrictStr]]]
    needs: dict[str, StrictStr] = Field(default_factory=dict)
    use: dict[str, StrictStr] = Field(default_factory=dict)
    probes: dict[str, ProbeFile] = Field(default_factory=dict)
    relations: dict[str, StrictStr] = Field(default_factory=dict)
    since: dict[str, StrictInt] = Field(default_factory=dict)
    text: dict[str, StrictStr] = Field(default_factory=dict)


class Rounds:
    """Parses the rounds of a file; ids of events are known to later rounds."""

    def __init__(
        self, files: list[RoundFile], narratives: list[str], facts: Mapping[str, str], known: Mapping[str, Any]
    ):
        self.files, self.narratives, self.known = files, narratives, known
        self.marks = dict(facts)
        self.events: dict[str, int] = {}
        self.needs: set[str] = set()

    def parse(self) -> tuple[Round, ...]:
        return tuple(self._round(number, each) for number, each in enumerate(self.files, 1))

    def _mark(self, name: str, where: str) -> str:
        if name not in self.marks:
            raise Refusal(f"{where}: {name!r} traces to nothing: no mark in the facts or in a narrative so far")
        return self.marks[name]

    def _event(self, name: str, where: str) -> str:
        if name not in self.events:
            raise Refusal(f"{where}: no event {name!r} so far{nearest(name, list(self.events))}")
        return name

    def _round(self, number: int, file: RoundFile) -> Round:
        where = f"round {number}"
        narrative, marks = cut(self.narratives[number - 1])
        if double := marks.keys() & self.marks.keys():
            raise Refusal(f"{where}: mark {min(double)!r} was used before")
        self.marks |= marks
        plan, names = [], []
        for batch in file.plan:
            steps: list[Step] = []
            if not all(batch.values()) or not batch:
                raise Refusal(f"{where}: a batch of the plan without a trigger")
            for name, texts in batch.items():
                event = None if name.startswith("_") else name
                steps += [step_of(t, event, f"{where}, {name}") for t in ([texts] if isinstance(texts, str) else texts)]
                if event is not None and event not in names:
                    names.append(event)
            plan.append(tuple(steps))
        for name in names:
            if self.events.setdefault(name, number) != number:
                raise Refusal(f"{where}: event {name!r} belongs to round {self.events[name]}")
        for name in (*file.text, *file.since):
            if name not in names:
                raise Refusal(f"{where}: no event {name!r} in this round{nearest(name, names)}")
        events = tuple(
            Event(name, file.text.get(name, self._mark(name, where)), number, file.since.get(name, number))
            for name in names
        )
        result = Round(
            narrative, marks, events,
            tuple(self._need(name, text, where) for name, text in file.needs.items()),
            tuple(self._use(name, text, where) for name, text in file.use.items()),
            tuple(self._probe(name, probe, where) for name, probe in file.probes.items()),
            tuple(each for name, text in file.relations.items() for each in self._relations(name, text, where)),
            tuple(plan),
        )  # fmt: skip
        scored = {*names, *file.needs, *file.use, *file.probes, *file.relations}
        if unused := set(marks) - scored - self.later(number):
            raise Refusal(f"{where}: mark {min(unused)!r} belongs to no requirement")
        return result

    def later(self, number: int) -> set[str]:
        """Ids of requirements of the rounds after `number`: they may be announced before."""
        rounds = self.files[number:]
        ids = {name for r in rounds for group in (r.needs, r.use, r.probes, r.relations) for name in group}
        return ids | {name for r in rounds for batch in r.plan for name in batch}

    def _need(self, name: str, text: str, where: str) -> Availability:
        kind, _, target = text.partition(" ")
        if kind not in self.known or target not in self.known[kind]:
            raise Refusal(f"{where}, {name}: {text!r} is not 'type|entity|capability ID' of this case")
        self.needs.add(name)
        return Availability(name, self._mark(name, where), kind, target)

    def _use(self, name: str, text: str, where: str) -> Use:
        words = text.split()
        if len(words) != 2 or words[1] not in self.needs:
            raise Refusal(f"{where}, {name}: {text!r} is not 'EVENT NEED'")
        self._mark(name, where)
        return Use(name, self._event(words[0], f"{where}, {name}"), words[1])

    def _probe(self, name: str, probe: ProbeFile, where: str) -> Probe:
        where = f"{where}, {name}"
        until = None if probe.until is None else self._event(probe.until, where)
        pattern = step_of(probe.never, None, where)
        if pattern.capability not in self.known["capability"]:
            raise Refusal(f"{where}: no capability {pattern.capability!r}")
        return Probe(name, self._mark(name, where), self._event(probe.after, where), until, pattern)

    def _relations(self, name: str, text: str, where: str) -> list[Relation]:
        where = f"{where}, {name}"
        self._mark(name, where)
        kind, *words = text.split() or [""]
        ids = [word for word in words if word in self.events]
        rest = words[len(ids) :]
        match kind, ids, [int(word) if _BOUND.fullmatch(word) else word for word in rest]:
            case ("CA", [a, b], []) | ("TM", [a, b], ["before"]):
                return [Relation(name, kind, "before", a, b)]
            case "CH", [_, _, *_], []:
                pairs = list(pairwise(ids))
                return [Relation(f"{name}_{k}", kind, "before", a, b) for k, (a, b) in enumerate(pairs, 1)]
            case "CC", [a, b], []:
                return [Relation(name, kind, "overlap", a, b)]
            case "CC", [a, b], ["same"]:
                return [Relation(name, kind, "same", a, b)]
            case "TM", [a, b], ["lag", int(low), int(high)] if low <= high:
                return [Relation(name, kind, "lag", a, b, low, high)]
            case "TM", [a], ["duration", int(low), int(high)] if low <= high:
                return [Relation(name, kind, "duration", a, low=low, high=high)]
        raise Refusal(
            f"{where}: {text!r} is not 'CA a b', 'TM a b before', 'TM a b lag LOW HIGH', 'TM a duration LOW HIGH', "
            "'CC a b', 'CC a b same' or 'CH a b ...' over events so far"
        )
