"""Proves that a maintenance case is sound; what it finds wrong is said in one line each.

Traces are proved by loading: every requirement has a mark in the narrative so far or in the facts. The rest is played:
the oracle scores 1.0 in every tier; its log replays to the same hashes; an idle player completes nothing; two causally
linked batches in the wrong order cost exactly the relations that their Steps settle, and nothing else; each prohibition
can be broken, and then it is lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from eval.world_agent.binding import run_reference
from eval.world_agent.cases import Case
from eval.world_agent.contracts import Interval, Probe, Step, settle
from eval.world_agent.engine import TIERS, replay
from eval.world_agent.policies import Plan, follow, idle, oracle, sloppy, values_of
from eval.world_agent.rehearse import judged, rehearse

LIMITS = {"small": (3, 10), "medium": (5, 25), "large": (9, 60)}
"""Least rounds and events of each size."""


def check_case(case: Case) -> list[str]:
    """What is wrong with a case; [] when nothing is."""
    found = []
    rounds, events = LIMITS[case.size]
    if len(case.rounds) < rounds or case.events < events:
        found.append(f"{len(case.rounds)} rounds and {case.events} events are too few for size {case.size}")
    for row in run_reference(case).log:
        if not row["accepted"]:
            found.append(f"round {row['round']}: the reference course is rejected: {'; '.join(row['errors'])}")
    if found:
        return found
    for tier in TIERS:
        engine = rehearse(case, tier, oracle(case, tier))
        result = judged(case, engine)
        for item in (item for round_ in result["rounds"] for item in round_["items"]):
            if not item["passed"]:
                found.append(f"tier {tier}: the oracle fails {item['id']}: {item['reason']}")
        if replay(case.engine(tier), engine.log).snapshots != engine.snapshots:
            found.append(f"tier {tier}: a replay leads elsewhere")
        nothing = judged(case, rehearse(case, tier, idle(case, tier)))
        if nothing["total"]["completion"] != "0.0000":
            found.append(f"tier {tier}: an idle player completes {nothing['total']['completion']}")
        careless = judged(case, rehearse(case, tier, sloppy(case, tier)))
        if careless["total"]["completion"] == "1.0000" or careless["total"]["relation"] == "1.0000":
            found.append(f"tier {tier}: a sloppy player loses nothing")
    return found + check_order(case) + check_probes(case)


def swaps(case: Case) -> Iterator[tuple[int, int, int]]:
    """Round (from 0) and two batches of it that a causal relation links, cause first."""
    for number, round_ in enumerate(case.rounds):
        place = {step.event: k for k, batch in enumerate(round_.plan) for step in batch}
        for relation in round_.relations:
            if relation.kind == "CA" and relation.first in place and relation.second in place:
                yield number, place[relation.first], place[relation.second]


def swapped(case: Case, number: int, first: int, second: int) -> list[Plan]:
    """The reference course with two batches of a round in each other's place."""
    plans = [list(round_.plan) for round_ in case.rounds]
    plan = plans[number]
    plan[first], plan[second] = plan[second], plan[first]
    return [tuple(each) for each in plans]


def planned_intervals(plans: list[Plan]) -> Mapping[str, Interval]:
    """When each event would happen if every batch is accepted: counted from the plan alone."""
    intervals: dict[str, Interval] = {}
    for step, batch in enumerate((batch for plan in plans for batch in plan), 1):
        for name in (each.event for each in batch if each.event is not None):
            intervals[name] = (intervals[name][0] if name in intervals else step, step)
    return intervals


def check_order(case: Case) -> list[str]:
    """Whether each swap that the engine lets happen costs what it should. At least one must be possible."""
    tried, found = 0, []
    for number, first, second in swaps(case):
        plans = swapped(case, number, first, second)
        engine = rehearse(case, "easy", follow(case, "easy", plans, "swapped"))
        if not all(row["accepted"] for row in engine.log):
            continue
        result = judged(case, engine)
        if result["total"]["completion"] != "1.0000":
            continue  # what the two batches change depends on their order, so it isn't a mere change of order
        tried += 1
        intervals = planned_intervals(plans)
        wanted = {r.id for round_ in case.rounds for r in round_.relations if not settle(r, intervals)}
        failed = {
            item["id"] for round_ in result["rounds"] for item in round_["items"] if not item["passed"]
        }  # fmt: skip
        if failed != wanted or not wanted:
            found.append(
                f"round {number + 1}, batches {first + 1} and {second + 1} swapped: {sorted(failed)} fail, "
                f"{sorted(wanted)} should"
            )
    if not tried:
        found.append("no two causally linked batches can change places")
    return found


def forbidden_steps(case: Case, probe: Probe) -> Iterator[Step]:
    """Triggers that a prohibition names, with everything that it leaves open filled in."""
    pattern, capability = probe.pattern, case.full.capabilities[probe.pattern.capability]
    actors = [pattern.actor]
    if pattern.actor == "*":
        actors = [name for name, each in case.full.entities.items() if each.type == capability.owner_type]
    choices = [
        [pattern.args[key]] if key in pattern.args else values_of(case, spec) for key, spec in capability.params.items()
    ]
    for actor, args in itertools.product(actors, itertools.product(*choices)):
        yield Step(None, pattern.capability, actor, dict(zip(capability.params, args, strict=True)))


def check_probes(case: Case) -> list[str]:
    """Whether each prohibition is lost by a player who does what it forbids as soon as it is in force."""
    found = []
    for number, round_ in enumerate(case.rounds, 1):
        for probe in round_.probes:
            if not any(_lost(case, probe, step) for step in forbidden_steps(case, probe)):
                found.append(f"round {number}: nobody can break {probe.id!r}, or breaking it costs nothing")
    return found


def _lost(case: Case, probe: Probe, step: Step) -> bool:
    plans = [list(round_.plan) for round_ in case.rounds]
    place = [(k, n) for k, plan in enumerate(plans) for n, batch in enumerate(plan) if _brings(batch, probe.after)][-1]
    plans[place[0]].insert(place[1] + 1, (step,))
    result = judged(case, rehearse(case, "easy", follow(case, "easy", map(tuple, plans), "forbidden")))
    items = (item for round_ in result["rounds"] for item in round_["items"])
    return any(item["id"] == probe.id and not item["passed"] for item in items)


def _brings(batch: tuple[Step, ...], event: str) -> bool:
    return any(step.event == event for step in batch)
