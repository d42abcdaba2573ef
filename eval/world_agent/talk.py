"""What a player says: tool calls, or plain text that holds them, parsed once at the border."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from unify_agent.judging import FunctionCall, Message
from unify_agent.judging.structured import objects_in

if TYPE_CHECKING:
    from eval.world_agent.deduce.questions import Question

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """One turn of a player. `problem`: why there is nothing to carry out, in one line for the player itself.

    `served`: the model that answered, in the server's words; tokens as the server counts them.
    """

    text: str
    calls: tuple[FunctionCall, ...] = ()
    problem: str = ""
    served: str = ""
    tokens_in: int = 0
    tokens_out: int = 0

    @property
    def tokens(self) -> int:
        """What it cost."""
        return self.tokens_in + self.tokens_out

    def as_dict(self) -> dict[str, Any]:
        """As JSON for the record."""
        calls = [[call.id, call.name, call.text] for call in self.calls]
        return {
            "text": self.text, "calls": calls, "problem": self.problem, "served": self.served,
            "tokens_in": self.tokens_in, "tokens_out": self.tokens_out,
        }  # fmt: skip

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Reply:
        """Back from the record."""
        return Reply(**{key: record[key] for key in ("text", "problem", "served", "tokens_in", "tokens_out")},
                     calls=tuple(FunctionCall(*call) for call in record["calls"]))  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """What a player is asked: the conversation of this round so far, and the tools that are open.

    In deduction `round` is the question's number, `number` counts the attempts at it, and `question` is what scripted
    players answer by; models never see it.
    """

    round: int
    number: int
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    question: Question | None = None


Talk = Generator[Turn, Reply, T]
"""One conversation: it yields what it asks, is sent the answers, and returns what it came to."""


class Player(Protocol):
    """Whoever keeps the world running or predicts it: a model or a scripted policy. `identity` goes into the record."""

    identity: dict[str, Any]

    def reply(self, turn: Turn) -> Reply:
        """The player's next turn. Raises UserError when there is none to be had."""
        ...


def hold(talks: Sequence[Talk[T]], answer: Callable[[list[Turn]], Sequence[Reply]]) -> list[T]:
    """Hold conversations side by side, so that all who wait are answered together; what each came to, in order.

    What `answer` raises ends them all.
    """
    results: dict[int, T] = {}
    asked: dict[int, Turn] = {}

    def go_on(number: int, said: Reply | None) -> None:
        try:
            asked[number] = next(talks[number]) if said is None else talks[number].send(said)
        except StopIteration as end:
            results[number] = end.value

    try:
        for number in range(len(talks)):
            go_on(number, None)
        while asked:
            waiting, asked = asked, {}
            for number, said in zip(waiting, answer(list(waiting.values())), strict=True):
                go_on(number, said)
    finally:
        for talk in talks:
            talk.close()
    return [results[number] for number in range(len(talks))]


def alone(talk: Talk[T], player: Player) -> T:
    """Hold one conversation with a player."""
    return hold([talk], lambda turns: [player.reply(turn) for turn in turns])[0]


def calls_in(text: str) -> tuple[FunctionCall, ...]:
    """Calls written in plain text: `{"calls": [{"tool": NAME, "arguments": {...}}]}`, or one such call alone."""
    calls: list[FunctionCall] = []
    for value in reversed(list(objects_in(text))):
        listed = value.get("calls") if isinstance(value.get("calls"), list) else [value]
        for each in listed:
            if isinstance(each, dict) and isinstance(each.get("tool"), str):
                arguments = json.dumps(each.get("arguments", {}), ensure_ascii=False)
                calls.append(FunctionCall(f"c{len(calls) + 1}", each["tool"], arguments))
    return tuple(calls)
