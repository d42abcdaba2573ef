"""Scores from a log and saved verdicts alone (facts/benchmarks.md 3.6): no model, no network, the same bytes each time.

Completion counts events, structure that had to be built, use, and probes that were in force; relations stand apart. A
part without items is null, never 1. A run with open questions has no total.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from eval.world_agent.binding import Bindings, effects_of, is_built
from eval.world_agent.cases import Case
from eval.world_agent.contracts import COMPONENTS, Round, settle
from eval.world_agent.engine import Row, Snapshot, Tier

LOW, HIGH = Fraction(1, 5), Fraction(1, 2)
"""A round derails when its completion is below LOW after an earlier round reached HIGH, or when nothing is accepted."""


def decimal(value: Fraction | None) -> str | None:
    """A share with four decimals, half up; the same on every machine."""
    if value is None:
        return None
    tens = (value.numerator * 20000 + value.denominator) // (2 * value.denominator)
    return f"{tens // 10000}.{tens % 10000:04d}"


def share(items: Iterable[Mapping[str, Any]]) -> Fraction | None:
    """Passed over counted; None without items."""
    results = [item["passed"] for item in items]
    return Fraction(sum(results), len(results)) if results else None


def mean(values: Iterable[Fraction | None]) -> Fraction | None:
    """The mean of what is there."""
    there = [value for value in values if value is not None]
    return sum(there, Fraction(0)) / len(there) if there else None


def _items(
    round_: Round, number: int, bindings: Bindings, verdicts: Mapping[str, Any], snapshot: Snapshot
) -> list[dict[str, Any]]:
    """Every requirement of a round with how it came out: passed, or not and why; None for an open question."""
    items: list[dict[str, Any]] = []

    def add(
        name: str, kind: str, component: str, passed: bool | None, reason: str = "", evidence: Sequence[str] = ()
    ) -> None:
        items.append({
            "id": name, "kind": kind, "component": component, "passed": passed, "reason": reason,
            "evidence": list(evidence), "log_rows": snapshot.rows, "state_hash": snapshot.state_hash,
        })  # fmt: skip

    for need in round_.availability:
        if not is_built(need.kind, bindings.tier):
            bindings.find(need, number, None)
        elif need.id not in verdicts:
            bindings.open.add(need.id)
            add(need.id, "availability", "A", None, "no verdict yet")
        else:
            reason = bindings.find(need, number, verdicts[need.id])
            add(need.id, "availability", "A", not reason, reason, [bindings.structures.get(need.id, "")])
    for event in round_.events:
        if event.id not in verdicts:
            bindings.open.add(event.id)
            add(event.id, "event", "E", None, "no verdict yet")
            continue
        reason = bindings.bind(event, verdicts[event.id])
        found = bindings.bound.get(event.id, [])
        evidence = [f"{done.id} at Step {done.step}, {done.state_hash[:16]}" for done in found]
        add(event.id, "event", "E", not reason, reason, evidence)
    for use in round_.use:
        if use.event in bindings.open or use.availability in bindings.open:
            add(use.id, "use", "A", None, "no verdict yet")
            continue
        through = {done.capability for done in bindings.bound.get(use.event, [])}
        passed = bindings.structures.get(use.availability) in through
        add(use.id, "use", "A", passed, "" if passed else f"{use.event} was not realised through {use.availability}")
    for probe in round_.probes:
        if probe.id not in verdicts or {probe.after, probe.until} & bindings.open:
            add(probe.id, "probe", "P", None, "no verdict yet")
        elif probe.after in bindings.bound:
            evidence = bindings.broken(probe, number, verdicts[probe.id])
            add(probe.id, "probe", "P", not evidence, "broken by " + ", ".join(evidence) if evidence else "", evidence)
    for relation in round_.relations:
        if {relation.first, relation.second} & bindings.open:
            add(relation.id, "relation", relation.kind, None, "no verdict yet")
            continue
        passed = settle(relation, bindings.intervals)
        ends = [name for name in (relation.first, relation.second) if name and name not in bindings.intervals]
        told = ", ".join(f"{name} at {list(bindings.intervals[name])}" for name in (relation.first, relation.second)
                         if name in bindings.intervals)  # fmt: skip
        reason = "" if passed else f"absent: {', '.join(ends)}" if ends else f"does not hold: {told}"
        add(relation.id, "relation", relation.kind, passed, reason)
    return items


def score(
    case: Case, tier: Tier, log: Sequence[Row], snapshots: Sequence[Snapshot], verdicts: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The score of a finished run. `verdicts`: item -> verdict as the judge gave it."""
    bindings = Bindings(case, tier, log, effects_of(case))
    rounds, everything = [], []
    completions: list[Fraction | None] = []
    relations: list[Fraction | None] = []
    derailed: list[int] = []
    for number, (round_, snapshot) in enumerate(zip(case.rounds, snapshots, strict=True), 1):
        items = _items(round_, number, bindings, verdicts, snapshot)
        everything += items
        unanswered = [item["id"] for item in items if item["passed"] is None]
        closed = [item for item in items if item["passed"] is not None]
        completion = None if unanswered else share(i for i in closed if i["kind"] != "relation")
        relation = None if unanswered else share(i for i in closed if i["kind"] == "relation")
        accepted = any(row["kind"] == "trigger" and row["accepted"] and row["round"] == number for row in log)
        fell = completion is not None and completion < LOW and any(c is not None and c >= HIGH for c in completions)
        if not accepted or fell:
            derailed.append(number)
        completions.append(completion)
        relations.append(relation)
        rounds.append({
            "round": number, "step": snapshot.step, "state_hash": snapshot.state_hash, "unresolved": unanswered,
            "completion": decimal(completion), "relation": decimal(relation), "items": items,
        })  # fmt: skip
    unresolved = [item["id"] for item in everything if item["passed"] is None]
    total = _total(everything, completions, relations) if not unresolved else None
    crash = bool(derailed) and derailed == list(range(derailed[0], len(case.rounds) + 1))
    batches = [row for row in log if row["kind"] == "trigger"]
    return {
        "total": total, "unresolved": unresolved, "derailed": derailed, "crash": crash,
        "batches": {"accepted": sum(row["accepted"] for row in batches), "of": len(batches)},
        "rounds": rounds,
    }  # fmt: skip


def _total(
    items: list[dict[str, Any]], completions: list[Fraction | None], relations: list[Fraction | None]
) -> dict[str, Any]:
    completion, relation = mean(completions), mean(relations)
    both = None if completion is None or relation is None else (completion + relation) / 2
    return {
        "completion": decimal(completion), "relation": decimal(relation), "mix": decimal(both),
        "completion_pooled": decimal(share(i for i in items if i["kind"] != "relation")),
        "relation_pooled": decimal(share(i for i in items if i["kind"] == "relation")),
        "components": {
            name: {
                "passed": sum(i["passed"] for i in items if i["component"] == name),
                "of": sum(i["component"] == name for i in items),
                "share": decimal(share(i for i in items if i["component"] == name)),
            }
            for name in COMPONENTS
        },
    }  # fmt: skip
