"""The short forms of case files: fields, writes, triggers, and the marks in narratives."""

from __future__ import annotations

import re
from typing import Any, Literal

from eval.world_agent.contracts import Step
from eval.world_agent.world import FieldSpec, Refusal, Write

MARK = re.compile(r"\[([a-z]\w*(?:, ?[a-z]\w*)*): ([^\[\]]+)\]")
_WRITE = re.compile(r"(\w+)\.(\w+)\s*(\+?=)\s*(.+)")


def spec_of(value: Any, where: str) -> FieldSpec:
    """A field in short form: `false`, `3`, `0..10=4`, `calm|angry`, `text`, `ref`, `ref:tile`; or a full mapping."""
    if isinstance(value, dict):
        return FieldSpec.model_validate(value)
    if isinstance(value, bool):
        return FieldSpec(kind="bool", default=value)
    if isinstance(value, int):
        return FieldSpec(kind="int", default=value)
    if isinstance(value, str):
        if span := re.fullmatch(r"(-?\d+)\.\.(-?\d+)(?:=(-?\d+))?", value):
            low, high, default = span.groups()
            start = None if default is None else int(default)
            return FieldSpec(kind="int", low=int(low), high=int(high), default=start)
        if "|" in value:
            return FieldSpec(kind="enum", values=value.split("|"))
        if value.partition(":")[0] == "ref":
            return FieldSpec(kind="ref", of=value.partition(":")[2] or None)
        if value in ("text", "int", "bool"):
            return FieldSpec(kind="str" if value == "text" else value)  # type: ignore[arg-type]
    raise Refusal(f"{where}: {value!r} is no field")


def write_of(text: str | None, where: str) -> Write | None:
    """A write in short form: `door.locked = true`, `tank.level += 5`, `self.holder = to`."""
    if text is None:
        return None
    if not (match := _WRITE.fullmatch(text.strip())):
        raise Refusal(f"{where}: write {text!r} is not 'target.field = value' or 'target.field += value'")
    target, field, sign, value = match.groups()
    op: Literal["set", "add", "move"] = "move" if field == "holder" else "add" if sign == "+=" else "set"
    return Write(target=target, field=field, op=op, value=value)


def parameter_of(value: Any, where: str) -> FieldSpec:
    """A parameter in short form. It must be given: the value there only tells its kind."""
    return spec_of(value, where).model_copy(update={"default": None})


def cut(text: str) -> tuple[str, dict[str, str]]:
    """A text without its marks, and the words under each mark."""
    found: dict[str, str] = {}
    for names, words in MARK.findall(text):
        for name in re.split(", ?", names):
            if name in found:
                raise Refusal(f"mark {name!r} stands twice")
            found[name] = words
    plain = MARK.sub(lambda match: match.group(2), text).strip()
    if "[" in plain or "]" in plain:
        raise Refusal(f"a mark is broken near {plain[max(0, plain.find('[')) :][:40]!r}")
    return plain, found


def step_of(text: str, event: str | None, where: str) -> Step:
    """A trigger in short form: `ada unlock door=gate times=2`; actor `-` for the world itself."""
    words = text.split()
    if len(words) < 2 or any("=" not in word for word in words[2:]):
        raise Refusal(f"{where}: {text!r} is not 'actor capability name=value ...'")
    args: dict[str, Any] = {}
    for word in words[2:]:
        key, _, value = word.partition("=")
        plain: Any = {"true": True, "false": False, "null": None}.get(value, value)
        args[key] = int(plain) if isinstance(plain, str) and re.fullmatch(r"-?\d+", plain) else plain
    return Step(event, words[1], None if words[0] == "-" else words[0], args)
