"""The judge's worksheet: one isolated question for each event, structure and probe, and the verdicts as they are saved.

A judge sees the condition and the accepted triggers (or built structures) alone: no narrative, no rejected batch, no
other verdict. What it says is kept; whether it counts is for `binding`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import StrictBool, StrictStr

from eval.world_agent.binding import Done, accepted_triggers, built, is_built
from eval.world_agent.cases import Case
from eval.world_agent.contracts import Event, Step
from eval.world_agent.engine import Row, Tier
from unify_agent.judging.structured import Verdict


class EventVerdict(Verdict):
    """Which accepted triggers realise an event."""

    bound: StrictBool
    trigger_ids: list[StrictStr]
    reason: StrictStr


class StructureVerdict(Verdict):
    """Which built structure meets a requirement."""

    found: StrictBool
    id: StrictStr
    reason: StrictStr


class ProbeVerdict(Verdict):
    """Whether a prohibition was in force, and which accepted triggers broke it."""

    antecedent_holds: StrictBool
    violated: StrictBool
    evidence: list[StrictStr]
    reason: StrictStr


VERDICTS: dict[str, type[Verdict]] = {"event": EventVerdict, "structure": StructureVerdict, "probe": ProbeVerdict}


@dataclass(frozen=True)
class Question:
    """One item of the worksheet. `seen`: what the judge gets to see, as JSON values."""

    item: str
    kind: str
    round: int
    condition: str
    seen: tuple[dict[str, Any], ...]


def worksheet(case: Case, tier: Tier, log: Sequence[Row]) -> Iterator[Question]:
    """Every question about a finished run, in order."""
    for number, round_ in enumerate(case.rounds, 1):
        for need in round_.availability:
            if is_built(need.kind, tier):
                yield Question(
                    need.id, "structure", number, f"{need.kind}: {need.requirement}",
                    tuple(built(log, need.kind, number)),
                )  # fmt: skip
        for event in round_.events:
            done = accepted_triggers(log, event.since, number)
            yield Question(event.id, "event", number, event.condition, tuple(each.told() for each in done))
        for probe in round_.probes:
            texts = {event.id: event.condition for r in case.rounds for event in r.events}
            condition = f"{probe.rule} (in force once this has happened: {texts[probe.after]}"
            condition += f"; until this begins: {texts[probe.until]})" if probe.until else ")"
            done = accepted_triggers(log, 1, number)
            yield Question(probe.id, "probe", number, condition, tuple(each.told() for each in done))


class ReferenceJudge:
    """A judge without a model: it accepts the reference course's own triggers, by their ids, and nothing else.

    Exact in tier easy and for whoever uses the case's ids; for other players a lower bound.
    """

    def __init__(self, case: Case, log: Sequence[Row]):
        self.identity: dict[str, Any] = {"judge": "reference"}
        self.case = case
        self.steps: dict[str, list[Step]] = {}
        for round_ in case.rounds:
            for step in (step for batch in round_.plan for step in batch):
                if step.event is not None:
                    self.steps.setdefault(step.event, []).append(step)
        self.bound = self._bind(log)
        self.probes = {probe.id: probe for round_ in case.rounds for probe in round_.probes}

    def _bind(self, log: Sequence[Row]) -> dict[str, list[Done]]:
        taken: set[str] = set()
        result: dict[str, list[Done]] = {}
        for event in (event for round_ in self.case.rounds for event in round_.events):
            done = accepted_triggers(log, event.since, event.round)
            found = self._find(event, [each for each in done if each.id not in taken])
            if found:
                taken |= {done.id for done in found}
                result[event.id] = found
        return result

    def _find(self, event: Event, free: list[Done]) -> list[Done]:
        found: list[Done] = []
        for step in self.steps[event.id]:
            match = next((done for done in free if done not in found and _same_step(done, step)), None)
            if match is None:
                return []
            found.append(match)
        return found

    def verdict(self, question: Question) -> dict[str, Any]:
        """A verdict of the question's kind."""
        if question.kind == "event":
            found = self.bound.get(question.item, [])
            reason = "" if found else "no accepted trigger of the reference course"
            return {"bound": bool(found), "trigger_ids": [done.id for done in found], "reason": reason}
        if question.kind == "structure":
            need = next(n for r in self.case.rounds for n in r.availability if n.id == question.item)
            found_id = need.name if any(each["id"] == need.name for each in question.seen) else ""
            return {"found": bool(found_id), "id": found_id, "reason": "" if found_id else f"no {need.name} was built"}
        probe = self.probes[question.item]
        after, until = self.bound.get(probe.after), self.bound.get(probe.until or "")
        if not after:
            return {"antecedent_holds": False, "violated": False, "evidence": [], "reason": "never in force"}
        start = max(done.step for done in after)
        end = min((done.step for done in until), default=None) if until else None
        broken = [
            each["trigger_id"]
            for each in question.seen
            if each["step"] > start and (end is None or each["step"] < end) and _forbidden(each, probe.pattern)
        ]
        return {"antecedent_holds": True, "violated": bool(broken), "evidence": broken, "reason": ""}


def _same_step(done: Done, step: Step) -> bool:
    return (done.capability, done.actor) == (step.capability, step.actor) and dict(done.args) == step.args


def _forbidden(told: Mapping[str, Any], pattern: Step) -> bool:
    return (
        told["capability"] == pattern.capability
        and pattern.actor in ("*", told["actor"])
        and all(told["args"].get(key) == value for key, value in pattern.args.items())
    )
