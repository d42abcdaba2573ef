"""What a player is told about a family. Under `open` the rules stand there exactly; under `naming` only in words:
no formula, no bound and no number of a rule reaches the text (validation proves it)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from eval.world_agent.cases import read_yaml
from eval.world_agent.chat import PROMPTS
from eval.world_agent.deduce.family import Family, ProcessFile, RuleFile
from eval.world_agent.expressions import Scalar

Mode = Literal["m1", "m2"]
Condition = Literal["open", "naming"]
MODES: tuple[Mode, ...] = ("m1", "m2")
CONDITIONS: tuple[Condition, ...] = ("open", "naming")


def words(language: str) -> dict[str, str]:
    """The prompts of a language; English where there are none."""
    prompts = read_yaml(PROMPTS / "deduce.yaml", "prompts")
    return prompts.get(language, prompts["en"])


def shown(state: Mapping[str, Scalar]) -> str:
    """A state as JSON."""
    return json.dumps(dict(state), ensure_ascii=False)


def _rule(name: str, rule: RuleFile, told: Mapping[str, str], exact: bool) -> str:
    text = f"- {name}: {rule.about}"
    if not exact:
        return text
    form = f"{told['when']} {rule.when}: {'; '.join(rule.do)}"
    if isinstance(rule, ProcessFile):
        form += f" [priority {rule.priority}, {told['every'].format(every=rule.every)}]"
    return f"{text} | {form}"


def brief(family: Family, mode: Mode, condition: Condition) -> str:
    """The system text of an episode."""
    file, told, exact = family.file, words(family.language), condition == "open"
    fields = []
    for name in family.visible:
        spec = file.fields[name]
        kind = " | ".join(spec.values) if spec.values else type(spec.start).__name__
        if exact and spec.low is not None and spec.high is not None:
            kind += f", {told['bounds'].format(low=spec.low, high=spec.high)}"
        fields.append(f"- {name} ({kind}): {spec.about}")
    if exact:
        fields += [f"- {name} (not shown): {spec.about}" for name, spec in file.fields.items() if spec.hidden]
    rules = [
        _rule(f"{actor}.{name}", rule, told, exact)
        for actor, own in sorted(file.actors.items())
        for name, rule in own.items()
    ]
    rules += [_rule(name, rule, told, exact) for name, rule in file.processes.items()]
    doing = told[mode]
    if mode == "m2":
        actions = []
        for name, action in file.actions.items():
            written = " ".join([name, *(f"{key}={'|'.join(values)}" for key, values in action.params.items())])
            actions.append(_rule(written, action, told, exact))
        upkeep = [f"- {each.about}" + (f" | {each.keep}" if exact else "") for each in file.upkeep.values()]
        task = file.task.about + (f" | {file.task.goal}" if exact else "")
        doing = doing.format(role=file.role, horizon=file.horizon, unit=file.unit, task=task,
                             upkeep="\n".join(upkeep), actions="\n".join(actions))  # fmt: skip
    return told["system"].format(
        title=file.title, intro=file.intro, unit=file.unit, role=file.role, fields="\n".join(fields),
        rules="\n".join(rules), doing=doing, disclosure=told[condition].format(),
    )  # fmt: skip
