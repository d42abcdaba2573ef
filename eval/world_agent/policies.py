"""Scripted players, for tests, validation and a first look without a model.

oracle       builds what the tier lacks, then follows the reference course
sloppy       the oracle, but it leaves out every fifth event and throws neighbouring batches together
adversarial  unknown tools, wrong types, conflicts, loops of holders, endless talk; then it ends the round or doesn't
idle         ends every round at once
builder      builds all that it can and does nothing with it
everything   everything that anybody could do, one thing after the other, whatever the story tells
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

from eval.world_agent.binding import trigger_of
from eval.world_agent.cases import Case
from eval.world_agent.contracts import Step
from eval.world_agent.engine import BUILDS, Tier
from eval.world_agent.expressions import Scalar
from eval.world_agent.talk import Reply, Turn
from eval.world_agent.world import FieldSpec
from unify_agent.errors import UserError, nearest
from unify_agent.judging import FunctionCall

Calls = list[tuple[str, Any]]
"""Name and arguments, of one turn."""
AT_ONCE = 32
"""Calls that a policy puts into one turn."""
MOST_TURNS = 30
Plan = tuple[tuple[Step, ...], ...]


class Scripted:
    """A policy as a player: `script(round)` gives the turns of a round."""

    def __init__(self, name: str, script: Callable[[int], list[Calls]]):
        self.identity: dict[str, Any] = {"player": name}
        self._script = script

    def reply(self, turn: Turn) -> Reply:
        """See Player. A script that has come to its end talks on without a call."""
        turns = self._script(turn.round)
        if turn.number > len(turns):
            return Reply("Let me think about this a little longer.")
        calls = []
        for number, (name, arguments) in enumerate(turns[turn.number - 1], 1):
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            calls.append(FunctionCall(f"r{turn.round}t{turn.number}c{number}", name, text))
        return Reply("", tuple(calls))


def batch_call(steps: Iterable[Step]) -> tuple[str, Any]:
    """The call that triggers these steps together."""
    return "trigger", {"batch": [trigger_of(step).model_dump() for step in steps]}


def building_calls(case: Case, tier: Tier) -> Calls:
    """Calls that build whatever the tier does not give, each thing after what it needs."""
    calls: Calls = []
    full = case.full
    if "define_type" in BUILDS[tier]:
        for name, fields in full.types.items():
            specs = {key: spec.model_dump(exclude_defaults=True) for key, spec in fields.items()}
            calls.append(("define_type", {"id": name, "fields": specs}))
    if "create_entity" in BUILDS[tier]:
        waiting = dict(full.entities)
        there = set(full.tiles)
        while waiting:
            ready = [
                name
                for name, entity in waiting.items()
                if (entity.holder is None or entity.holder in there)
                and all(
                    entity.fields[key] is None or entity.fields[key] in there
                    for key, spec in full.types[entity.type].items()
                    if spec.kind == "ref"
                )
            ]
            if not ready:
                raise UserError(f"case {case.id}: {min(waiting)!r} needs an entity that needs it")
            for name in ready:
                entity = waiting.pop(name)
                there.add(name)
                calls.append(("create_entity", {"id": name, "type": entity.type, "holder": entity.holder,
                                                "name": entity.name, "fields": dict(entity.fields)}))  # fmt: skip
    if "define_capability" in BUILDS[tier]:
        calls += [
            ("define_capability", {"id": name, **each.model_dump(exclude_defaults=True)})
            for name, each in full.capabilities.items()
        ]
    return calls


def follow(case: Case, tier: Tier, plans: Iterable[Plan], name: str) -> Scripted:
    """A player that builds what is lacking and then follows these plans, one a round."""
    rounds: list[list[Calls]] = []
    for number, plan in enumerate(plans):
        build = building_calls(case, tier) if number == 0 else []
        turns = [build[at : at + AT_ONCE] for at in range(0, len(build), AT_ONCE)]
        rounds.append([*turns, *([batch_call(batch)] for batch in plan), [("end_round", {})]])
    return Scripted(name, lambda number: rounds[number - 1])


def oracle(case: Case, tier: Tier) -> Scripted:
    """Follows the reference course."""
    return follow(case, tier, [round_.plan for round_ in case.rounds], "oracle")


def sloppy(case: Case, tier: Tier) -> Scripted:
    """Leaves out every fifth event and joins each second batch to the one before, where the engine lets it."""
    count, plans = 0, []
    for round_ in case.rounds:
        batches: list[list[Step]] = []
        for number, batch in enumerate(round_.plan):
            kept = []
            for step in batch:
                count += 1
                if count % 5:
                    kept.append(step)
            if number % 2 and batches and kept:
                batches[-1] += kept
            elif kept:
                batches.append(kept)
        plans.append(tuple(tuple(batch) for batch in batches))
    return follow(case, tier, plans, "sloppy")


def adversarial(case: Case, tier: Tier) -> Scripted:
    """Everything that a player should not do. Even rounds are never ended by it."""
    first = next(step for round_ in case.rounds for batch in round_.plan for step in batch)
    good = trigger_of(first).model_dump()
    tricks: Calls = [
        ("destroy_world", {}), ("trigger", "{not json"), ("trigger", "[1, 2]"), ("trigger", {"batch": []}),
        ("trigger", {"batch": "all"}), ("trigger", {"batch": [{**good, "args": {"nothing": 1.5}}]}),
        ("trigger", {"batch": [good, good]}), ("trigger", {"batch": [{**good, "capability": "make_true"}]}),
        ("query_state", {"part": "secrets"}), ("query_state", {"part": "entities", "ids": ["nobody"]}),
        ("query_log", {"last": 10**9}), ("read_narrative", {"round": 10**9}),
        ("define_type", {"id": "X!", "fields": {}}),
        ("create_entity", {"id": "loop", "type": "none", "holder": "loop"}),
        ("define_capability", {"id": "bomb", "guard": "9**9**9"}), ("define_capability", {"id": "self"}),
        ("define_capability", {"id": "deep", "guard": "(" * 400}),
    ]  # fmt: skip
    turns: list[Calls] = [[trick] for trick in tricks]
    return Scripted("adversarial", lambda number: [*turns, [("end_round", {})]] if number % 2 else turns)


def idle(case: Case, tier: Tier) -> Scripted:
    """Does nothing."""
    return Scripted("idle", lambda _: [[("end_round", {})]])


def builder(case: Case, tier: Tier) -> Scripted:
    """Builds whatever is lacking, and does nothing else."""
    return follow(case, tier, [() for _ in case.rounds], "builder")


def everything(case: Case, tier: Tier) -> Scripted:
    """Tries every capability by every actor with every value, a trigger a batch, in each round anew."""
    full, steps = case.full, []
    for name, capability in full.capabilities.items():
        actors: list[str | None] = [key for key, each in full.entities.items() if each.type == capability.owner_type]
        choices = [values_of(case, spec) for spec in capability.params.values()]
        for actor, args in itertools.product(actors if capability.owner_type else [None], itertools.product(*choices)):
            steps.append(Step(None, name, actor, dict(zip(capability.params, args, strict=True))))
    build = building_calls(case, tier)
    turns = [build[at : at + AT_ONCE] for at in range(0, len(build), AT_ONCE)]
    calls = [batch_call([step]) for step in steps]
    tries = [calls[at : at + AT_ONCE] for at in range(0, len(calls), AT_ONCE)]
    first = [*turns, *tries][:MOST_TURNS]
    return Scripted("everything", lambda number: [*(first if number == 1 else tries[:MOST_TURNS]), [("end_round", {})]])


def values_of(case: Case, spec: FieldSpec) -> list[Scalar]:
    """Values that a parameter could be given."""
    full = case.full
    match spec.kind:
        case "bool":
            return [True, False]
        case "enum":
            return list(spec.values or ())
        case "int":
            return [1, -1, 2, -2, 3, -3]
        case "str":
            return ["word"]
    if spec.of == "tile":
        return list(full.tiles)
    return [name for name, entity in full.entities.items() if spec.of in (None, entity.type)]


POLICIES = {
    "oracle": oracle, "sloppy": sloppy, "adversarial": adversarial, "idle": idle, "builder": builder,
    "everything": everything,
}  # fmt: skip


def policy(name: str, case: Case, tier: Tier) -> Scripted:
    """A scripted player by name. Raises UserError."""
    if name not in POLICIES:
        raise UserError(f"no policy {name!r}{nearest(name, list(POLICIES))}")
    return POLICIES[name](case, tier)
