"""The trajectory record: the public release's schema, read as it is found and written with a little more.

`turns` is the rich log, `full_response` its reduced copy, which is what training reads. Keys that we add are
optional: `response_ids` with the `tokenizer` that made them (token in, token out), `policy`, `stop`, `references`
(source and licence of each picture), `options`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unify_agent.errors import UserError


class Turn(BaseModel):
    """One exchange: what the user side said (an observation, mostly) and what the model answered."""

    model_config = ConfigDict(extra="allow")

    turn: int = 0
    stage: int | None = None
    input: str
    response_text: str
    tool_output: str | None = None
    response_ids: list[int] | None = None
    tokenizer: str | None = None

    def ids_for(self, fingerprint: str) -> tuple[int, ...] | None:
        """The ids that the model generated, when this tokenizer made them."""
        if self.response_ids is not None and self.tokenizer == fingerprint:
            return tuple(self.response_ids)
        return None


class Reference(BaseModel):
    """Where a reference picture came from."""

    model_config = ConfigDict(extra="allow")

    file: str
    title: str = ""
    source: str = ""
    licence: str = ""


class Trajectory(BaseModel):
    """One item from the request to the recaption."""

    model_config = ConfigDict(extra="allow")

    ip_index: str
    ip_name: str = ""
    image_prompt: str = ""
    language: str = "zh"
    country: str = ""
    turns: list[Turn] = Field(default_factory=list)
    full_response: list[Turn] = Field(default_factory=list)
    recaption: str = ""
    generated_image: str | None = None
    references: list[Reference] = Field(default_factory=list)
    policy: str = ""
    stop: str = ""
    error: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    def turns_for_training(self) -> list[Turn]:
        """`full_response` as in the release, or `turns` where a record has only those."""
        return self.full_response or self.turns

    def to_json(self) -> str:
        """JSON text of the record, without the optional keys that are unset."""
        record = self.model_dump(exclude_none=False)
        for turn in [*record["turns"], *record["full_response"]]:
            for key in ("response_ids", "tokenizer", "stage"):
                if turn.get(key) is None:
                    turn.pop(key, None)
        if record["error"] is None:
            del record["error"]
        return json.dumps(record, ensure_ascii=False, indent=1) + "\n"


def parse_trajectories(text: str, path: Path | str) -> list[Trajectory]:
    """Records in a JSON file: one object, or a list of them. Raises `UserError` that names file and key."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    records = content if isinstance(content, list) else [content]
    result = []
    for number, record in enumerate(records):
        try:
            result.append(Trajectory.model_validate(record))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"]) or "record"
            raise UserError(f"{path}: record {number}, key {key}: {first['msg']}") from None
    return result
