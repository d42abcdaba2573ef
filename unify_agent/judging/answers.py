"""What comes back: an answer, or an error of one of nine kinds. Nothing is guessed, nothing becomes a zero."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

Kind = Literal[
    "auth", "refused", "rate_limited", "server", "timeout", "unreachable", "malformed", "truncated", "empty"
]
PASSING = frozenset({"rate_limited", "server", "timeout", "unreachable", "malformed", "truncated", "empty"})
"""Kinds that another attempt may mend."""
_THOUGHT = re.compile(r"\A\s*<think(?:ing)?>(.*?)</think(?:ing)?>", re.DOTALL)
_OPEN = re.compile(r"\A\s*<think(?:ing)?>(.*)\Z", re.DOTALL)
_CLOSE = re.compile(r"\A(.*)</think(?:ing)?>", re.DOTALL)


class ChatError(Exception):
    """A call that gave nothing usable. `detail` says why, in one line and without a key.

    `status`: the HTTP status of a server's failure, 0 where there was none.
    """

    def __init__(self, kind: Kind, detail: str, status: int = 0) -> None:
        self.kind, self.detail, self.status = kind, " ".join(detail.split())[:500], status
        super().__init__(f"{kind}: {self.detail}")


class NotRecorded(Exception):
    """A log that is only replayed does not hold this call. `key` is what it was looked up under."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"the log holds no answer to the call {key[:12]}")


@dataclass(frozen=True)
class FunctionCall:
    """A tool call of the model. `text` is the arguments as sent, `arguments` their object, None when they are none."""

    id: str
    name: str
    text: str

    @property
    def arguments(self) -> dict[str, Any] | None:
        try:
            value = json.loads(self.text or "{}")
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


@dataclass(frozen=True)
class Answer:
    """An answer. `raw` is the content as sent, `text` the same without what was thought, `thinking` that thought.

    `parsed` is an instance of the request's schema; `model` the name that the server says; token counts are None
    where it does not count; `cached`: no call was made for it.
    """

    text: str
    thinking: str
    tool_calls: tuple[FunctionCall, ...]
    finish_reason: str
    model: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cached: bool
    parsed: BaseModel | None
    raw: str


def split_thinking(content: str, reasoning: str = "") -> tuple[str, str]:
    """(text, thinking) of a reply: a leading `<think>` block, closed or cut off, is no part of the text.

    Templates that open the block themselves send only its closing tag; what precedes it is then the thought. With
    `reasoning` (a field of its own in the reply) that is the thought.
    """
    for pattern in (_THOUGHT, _OPEN, _CLOSE):
        found = pattern.match(content)
        if found is not None and (pattern is not _CLOSE or "<think" not in content):
            return content[found.end() :].strip(), (reasoning or found[1]).strip()
    return content.strip(), reasoning.strip()
