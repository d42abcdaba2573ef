"""Proves that a maintenance case is sound; what it finds wrong is said in one line each.

Traces are proved by loading: every requirement has a mark in the narrative so far or in the facts. The rest is played:
the oracle scores 1.0 in every tier; its log replays to the same hashes; an idle player completes nothing; two causally
linked batches in the wrong order cost exactly the relations that their Steps settle, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from eval.world_agent.binding import run_reference
from eval.world_agent.cases import Case
from eval.world_agent.contracts import Interval, settle
from eval.world_agent.engine import TIERS, replay
from eval.world_agent.policies import Plan, follow, idle, oracle, sloppy
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
    return found + check_order(case)


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
