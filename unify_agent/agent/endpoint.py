"""A policy that thinks elsewhere: an OpenAI-compatible endpoint plans and recaptions, and whoever can draws.

What it says is brought into the one form that the loop reads and records keep: a thought, then tool calls or a
recaption between their tags. It may call tools natively (`tools`) or write the tags as the prompts tell it (`tags`);
with `tools` both are read. Tags in what came from outside are spelled out before they are sent, so that a page can
neither close its observation nor speak as the model; special tokens in what the endpoint says are, too, since a record
is read by tokenizers that would obey them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np

from unify_agent.agent.episode import Episode
from unify_agent.agent.loop import Painter, Reply
from unify_agent.agent.toolcalls import TOOLS
from unify_agent.interleave.grammar import spell_markers, spell_tags, spell_tags_in_observation
from unify_agent.judging import (
    Answer,
    ChatClient,
    ChatError,
    FunctionCall,
    Message,
    Picture,
    PicturePolicy,
    assistant,
    system,
    user,
)
from unify_agent.search.base import well_formed

Mode = Literal["tools", "tags"]
LONGEST_REPLY = 4096
SENT = PicturePolicy(longest=1024, format="jpeg", quality=92)
_RECAPTION = re.compile(r"<recaption>((?:(?!<recaption>).)*?)</recaption>", re.DOTALL)
_STRUCTURE = re.compile(r"</?(?:think|observation)>")


class EndpointThinker:
    """Thinks through `client`, and needs no model here.

    `brief`: what it is told of an episode before all else, and no record keeps: how a teacher is to answer a student's
    prompts.
    """

    name = "openai"

    def __init__(
        self,
        client: ChatClient,
        mode: Mode = "tools",
        temperature: float = 0.0,
        brief: Callable[[Episode], str] = lambda episode: "",
    ):
        self.client, self.mode, self.temperature, self.brief = client, mode, temperature, brief

    def reply(self, episodes: Sequence[Episode]) -> list[Reply | Exception]:
        """All episodes at once, as many as the client allows."""
        if len(episodes) == 1:
            return [self._answered(episodes[0])]
        with ThreadPoolExecutor(max(1, min(len(episodes), self.client.concurrency))) as pool:
            return list(pool.map(self._answered, episodes))

    def _answered(self, episode: Episode) -> Reply | Exception:
        try:
            return self.say(episode, messages_of(episode), episode.seed + len(episode.turns), self.temperature)
        except ChatError as error:
            return error

    def say(self, episode: Episode, messages: Sequence[Message], seed: int, temperature: float) -> Reply:
        """The reply to messages of an episode, in the one form. Raises ChatError."""
        native = self.mode == "tools" and episode.options.tools and not episode.final
        brief = self.brief(episode)
        answer = self.client.ask(
            [*([system(brief)] if brief else []), *messages], tools=list(TOOLS.values()) if native else None,
            max_tokens=LONGEST_REPLY, temperature=temperature, seed=seed,
        )  # fmt: skip
        return Reply(well_formed(in_our_form(answer)))


class EndpointPolicy(EndpointThinker):
    """Thinks through `client`, draws with `painter`."""

    def __init__(self, client: ChatClient, painter: Painter, mode: Mode = "tools", temperature: float = 0.0):
        super().__init__(client, mode, temperature)
        self.painter = painter

    def draw(self, episodes: Sequence[Episode]) -> Sequence[np.ndarray | Exception]:
        return self.painter.draw(episodes)


def messages_of(episode: Episode) -> list[Message]:
    """What is sent for an episode's next turn: all that was said, the references with the last."""
    messages: list[Message] = []
    for turn in episode.turns:
        messages += [user(spell_tags_in_observation(turn.input)), assistant(turn.reply)]
    pictures = [Picture.of(each.hit.path, SENT) for each in episode.references] if episode.final else []
    return [*messages, user(spell_tags_in_observation(episode.input), *pictures)]


def in_our_form(answer: Answer) -> str:
    """The text of an answer as our own model would write it: its thought, then its calls or its recaption.

    Text with calls between tags, and text that holds neither, stays as it is behind the thought.
    """
    if answer.tool_calls:
        return _thought(answer.thinking, answer.text) + "\n".join(map(_call, answer.tool_calls))
    found = _RECAPTION.search(answer.text)
    if found is not None and "<tool_call>" not in answer.text:
        before = answer.text[: found.start()]
        return f"{_thought(answer.thinking, before)}<recaption>\n{spell_tags(found[1].strip())}\n</recaption>"
    return (_thought(answer.thinking) if answer.thinking else "") + spell_markers(answer.text)


def _thought(*parts: str) -> str:
    text = "\n".join(filter(None, (_STRUCTURE.sub("", part).strip() for part in parts)))
    return f"<think>{spell_tags(text)}</think>\n"


def _call(call: FunctionCall) -> str:
    """A native call between our tags; arguments that are no object stay the text that they are, for the parser."""
    given = call.text if call.arguments is None else call.arguments
    body = json.dumps({"name": call.name, "arguments": given}, ensure_ascii=False)
    return f"<tool_call>\n{spell_tags(body)}\n</tool_call>"
