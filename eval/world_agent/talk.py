"""What a player says: tool calls, or plain text that holds them, parsed once at the border."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Protocol

MOST_CALLS = 32
"""Calls of one turn that are carried out; more are answered with an error."""


@dataclass(frozen=True)
class Call:
    """One tool call. `arguments` is what the player wrote, still unchecked."""

    id: str
    name: str
    arguments: Any


@dataclass(frozen=True)
class Reply:
    """One turn of a player. `served`: the model that answered, in the server's words; tokens as the server counts."""

    text: str
    calls: tuple[Call, ...] = ()
    served: str = ""
    tokens_in: int = 0
    tokens_out: int = 0

    def as_dict(self) -> dict[str, Any]:
        """As JSON for the record."""
        calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in self.calls]
        return {
            "text": self.text, "calls": calls, "served": self.served, "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
        }  # fmt: skip

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Reply:
        """Back from the record."""
        calls = tuple(Call(**call) for call in record["calls"])
        return Reply(record["text"], calls, record["served"], record["tokens_in"], record["tokens_out"])


@dataclass(frozen=True)
class Turn:
    """What a player is asked: the conversation of this round so far, and the tools that are open."""

    round: int
    number: int
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)


class Player(Protocol):
    """Whoever keeps the world running: an endpoint's model or a scripted policy. `identity` goes into the record."""

    identity: dict[str, Any]

    def reply(self, turn: Turn) -> Reply:
        """The player's next turn. Raises UserError when there is none to be had."""
        ...


def objects_in(text: str) -> list[Any]:
    """The JSON objects of a text, in order, whether fenced or between other words. What thinking says is left out."""
    text = re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL)
    found, at, decoder = [], 0, json.JSONDecoder()
    while (at := text.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, at)
            found.append(value)
        except (json.JSONDecodeError, RecursionError):
            at += 1
    return found


def calls_in(text: str) -> tuple[Call, ...]:
    """Calls written in plain text: `{"calls": [{"tool": NAME, "arguments": {...}}]}`, or one such call alone."""
    calls: list[Call] = []
    for value in objects_in(text):
        listed = value.get("calls") if isinstance(value.get("calls"), list) else [value]
        for each in listed:
            if isinstance(each, dict) and isinstance(each.get("tool"), str):
                calls.append(Call(f"c{len(calls) + 1}", each["tool"], each.get("arguments", {})))
    return tuple(calls)
