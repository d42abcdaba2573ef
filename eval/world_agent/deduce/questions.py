"""Questions of an episode and the answers to them. What is asked must be answered: an answer that leaves a part out
is sent back, and one that never comes is an error that the score names, not a zero."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eval.world_agent.deduce.brief import Mode, shown, words
from eval.world_agent.deduce.family import Family, grounded_name
from eval.world_agent.deduce.simulation import Changes, Simulation, State
from eval.world_agent.expressions import Scalar
from unify_agent.errors import nearest
from unify_agent.judging.structured import objects_in

AHEAD = 48
"""Units that a lookahead looks ahead."""
DEEP_EVERY = 4
"""Every so many decisions a lookahead and a counterfactual are asked for."""
WAIT = "wait"


class Problem(Exception):
    """Why an answer cannot be taken, in one line for the player."""


@dataclass(frozen=True)
class Question:
    """One question. `seen`: the visible state at `t0` as the player knows it. `world` is the true one at `t0`: for
    scoring and for scripted players, never shown."""

    mode: Mode
    number: int
    of: int
    t0: int
    t1: int
    seen: State
    world: Simulation
    deep: bool = False
    alternative: str | None = None

    def text(self) -> str:
        """The question as it is asked."""
        family = self.world.family
        told = words(family.language)
        if self.mode == "m1":
            text = told["ask_m1"].format(number=self.number, of=self.of, t0=self.t0, t1=self.t1)
            return f"{told['start_m1'].format(state=shown(self.seen))}\n{text}" if self.number == 1 else text
        more = ', "lookahead": {"changes": {...}}, "counterfactual": {"changes": {...}}' if self.deep else ""
        text = told["ask_m2"].format(
            number=self.number, of=self.of, t0=self.t0, t1=self.t1, state=shown(self.seen), more=more
        )
        if self.deep:
            text += "\n" + told["lookahead"].format(t=self.t0 + AHEAD)
            text += "\n" + told["counterfactual"].format(t=self.t1, action=self.alternative or WAIT)
        return text


@dataclass(frozen=True)
class Prediction:
    """An answer that was taken. `action` None: waiting, or a mode without actions."""

    action: str | None
    changes: Changes
    fired: Mapping[str, int]
    lookahead: Changes | None = None
    counterfactual: Changes | None = None


def alternative_of(family: Family, number: int, world: Simulation) -> str | None:
    """The other action that a counterfactual asks about: the family's list in turn, the first that is possible."""
    listed = family.file.alternatives
    for shift in range(len(listed)):
        action = listed[(number + shift) % len(listed)]
        plain = None if action == WAIT else action
        if not world.refusal(plain):
            return plain
    return None


def _changes(value: Any, family: Family, where: str) -> Changes:
    if not isinstance(value, dict) or not isinstance(value.get("changes"), dict):
        raise Problem(f'{where} is asked for and holds no "changes" object')
    found: dict[str, Scalar] = {}
    for path, new in value["changes"].items():
        if path not in family.visible:
            raise Problem(f"{where}: no field {path!r}{nearest(path, family.visible)}")
        if type(new) not in (int, bool, str):
            raise Problem(f"{where}: {path}: a whole number, true, false or a text, not {json.dumps(new)[:40]}")
        found[path] = new
    if not found and value.get("nothing_changes") is not True:
        raise Problem(f'{where} is empty; if nothing will differ, add "nothing_changes": true')
    return found


def _action(value: Any, family: Family) -> str | None:
    if isinstance(value, Mapping) and isinstance(value.get("action"), str):
        args = value.get("args") or {}
        if not isinstance(args, dict):
            raise Problem('"args" of an action is an object of names and values')
        value = grounded_name(value["action"], args)
    if not isinstance(value, str) or not value.strip():
        raise Problem('"action" is asked for: one of the actions, or "wait"')
    head, *rest = value.split()
    written = " ".join([head, *sorted(rest)])
    return None if written == WAIT else written


def read_answer(text: str, question: Question) -> Prediction:
    """The prediction in an answer's text. Of a path that is given twice the last counts. Raises Problem."""
    family = question.world.family
    value = next((each for each in objects_in(text) if "changes" in each), None)
    if value is None:
        raise Problem('there is no JSON object with "changes"')
    fired = value.get("fired")
    if not isinstance(fired, dict) or not all(type(times) is int and times > 0 for times in fired.values()):
        raise Problem('"fired" is asked for: an object of ids of rules and how many times each fires, at least 1')
    for each in fired:
        if each not in family.rules:
            raise Problem(f'"fired": no rule {each!r}{nearest(each, family.rules)}')
    action = _action(value.get("action"), family) if question.mode == "m2" else None
    changes = _changes(value, family, "the prediction")
    ahead = _changes(value.get("lookahead"), family, '"lookahead"') if question.deep else None
    other = _changes(value.get("counterfactual"), family, '"counterfactual"') if question.deep else None
    if question.mode == "m2" and (refusal := question.world.refusal(action)):
        raise Refused(refusal)
    return Prediction(action, changes, fired, ahead, other)


class Refused(Problem):
    """An action that is not possible; it costs no time, and it is counted."""


@dataclass
class Walk:
    """Goes through an episode's questions in order; the answers decide how the world goes on."""

    family: Family
    mode: Mode
    fold: int
    world: Simulation = field(init=False)
    number: int = 0

    def __post_init__(self) -> None:
        self.world = Simulation.begin(self.family, self.fold)
        self.first = self.world.seen()
        file = self.family.file
        self.span = file.segment if self.mode == "m1" else file.interval
        self.of = file.horizon // self.span

    @property
    def over(self) -> bool:
        return self.number == self.of

    def question(self) -> Question:
        """The next question."""
        t0 = self.number * self.span
        deep = self.mode == "m2" and self.number % DEEP_EVERY == 0
        seen = self.first if self.mode == "m1" else self.world.seen()
        other = alternative_of(self.family, self.number // DEEP_EVERY, self.world) if deep else None
        return Question(self.mode, self.number + 1, self.of, t0, t0 + self.span, seen, self.world.branch(), deep, other)

    def advance(self, action: str | None) -> None:
        """Let the world go on to the next question."""
        self.number += 1
        self.world.run(self.number * self.span, action)
