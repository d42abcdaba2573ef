"""Proves that a deduction family is sound; what it finds wrong is said in one line each.

The zero-intervention replay equals the frozen timeline; the oracle scores 1.0 in every readout; players that know no
rule stay below one half wherever the paper's models do; under `naming` the brief does not depend on a single number of
the rules; every rule fires and every action is possible somewhere.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

from eval.world_agent.deduce.baselines import WEAK, baseline
from eval.world_agent.deduce.brief import MODES, Mode, brief
from eval.world_agent.deduce.family import FOLDS, Family, FamilyFile
from eval.world_agent.deduce.questions import Walk, read_answer
from eval.world_agent.deduce.readouts import readout_values
from eval.world_agent.deduce.simulation import Simulation, timeline
from eval.world_agent.scoring import decimal, mean
from unify_agent.files import write_json

HALF = Fraction(1, 2)
MOST_IDLE = 2
"""Folds in which the task may be reached by nothing but waiting."""


def freeze(family: Family) -> None:
    """Write the zero-intervention timeline beside the family's file."""
    path = next(file for file in family.files if file.name.endswith(".timeline.json"))
    write_json(path, timeline(family), indent=None)


def rehearse(family: Family, mode: Mode, name: str, folds: range = range(FOLDS)) -> dict[str, Fraction]:
    """Mean F1 of a scripted player by readout, over folds, without files."""
    found: dict[str, list[Fraction]] = {}
    for fold in folds:
        player, walk = baseline(name, family, fold), Walk(family, mode, fold)
        while not walk.over:
            question = walk.question()
            said = read_answer(player.answer(question).text, question)
            walk.advance(said.action)
            event = {"seen": walk.world.seen(), "fired": walk.world.fired_since(question.t0)}
            for readout, (value, _) in readout_values(question, event, said).items():
                found.setdefault(readout, []).append(value)
    return {readout: mean(each) or Fraction(0) for readout, each in found.items()}


def check_family(family: Family) -> list[str]:
    """What is wrong with a family; [] when nothing is."""
    found = []
    if family.timeline != timeline(family):
        found.append("the zero-intervention replay is not the frozen timeline (freeze it with --freeze)")
    for mode in MODES:
        for readout, value in rehearse(family, mode, "oracle").items():
            if value != 1:
                found.append(f"{mode}: the oracle scores {decimal(value)} in {readout}")
        for name in WEAK:
            for readout, value in rehearse(family, mode, name).items():
                # in m1 nobody intervenes, so the timeline is the answer; in m2 most rules fire as they would anyway
                own_truth = name == "zero" and (mode == "m1" or readout == "rules")
                if not own_truth and value >= HALF:
                    found.append(f"{mode}: {name!r}, which knows no rule, scores {decimal(value)} in {readout}")
    waited = (Simulation.begin(family, fold).run(family.file.horizon) for fold in range(FOLDS))
    if (reached := sum(world.holds("task", family.goal) for world in waited)) > MOST_IDLE:
        found.append(f"the task is reached by waiting in {reached} of {FOLDS} folds")
    return found + check_naming(family) + check_use(family)


def other_numbers(file: FamilyFile) -> FamilyFile:
    """The same family with every number of its rules, bounds and hidden fields another one."""

    def moved(text: str) -> str:
        return re.sub(r"\d+", lambda match: str(int(match.group()) + 1), text)

    def other(rule):  # type: ignore[no-untyped-def]
        change = {"when": moved(rule.when), "do": [moved(each) for each in rule.do]}
        if hasattr(rule, "every"):
            change |= {"every": rule.every + 1, "priority": rule.priority + 1}
        return rule.model_copy(update=change)

    fields = {
        name: field.model_copy(update={
            "low": None if field.low is None else field.low - 1, "high": None if field.high is None else field.high + 1,
            "start": field.start + 1 if field.hidden and type(field.start) is int else field.start,
        })
        for name, field in file.fields.items()
    }  # fmt: skip
    return file.model_copy(update={
        "fields": fields,
        "processes": {key: other(rule) for key, rule in file.processes.items()},
        "actors": {actor: {key: other(rule) for key, rule in own.items()} for actor, own in file.actors.items()},
        "actions": {key: other(rule) for key, rule in file.actions.items()},
        "task": file.task.model_copy(update={"goal": moved(file.task.goal)}),
        "upkeep": {key: each.model_copy(update={"keep": moved(each.keep)}) for key, each in file.upkeep.items()},
    })  # fmt: skip


def check_naming(family: Family) -> list[str]:
    """Whether `naming` hides every number and formula, and `open` shows them."""
    found, other = [], replace(family, file=other_numbers(family.file))
    file = family.file
    actors = (rule for own in file.actors.values() for rule in own.values())
    rules = [*file.processes.values(), *file.actions.values(), *actors]
    for mode in MODES:
        told = brief(family, mode, "naming")
        if told != brief(other, mode, "naming"):
            found.append(f"{mode}: a number of the rules shows under naming")
        if brief(family, mode, "open") == brief(other, mode, "open"):
            found.append(f"{mode}: the numbers of the rules do not show under open")
        formulas = [text for rule in rules for text in (*rule.do, rule.when) if text != "true"]
        if shown := next((text for text in formulas if text in told), None):
            found.append(f"{mode}: the formula {shown!r} shows under naming")
        hidden = [name for name, field in file.fields.items() if field.hidden]
        if shown := next((name for name in hidden if name in told), None):
            found.append(f"{mode}: the hidden field {shown!r} shows under naming")
    texts = [file.intro, file.role, file.task.about, *(rule.about for rule in rules)]
    texts += [each.about for each in file.fields.values()] + [each.about for each in file.upkeep.values()]
    for text in texts:
        if re.search(r"\d", text):
            found.append(f"a description holds a number: {text!r}")
    return found


def check_use(family: Family) -> list[str]:
    """Whether every rule fires and every action is possible, in some fold, with the plan or without it."""
    idle_rules, impossible = set(family.rules), set(family.actions)
    for mode in MODES:
        for fold in range(FOLDS):
            player, walk = baseline("nothing", family, fold), Walk(family, mode, fold)
            while not walk.over:
                question = walk.question()
                impossible -= {name for name in impossible if not walk.world.refusal(name)}
                walk.advance(read_answer(player.answer(question).text, question).action)
            idle_rules -= walk.world.fired_since(0).keys()
    return [f"rule {name!r} never fires" for name in sorted(idle_rules)] + [
        f"action {name!r} is never possible" for name in sorted(impossible)
    ]
