"""Scripted players of the deduction track: the oracle, the oracle with noise, and baselines that need no model.

All take the family's own plan of actions, so their worlds are one and the same and only the predictions differ.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from eval.world_agent.deduce.family import Family
from eval.world_agent.deduce.questions import AHEAD, WAIT, Question
from eval.world_agent.deduce.simulation import Changes, Simulation, State, truth
from eval.world_agent.expressions import Scalar, same
from eval.world_agent.talk import Reply, Turn
from unify_agent.errors import UserError, nearest
from unify_agent.files import digest


class Baseline:
    """A way of predicting as a player. It remembers the state that it was asked about last."""

    def __init__(self, name: str, family: Family, fold: int):
        self.identity: dict[str, Any] = {"player": name}
        self.name, self.family, self.fold = name, family, fold
        self.last: State | None = None
        zero, ends = Simulation.begin(family, fold), []
        while zero.t < family.file.horizon:
            ends.append(zero.run(zero.t + family.file.interval).seen())
        self.common: dict[str, Scalar] = {
            path: Counter(json.dumps(end[path]) for end in ends).most_common(1)[0][0] for path in family.visible
        }
        self.common = {path: json.loads(str(text)) for path, text in self.common.items()}

    def reply(self, turn: Turn) -> Reply:
        """See Player."""
        assert turn.question is not None
        return self.answer(turn.question)

    def answer(self, question: Question) -> Reply:
        """The answer to a question, as a model would write it."""
        plan = self.family.file.plan
        action = plan[(question.number - 1) % len(plan)]
        if question.mode == "m1" or action == WAIT or question.world.refusal(action):
            action = WAIT
        plain = None if action == WAIT else action
        said = self._part(question, question.t1, plain)
        said["fired"] = self._fired(question, plain)
        if question.mode == "m2":
            said["action"] = action
        if question.deep:
            said["lookahead"] = self._part(question, question.t0 + AHEAD, plain)
            said["counterfactual"] = self._part(question, question.t1, question.alternative)
        self.last = question.seen
        return Reply(json.dumps(said, ensure_ascii=False))

    def _part(self, question: Question, until: int, action: str | None) -> dict[str, Any]:
        found = PREDICTORS[self.name](self, question, until, action)
        return {"changes": found} if found else {"changes": {}, "nothing_changes": True}

    def _fired(self, question: Question, action: str | None) -> dict[str, int]:
        if self.name in ("oracle", "noisy"):
            return question.world.branch().run(question.t1, action).fired_since(question.t0)
        if self.name == "zero":
            return Simulation.begin(self.family, self.fold).run(question.t1).fired_since(question.t0)
        if self.name == "common":
            return dict.fromkeys(self.family.rules, 1)
        return {}


def _nothing(player: Baseline, question: Question, until: int, action: str | None) -> Changes:
    return {}


def _repeat(player: Baseline, question: Question, until: int, action: str | None) -> Changes:
    """The last change once more for each interval of the span; without feedback there is none."""
    if player.last is None or question.mode == "m1":
        return {}
    times = (until - question.t0) // player.family.file.interval
    result: Changes = {}
    for path, now in question.seen.items():
        before = player.last[path]
        if same(now, before) or type(now) is not int or type(before) is not int:
            continue
        spec, value = player.family.file.fields[path], now + times * (now - before)
        value = value if spec.low is None else max(spec.low, value)
        value = value if spec.high is None else min(spec.high, value)
        if value != now:
            result[path] = value
    return result


def _zero(player: Baseline, question: Question, until: int, action: str | None) -> Changes:
    """What the zero-intervention timeline changes over the span."""
    zero = Simulation.begin(player.family, player.fold).run(question.t0)
    return truth(zero, until, None)


def _common(player: Baseline, question: Question, until: int, action: str | None) -> Changes:
    """For each field its most frequent value on the zero-intervention timeline; every rule is said to fire."""
    return {path: value for path, value in player.common.items() if not same(value, question.seen[path])}


def _oracle(player: Baseline, question: Question, until: int, action: str | None) -> Changes:
    return truth(question.world, until, action)


def _noisy(player: Baseline, question: Question, until: int, action: str | None) -> Changes:
    """The truth, a fifth of it spoilt: which fifth follows from a digest, not from chance."""
    found = truth(question.world, until, action)
    kept: Changes = {}
    for path, value in found.items():
        draw = int(digest(f"{player.family.id} {player.fold} {question.t0} {until} {path}")[:8], 16) % 100
        if draw >= NOISE:
            kept[path] = value
        elif type(value) is int:
            kept[path] = value + 1
    return kept


NOISE = 20
"""Percent of the fields that `noisy` gets wrong or leaves out."""
PREDICTORS: dict[str, Callable[[Baseline, Question, int, str | None], Changes]] = {
    "oracle": _oracle, "noisy": _noisy, "nothing": _nothing, "repeat": _repeat, "zero": _zero, "common": _common,
}  # fmt: skip
WEAK = ("nothing", "repeat", "zero", "common")
"""Those that know no rule."""


def baseline(name: str, family: Family, fold: int) -> Baseline:
    """A scripted player by name. Raises UserError."""
    if name not in PREDICTORS:
        raise UserError(f"no policy {name!r}{nearest(name, list(PREDICTORS))}")
    return Baseline(name, family, fold)
