"""Verdicts as typed objects: the JSON schema that is asked for, and the object found in whatever came back.

A schema is a pydantic model. Numbers written as strings and whole floats are taken as numbers; a boolean is no
number; a missing key or a value out of range makes the reply malformed, it is never filled in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

LONGEST, MOST_BROKEN = 100_000, 1000
_OBJECT = re.compile(r'\{\s*["}]')
"""How a JSON object begins; every other brace of a text would only cost time."""


class Verdict(BaseModel):
    """Base of all schemas: unknown keys are dropped, `true` is not taken for 1."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _no_booleans_for_numbers(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for name, info in cls.model_fields.items():
                if info.annotation in (int, float) and isinstance(value.get(name), bool):
                    raise ValueError(f"{name}: a number is expected, not {json.dumps(value[name])}")
        return value


@lru_cache(maxsize=64)
def json_schema(schema: type[BaseModel]) -> dict[str, Any]:
    """The schema as servers want it in strict mode: closed objects with every key required. Not to be changed."""

    def closed(node: Any) -> Any:
        if isinstance(node, dict):
            made = {key: closed(value) for key, value in node.items() if key not in ("title", "default")}
            if node.get("type") == "object" and "properties" in node:
                made["properties"] = {key: closed(value) for key, value in node["properties"].items()}
                made |= {"additionalProperties": False, "required": list(node["properties"])}
            return made
        return [closed(each) for each in node] if isinstance(node, list) else node

    return closed(schema.model_json_schema())


def objects_in(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text, the last first: bare, fenced, or between words; not those within another. Of a text
    longer than `LONGEST` characters only the end is read, and nothing after `MOST_BROKEN` objects that do not parse."""
    text = text[-LONGEST:]
    decoder, found, begin, broken = json.JSONDecoder(), [], _OBJECT.search(text), 0
    while begin and broken < MOST_BROKEN:
        try:
            value, end = decoder.raw_decode(text, begin.start())
        except (ValueError, RecursionError):
            end, broken = begin.start() + 1, broken + 1
        else:
            found.append(value)
        begin = _OBJECT.search(text, end)
    return reversed(found)


def parse(text: str, schema: type[BaseModel]) -> BaseModel:
    """The last object in `text` that fits the schema. Raises ValueError that says in one line why none does."""
    reason = "no JSON object in the reply"
    for value in objects_in(text):
        try:
            return schema.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            reason = f"{where}: {first['msg']}" if where else first["msg"]
    raise ValueError(reason)
