"""The deduction engine: whole time, whole numbers, no chance.

One unit of time: the other actors in the order of their ids, each its first rule that applies; then the player's
action; then all processes, which read one and the same state and are committed together in the order (priority, id).
Numbers are kept within their field's bounds after each of the three parts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from eval.world_agent.deduce.family import CLOCK, Change, Family, Rule
from eval.world_agent.expressions import Expression, ExpressionError, Path, Scalar, same, whole
from unify_agent.errors import UserError, nearest
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
        return "" if self.holds(action, rule.when) else f"{action!r} is not possible now"

    def holds(self, name: str, condition: Expression) -> bool:
        """Whether a condition of the family holds now. Raises UserError when it makes no sense of the state."""
        try:
            return condition.truth(self.look)
        except ExpressionError as error:
            raise self._senseless(name, error) from None

    def _senseless(self, name: str, error: ExpressionError) -> UserError:
        return UserError(f"{self.family.files[0]}: {name}, at time {self.t}: {error}")

    def step(self, action: str | None = None) -> None:
        """One unit of time. The action must be possible."""
        fired = set()
        for _, rules in self.family.actors:
            rule = next((rule for rule in rules if self.holds(rule.id, rule.when)), None)
            if rule is not None:
                fired.add(rule.id)
                self._commit([rule])
        if action is not None:
            self._commit([self.family.actions[action]])
        due = [r for r in self.family.processes if self.t % r.every == 0 and self.holds(r.id, r.when)]
        fired.update(rule.id for rule in due)
        self._commit(due)
        self.t += 1
        self.fired.append(frozenset(fired))
        for name, keep in self.family.upkeep.items():
            self.kept[name] += self.holds(f"upkeep {name}", keep)

    def _commit(self, rules: Iterable[Rule]) -> None:
        found: list[tuple[Rule, Change, Scalar]] = []
        for rule, change in [(each, change) for each in rules for change in each.changes]:
            try:
                found.append((rule, change, change.value.evaluate(self.look)))
            except ExpressionError as error:
                raise self._senseless(rule.id, error) from None
        for rule, change, value in found:
            old = self.state[change.path]
            try:
                new = whole(old) + whole(value) if change.op == "+=" else value
                if type(new) is not type(old):
                    raise ExpressionError(f"{change.path}: {new!r} for {old!r}")
                self.state[change.path] = new if type(new) is not int else whole(new)
            except ExpressionError as error:
                raise self._senseless(rule.id, error) from None
        for rule, change, _ in found:
            path = change.path
            spec, value = self.family.file.fields[path], self.state[path]
            if spec.values is not None and value not in spec.values:
                told = ExpressionError(f"{path}: {value!r} is none of {', '.join(spec.values)}")
                raise self._senseless(rule.id, told)
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

    def fired_since(self, t: int) -> dict[str, int]:
        """The rules that fired in (t, now], each with the number of units in which it did."""
        return dict(sorted(Counter(name for unit in self.fired[t:] for name in unit).items()))

    def hash(self) -> str:
        """SHA-256 over time and state."""
        return digest(json.dumps([self.t, self.state], ensure_ascii=False, sort_keys=True))


def changes(before: State, after: State) -> Changes:
    """What differs, with the values afterwards."""
    return {path: value for path, value in after.items() if not same(before[path], value)}


def truth(world: Simulation, until: int, action: str | None) -> Changes:
    """What differs at time `until` from now, with this action now and none after it; the world stays as it is."""
    return changes(world.seen(), world.branch().run(until, action).seen())


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
