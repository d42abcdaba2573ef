"""The deduction engine: whole time, whole numbers, no chance.

One unit of time: the other actors in the order of their ids, each its first rule that applies; then the player's
action; then all processes, which read one and the same state and are committed together in the order (priority, id).
Numbers are kept within their field's bounds after each of the three parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from eval.world_agent.deduce.family import CLOCK, Change, Family, Rule
from eval.world_agent.expressions import ExpressionError, Path, Scalar, same, whole
from unify_agent.errors import nearest
from unify_agent.files import digest

State = dict[str, Scalar]
Changes = dict[str, Scalar]
"""Path -> value at the end, for the fields that differ from the start."""


@dataclass
class Simulation:
    """A world at time `t`. `fired`: ids of the rules that fired in each unit so far. `kept`: units in which each
    upkeep held."""

    family: Family
    state: State
    t: int = 0
    fired: list[frozenset[str]] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def begin(family: Family, fold: int) -> Simulation:
        """A fold at its start."""
        return Simulation(family, family.start(fold), kept=dict.fromkeys(family.upkeep, 0))

    def branch(self) -> Simulation:
        """A copy that goes its own way."""
        return Simulation(self.family, dict(self.state), self.t, list(self.fired), dict(self.kept))

    def look(self, path: Path) -> Scalar:
        """The value of a field, or the time."""
        name = ".".join(path)
        return self.t if name == CLOCK else self.state[name]

    def refusal(self, action: str | None) -> str:
        """Why an action cannot be taken now; '' when it can. None is waiting."""
        if action is None:
            return ""
        rule = self.family.actions.get(action)
        if rule is None:
            return f"no action {action!r}{nearest(action, list(self.family.actions))}"
        return "" if rule.when.truth(self.look) else f"{action!r} is not possible now"

    def step(self, action: str | None = None) -> None:
        """One unit of time. The action must be possible."""
        fired = set()
        for _, rules in self.family.actors:
            rule = next((rule for rule in rules if rule.when.truth(self.look)), None)
            if rule is not None:
                fired.add(rule.id)
                self._commit([rule])
        if action is not None:
            self._commit([self.family.actions[action]])
        due = [r for r in self.family.processes if self.t % r.every == 0 and r.when.truth(self.look)]
        fired.update(rule.id for rule in due)
        self._commit(due)
        self.t += 1
        self.fired.append(frozenset(fired))
        for name, keep in self.family.upkeep.items():
            self.kept[name] += keep.truth(self.look)

    def _commit(self, rules: Iterable[Rule]) -> None:
        found: list[tuple[Change, Scalar]] = [
            (change, change.value.evaluate(self.look)) for rule in rules for change in rule.changes
        ]
        for change, value in found:
            old = self.state[change.path]
            new = whole(old) + whole(value) if change.op == "+=" else value
            if type(new) is not type(old):
                raise ExpressionError(f"{change.path}: {new!r} for {old!r}")
            self.state[change.path] = new
        for path in {change.path for change, _ in found}:
            spec, value = self.family.file.fields[path], self.state[path]
            if spec.values is not None and value not in spec.values:
                raise ExpressionError(f"{path}: {value!r} is none of {', '.join(spec.values)}")
            if type(value) is int:
                value = value if spec.low is None else max(spec.low, value)
                self.state[path] = value if spec.high is None else min(spec.high, value)

    def run(self, until: int, action: str | None = None) -> Simulation:
        """Go on to time `until`, with `action` in the first unit; returns itself."""
        while self.t < until:
            self.step(action)
            action = None
        return self

    def seen(self) -> State:
        """The visible fields."""
        return {name: self.state[name] for name in self.family.visible}

    def fired_since(self, t: int) -> frozenset[str]:
        """Ids of the rules that fired in (t, now]."""
        return frozenset().union(*self.fired[t:])

    def hash(self) -> str:
        """SHA-256 over time and state."""
        return digest(json.dumps([self.t, self.state], ensure_ascii=False, sort_keys=True))


def changes(before: State, after: State) -> Changes:
    """What differs, with the values afterwards."""
    return {path: value for path, value in after.items() if not same(before[path], value)}


def timeline(family: Family) -> list[list[Changes]]:
    """The zero-intervention timeline of each fold: the changes of each interval."""
    result = []
    for fold in range(len(family.file.folds)):
        simulation, found = Simulation.begin(family, fold), []
        while simulation.t < family.file.horizon:
            before = simulation.seen()
            simulation.run(simulation.t + family.file.interval)
            found.append(changes(before, simulation.seen()))
        result.append(found)
    return result
