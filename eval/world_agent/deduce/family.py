"""Families of the deduction track as data: fields, processes, other actors, actions, task, five folds (facts 3.7).

Every expression is checked when the file is read. An action with parameters is written with `{name}` in its
expressions and becomes one grounded action for each choice of values.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr

from eval.world_agent.cases import FOLDER, known_cases, parse_model, read_yaml
from eval.world_agent.expressions import Expression, ExpressionError, Scalar
from eval.world_agent.world import Strict
from unify_agent.errors import UserError, nearest
from unify_agent.files import digest, read_json

FOLDS = 5
CLOCK = "t"
"""The name of the time in expressions."""
_FIELD = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_WORD = re.compile(r"[\w-]+")
_WRITE = re.compile(r"([\w.]+)\s*(=|\+=|-=)\s*(.+)")


class FieldFile(Strict):
    """A field of the world. Hidden fields are neither shown nor asked for."""

    start: StrictBool | StrictInt | StrictStr
    about: StrictStr
    low: StrictInt | None = None
    high: StrictInt | None = None
    values: list[StrictStr] | None = None
    hidden: StrictBool = False


class RuleFile(Strict):
    """A rule: `about` is what is told of it in words, the rest is its exact form."""

    about: StrictStr
    when: StrictStr = "true"
    do: list[StrictStr]


class ProcessFile(RuleFile):
    """A process of the world. The commit follows (priority, id)."""

    priority: StrictInt = 10
    every: StrictInt = Field(default=1, ge=1)


class ActionFile(RuleFile):
    """What the player can do; `params` name -> values."""

    params: dict[str, list[StrictStr]] = Field(default_factory=dict)


class TaskFile(Strict):
    """What the player is to reach by the end."""

    about: StrictStr
    goal: StrictStr


class UpkeepFile(Strict):
    """What should hold all the time."""

    about: StrictStr
    keep: StrictStr


class FamilyFile(Strict):
    """A family's file."""

    id: StrictStr
    version: StrictInt = 1
    title: StrictStr
    unit: StrictStr
    role: StrictStr
    intro: StrictStr
    horizon: StrictInt = Field(default=96, ge=1)
    segment: StrictInt = Field(default=12, ge=1)
    interval: StrictInt = Field(default=6, ge=1)
    fields: dict[str, FieldFile]
    processes: dict[str, ProcessFile]
    actors: dict[str, dict[str, RuleFile]]
    actions: dict[str, ActionFile]
    task: TaskFile
    upkeep: dict[str, UpkeepFile]
    plan: list[StrictStr] = Field(min_length=1)
    alternatives: list[StrictStr]
    folds: list[dict[str, StrictBool | StrictInt | StrictStr]]


class WordsFile(Strict):
    """A family's words in another language, by id."""

    title: StrictStr
    unit: StrictStr
    role: StrictStr
    intro: StrictStr
    task: StrictStr
    fields: dict[str, StrictStr]
    processes: dict[str, StrictStr]
    actors: dict[str, dict[str, StrictStr]]
    actions: dict[str, StrictStr]
    upkeep: dict[str, StrictStr]


@dataclass(frozen=True)
class Change:
    """One write of a rule: `op` is '=' or '+='."""

    path: str
    op: Literal["=", "+="]
    value: Expression


@dataclass(frozen=True)
class Rule:
    """A rule, ready to run. `id` is what predictions of fired rules name."""

    id: str
    when: Expression
    changes: tuple[Change, ...]
    priority: int = 0
    every: int = 1


