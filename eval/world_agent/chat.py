"""A served model as a player and as a judge, through the project's one client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from eval.world_agent.cases import read_yaml
from eval.world_agent.judging import VERDICTS, Question
from eval.world_agent.talk import Reply, Turn, calls_in
from unify_agent.errors import UserError
from unify_agent.judging import ChatClient, ChatError, Request, user
from unify_agent.judging.structured import LONGEST

PROMPTS = Path(__file__).parent / "prompts"
ROOM = 4096
"""Tokens of one answer of a player."""
DOWN = 4
"""Exit code when the endpoint gives nothing, as against 3 for a run that is not complete."""
OWN_FAULT = ("empty", "malformed", "truncated")
"""Kinds of failures that are the player's own: it hears of them and its turn is spent. So is a conversation that the
server refuses after it went well before: it has become too long."""


def down(client: ChatClient, error: ChatError) -> UserError:
    """What a person is told when an endpoint fails."""
    return UserError(
        f"{client.endpoint.base_url}, model {client.endpoint.model}: {error}; the same command goes on", DOWN
    )


class ChatPlayer:
    """A model behind an OpenAI-compatible endpoint. `calls`: its own tool calls, or JSON in plain text."""

    def __init__(
        self, client: ChatClient, calls: Literal["tools", "text"] = "tools", room: int | None = None,
        temperature: float = 0.0, seed: int = 0,
    ):  # fmt: skip
        self.client, self.calls, self.room = client, calls, ROOM if room is None else room
        self.temperature, self.seed = temperature, seed
        self.identity: dict[str, Any] = {
            "player": client.endpoint.model, "extra": dict(client.endpoint.extra),
            "calls": calls, "room": self.room, "temperature": temperature, "seed": seed,
        }  # fmt: skip

    def reply(self, turn: Turn) -> Reply:
        """See Player."""
        tools = turn.tools if self.calls == "tools" else None
        try:
            answer = self.client.ask(
                turn.messages, tools=tools or None, max_tokens=self.room, temperature=self.temperature, seed=self.seed
            )
        except ChatError as error:
            if error.kind in OWN_FAULT or (error.kind == "refused" and len(turn.messages) > 2):
                return Reply("", problem=f"Your last answer could not be used: {error.detail}.")
            raise down(self.client, error) from None
        said = Reply("", (), "", answer.model, answer.prompt_tokens or 0, answer.completion_tokens or 0)
        if len(answer.text) > LONGEST:
            told = f"Your last answer has {len(answer.text)} characters; at most {LONGEST} are read."
            return replace(said, problem=told)
        return replace(said, text=answer.text, calls=answer.tool_calls or calls_in(answer.text))


class ChatJudge:
    """A model that answers the worksheet, each question in a call of its own."""

    def __init__(self, client: ChatClient, room: int = 1024):
        self.client, self.room = client, room
        self.prompts = read_yaml(PROMPTS / "judge.yaml", "prompts")
        self.identity: dict[str, Any] = {"judge": client.endpoint.model, "extra": dict(client.endpoint.extra)}

    def request(self, question: Question) -> Request:
        """What is asked for a question."""
        seen = "\n".join(json.dumps(each, ensure_ascii=False) for each in question.seen) or "(none)"
        text = self.prompts[question.kind].format(condition=question.condition, seen=seen)
        return Request((user(text),), schema=VERDICTS[question.kind], max_tokens=self.room, seed=0)

    def ask(self, questions: Iterable[Question], keep: Callable[[Question, dict[str, Any], str], None]) -> int:
        """Ask several at a time; `keep` gets each verdict and the served model. Returns how many stay open.

        Raises UserError when the endpoint itself gives nothing.
        """
        asked = list(questions)
        failed: list[ChatError] = []

        def settled(number: int, answer: Any) -> None:
            if isinstance(answer, ChatError):
                failed.append(answer)
            else:
                assert answer.parsed is not None
                keep(asked[number], answer.parsed.model_dump(), answer.model)

        try:
            self.client.ask_many((self.request(question) for question in asked), settled)
        except ChatError as error:
            raise down(self.client, error) from None
        if failed and all(error.kind not in OWN_FAULT for error in failed) and len(failed) == len(asked):
            raise down(self.client, failed[0])
        return len(failed)