@dataclass(frozen=True)
class Family:
    """A family, ready to run. `actions`: grounded, by their written form such as `open gate=north`."""

    file: FamilyFile
    language: str
    processes: tuple[Rule, ...]
    actors: tuple[tuple[str, tuple[Rule, ...]], ...]
    actions: Mapping[str, Rule]
    goal: Expression
    upkeep: Mapping[str, Expression]
    timeline: list[Any]
    files: tuple[Path, ...]
    digest: str

    @property
    def id(self) -> str:
        return self.file.id

    @property
    def visible(self) -> list[str]:
        """The fields that are shown and asked for."""
        return [name for name, field in self.file.fields.items() if not field.hidden]

    def start(self, fold: int) -> dict[str, Scalar]:
        """The initial state of a fold, from 0."""
        state: dict[str, Scalar] = {name: field.start for name, field in self.file.fields.items()}
        return state | dict(self.file.folds[fold])

    @property
    def rules(self) -> list[str]:
        """Ids of all rules that can fire."""
        return [rule.id for rule in self.processes] + [rule.id for _, rules in self.actors for rule in rules]


def known_families() -> dict[str, Path]:
    """Id and file of every family; `ID.zh` is the same family in Chinese."""
    return known_cases(FOLDER / "deduce")


class _Parser:
    """Parses expressions against the fields of a file. Raises UserError with the place."""

    def __init__(self, file: FamilyFile, where: str):
        self.file, self.where = file, where

    def expression(self, text: str, place: str) -> Expression:
        try:
            expression = Expression(text)
        except ExpressionError as error:
            raise UserError(f"{self.where}: {place}: {error}") from None
        for path in expression.paths:
            name = ".".join(path)
            if name not in self.file.fields and name != CLOCK:
                raise UserError(f"{self.where}: {place}: no field {name!r}{nearest(name, list(self.file.fields))}")
        return expression

    def rule(self, name: str, rule: RuleFile, values: Mapping[str, str] | None = None) -> Rule:
        changes = []
        for text in rule.do:
            text = _filled(text, values or {})
            if not (match := _WRITE.fullmatch(text.strip())) or match.group(1) not in self.file.fields:
                raise UserError(f"{self.where}: {name}: {text!r} is not 'field = value', 'field += value' or '-='")
            path, sign, value = match.groups()
            value = f"-({value})" if sign == "-=" else value
            changes.append(Change(path, "=" if sign == "=" else "+=", self.expression(value, name)))
        when = self.expression(_filled(rule.when, values or {}), name)
        extra = {"priority": rule.priority, "every": rule.every} if isinstance(rule, ProcessFile) else {}
        return Rule(name, when, tuple(changes), **extra)


def _filled(text: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        text = text.replace("{" + key + "}", value)
    return text


def grounded_name(action: str, args: Mapping[str, Any]) -> str:
    """The written form of an action: `open gate=north`."""
    return " ".join([action, *(f"{key}={value}" for key, value in sorted(args.items()))])


def _actions(parser: _Parser) -> dict[str, Rule]:
    result = {}
    for name, action in parser.file.actions.items():
        for values in itertools.product(*action.params.values()):
            args = dict(zip(action.params, values, strict=True))
            written = grounded_name(name, args)
            result[written] = parser.rule(written, action, args)
    return result


def load_family(name: str | Path) -> Family:
    """A family by id (`quay`, `quay.zh`) or by the path of its file. Raises UserError."""
    path = Path(name) if str(name).endswith(".yaml") else known_families().get(str(name))
    if path is None:
        raise UserError(f"no deduction family {str(name)!r}{nearest(str(name), list(known_families()))}")
    base, _, language = path.name.removesuffix(".yaml").partition(".")
    parts, words = [path], None
    if language:
        words = parse_model(WordsFile, read_yaml(path, "translation"), str(path))
        path = path.with_name(f"{base}.yaml")
        parts.append(path)
    file: FamilyFile = parse_model(FamilyFile, read_yaml(path, "family"), str(path))
    parser = _Parser(file, str(path))
    _check(file, base, str(path))
    rules = (parser.rule(key, each) for key, each in file.processes.items())
    processes = sorted(rules, key=lambda rule: (rule.priority, rule.id))
    actors = tuple(
        (actor, tuple(parser.rule(f"{actor}.{key}", each) for key, each in own.items()))
        for actor, own in sorted(file.actors.items())
    )
    actions = _actions(parser)
    for each in (*file.plan, *file.alternatives):
        if each != "wait" and each not in actions:
            raise UserError(f"{path}: no action {each!r}{nearest(each, list(actions))}")
    goal = parser.expression(file.task.goal, "task")
    upkeep = {key: parser.expression(each.keep, f"upkeep {key}") for key, each in file.upkeep.items()}
    timeline = path.with_name(f"{base}.timeline.json")
    parts.append(timeline)
    if words is not None:
        file = _translated(file, words, str(parts[0]))
    return Family(
        file, language or "en", tuple(processes), actors, actions, goal, upkeep,
        read_json(timeline, "timeline") if timeline.is_file() else [], tuple(parts),
        digest(*(part for part in parts if part.is_file())),
    )  # fmt: skip


def _check(file: FamilyFile, base: str, where: str) -> None:
    if file.id != base:
        raise UserError(f"{where}: its id is {file.id!r}; name the file {file.id}.yaml")
    if len(file.folds) != FOLDS:
        raise UserError(f"{where}: {len(file.folds)} folds; a family has {FOLDS}")
    if file.horizon % file.segment or file.horizon % file.interval:
        raise UserError(f"{where}: the horizon {file.horizon} is no multiple of segment and interval")
    if "wait" in file.actions:
        raise UserError(f"{where}: 'wait' is no action: it is having none")
    for name, spec in file.fields.items():
        if not _FIELD.fullmatch(name) or name == CLOCK:
            raise UserError(f"{where}: field {name!r}: small letters, digits, '_' and dots; {CLOCK!r} is the time")
        if (spec.low is not None or spec.high is not None) and type(spec.start) is not int:
            raise UserError(f"{where}: field {name!r}: 'low' and 'high' belong to whole numbers")
    for name, action in file.actions.items():
        if not all(_WORD.fullmatch(value) for values in action.params.values() for value in values):
            raise UserError(f"{where}: action {name!r}: values of parameters are single words")
    for fold in ({name: spec.start for name, spec in file.fields.items()}, *file.folds):
        for name, value in fold.items():
            known = file.fields.get(name)
            if known is None or type(value) is not type(known.start) or not _lies_in(known, value):
                raise UserError(f"{where}: start or folds: {name} = {value!r} is no value of a field")


def _lies_in(spec: FieldFile, value: Scalar) -> bool:
    if spec.values is not None:
        return value in spec.values
    if type(value) is not int:
        return True
    return (spec.low is None or spec.low <= value) and (spec.high is None or value <= spec.high)


def _translated(file: FamilyFile, words: WordsFile, where: str) -> FamilyFile:
    """The family with another language's words for everything that is told in words."""

    def told(part: Mapping[str, Any], texts: Mapping[str, str], what: str) -> dict[str, Any]:
        if missing := set(part) ^ set(texts):
            raise UserError(f"{where}: {what}: {min(missing)!r} stands in one language only")
        return {key: each.model_copy(update={"about": texts[key]}) for key, each in part.items()}

    if missing := set(file.actors) ^ set(words.actors):
        raise UserError(f"{where}: actors: {min(missing)!r} stands in one language only")
    return file.model_copy(update={
        "title": words.title, "unit": words.unit, "role": words.role, "intro": words.intro,
        "task": file.task.model_copy(update={"about": words.task}),
        "fields": told(file.fields, words.fields, "fields"),
        "processes": told(file.processes, words.processes, "processes"),
        "actions": told(file.actions, words.actions, "actions"),
        "upkeep": told(file.upkeep, words.upkeep, "upkeep"),
        "actors": {key: told(rules, words.actors[key], f"actors, {key}") for key, rules in file.actors.items()},
    })  # fmt: skip
