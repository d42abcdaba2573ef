"""The loop Think -> Research -> Recaption -> Generate (paper, section 5.2), for many requests in lockstep.

A round: one batched `policy.reply` for all open episodes, then all their tool calls at once in threads. The state of
an episode is what it has said and found (`Episode`); what may happen next is decided in `_advance`, here only:

    reply holds tool calls        -> run them; the observation and what to do next are the next input
    reply holds a recaption       -> done, ready to draw
    neither                       -> an error observation, so that the model can correct itself (bounded)

Out of the context, and so in no training data, are replies that are drawn again at once: those that were cut off and of
no use, and once a recaption in another language than the request's, where the prompts have words for that.

A usable reference, or the end of the bounded searches, leads to the final turn, which must be a recaption. References
enter the context before the input of the final turn, as in training (interleave/layout.py); those that came with the
request make its first turn the final one.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from unify_agent.agent.episode import CUT_OFF, OTHER_LANGUAGE, STOPS, Discarded, Episode, Exchange
from unify_agent.agent.evidence import observation, user_turn
from unify_agent.agent.judge import Judge, Judged
from unify_agent.agent.language import in_language
from unify_agent.agent.toolcalls import Parsed, ToolCall, parse_calls
from unify_agent.agent.tools import Found, Tools, is_down, told
from unify_agent.agent.wording import Prompts
from unify_agent.search.base import SearchBackend

MAX_CALLS = 3  # of one turn; more are not made, and that is said
_FINAL = re.compile(r"\s*<think>(.*?)</think>\s*<recaption>(.*?)</recaption>\s*", re.DOTALL)
_TAG = re.compile(r"</?(?:think|recaption|tool_call|observation)>")


@dataclass(frozen=True)
class Reply:
    """What a policy said: its text, the ids that it generated with their tokenizer, whether it was cut off."""

    text: str
    ids: tuple[int, ...] | None = None
    tokenizer: str | None = None
    truncated: bool = False


def _same(one: Judged, two: Judged) -> bool:
    """Whether two candidates are one picture, byte for byte as they are decoded."""
    a, b = one.picture, two.picture
    return a is not None and b is not None and a.size == b.size and a.tobytes() == b.tobytes()


class Thinker(Protocol):
    """Whoever thinks. Each call is one batch; an episode that fails is answered with its exception."""

    name: str

    def reply(self, episodes: Sequence[Episode]) -> Sequence[Reply | Exception]:
        """Answers each episode's `input`; when `final`, its references come first.

        An episode with `discarded` replies is asked the same again, with sampling that is keyed by its id and their
        number; they are out of its context.
        """


class Painter(Protocol):
    """Whoever draws, in batches likewise."""

    def draw(self, episodes: Sequence[Episode]) -> Sequence[np.ndarray | Exception]:
        """A picture for each, uint8 [H, W, 3]."""


class Policy(Thinker, Painter, Protocol):
    """Whoever does both."""


def came_to_nothing(reply: Reply, final: bool) -> bool:
    """Whether a reply was cut off before it held what was asked for: a recaption or, unless `final`, a whole call."""
    if not reply.truncated or recaption_in(reply.text) is not None:
        return False
    parsed = parse_calls(reply.text)
    return final or not parsed.calls or bool(parsed.mended)


def recaption_in(reply: str) -> str | None:
    """The recaption of a reply that is a thought and a complete, non-empty recaption, tags stripped; else None."""
    found = _FINAL.fullmatch(reply)
    if found is None or _TAG.search(found[1]) or _TAG.search(found[2]) or not found[2].strip():
        return None
    return found[2].strip()


def begin(episode: Episode, prompts: Prompts) -> None:
    """Sets the input of turn 0. With references from the beginning it is the last one, too."""
    given = len(episode.references)
    episode.input = prompts.first(episode.request, episode.language, episode.options.tools and not given)
    if given:
        episode.final = True
        episode.input += f"\n\n{prompts.final(given, episode.language)}"


def reason_of(episode: Episode) -> str:
    """Why an episode that has its recaption ended: a key of `STOPS`."""
    if episode.references:
        return "grounded"
    if episode.bad_calls > episode.options.max_bad_calls:
        return "bad_calls"
    if episode.final and len(episode.turns) > episode.options.max_rounds:
        return "search_limit"
    if episode.failed_searches:
        return "search_failed"
    if episode.image_searches:
        return "no_reference"
    return "text_only" if episode.text_searches else "direct"


class Dialogue:
    """Runs episodes up to their recaption with one thinker, one search back end, one judge.

    `on_event(episode, what)` is told "reply", "discarded", "tool" and "done" as they happen, from the calling thread;
    what it raises ends the run. `seconds`: time in "reply", and waiting for "tools".
    """

    def __init__(
        self,
        policy: Thinker,
        search: SearchBackend,
        judge: Judge,
        prompts: Prompts,
        threads: int = 8,
        on_event: Callable[[Episode, str], None] | None = None,
    ):
        self.policy, self.prompts, self.threads = policy, prompts, threads
        self.tools = Tools(search, judge, prompts, threads)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._tell = on_event or (lambda episode, what: None)

    def think(self, episodes: Sequence[Episode]) -> None:
        """All rounds up to the recaption."""
        for episode in episodes:
            begin(episode, self.prompts)
        with ThreadPoolExecutor(self.threads) as pool:
            while opened := [episode for episode in episodes if not episode.done]:
                calls: list[tuple[Episode, Exchange, Parsed]] = []
                for episode, reply in zip(opened, self._replies(opened), strict=True):
                    turn = Exchange(episode.input, discarded=tuple(episode.discarded))
                    episode.discarded = []
                    if isinstance(reply, Exception):
                        episode.stop, episode.error, episode.down = "policy_error", told(reply), is_down(reply)
                        episode.turns += [turn] if turn.discarded else []
                        continue
                    turn.reply, turn.ids, turn.tokenizer = reply.text, reply.ids, reply.tokenizer
                    turn.truncated = reply.truncated
                    episode.turns.append(turn)
                    self._tell(episode, "reply")
                    parsed = self._read(episode, turn)
                    if parsed is not None:
                        calls.append((episode, turn, parsed))
                began = time.perf_counter()
                jobs = [
                    (episode, call, pool.submit(self.tools.call, episode, call))
                    for episode, _, parsed in calls
                    for call in parsed.calls[:MAX_CALLS]
                ]
                for episode, turn, parsed in calls:
                    found = [(call, job.result()) for owner, call, job in jobs if owner is episode]
                    self._advance(episode, turn, parsed, found)
                    self._tell(episode, "tool")
                self.seconds["tools"] += time.perf_counter() - began
                for episode in opened:
                    if episode.done:
                        self._tell(episode, "done")

    def _replies(self, opened: Sequence[Episode]) -> list[Reply | Exception]:
        """A reply of each; those that will not do are asked for again while there are tries left."""
        began = time.perf_counter()
        replies = list(self.policy.reply(opened))
        while again := [
            (number, reply, reason)
            for number, (episode, reply) in enumerate(zip(opened, replies, strict=True))
            if isinstance(reply, Reply) and (reason := self._why_again(episode, reply))
        ]:
            for number, reply, reason in again:
                episode = opened[number]
                episode.discarded.append(Discarded(reply.text, reply.ids, reason))
                if reason == OTHER_LANGUAGE:
                    episode.input += f"\n\n{self.prompts.phrases(episode.language).other_language}"
                self._tell(episode, "discarded")
            drawn = self.policy.reply([opened[number] for number, *_ in again])
            for (number, *_), another in zip(again, drawn, strict=True):
                replies[number] = another
        self.seconds["reply"] += time.perf_counter() - began
        return replies

    def _why_again(self, episode: Episode, reply: Reply) -> str:
        """The reason to ask for a reply again, "" when it stands."""
        if came_to_nothing(reply, episode.final):
            return CUT_OFF if episode.cut_off < episode.options.redraw else ""
        foreign = not episode.sent_back and self._in_other_language(episode, recaption_in(reply.text))
        return OTHER_LANGUAGE if foreign else ""

    def _in_other_language(self, episode: Episode, recaption: str | None) -> bool:
        """Whether a recaption breaks what the prompts say about its language."""
        if not recaption or not self.prompts.phrases(episode.language).other_language:
            return False
        found = [each.hit.title for turn in episode.turns for each in turn.judged]
        names = [episode.request, episode.name, *(hit.title for hit in episode.read), *found]
        return not in_language(recaption, episode.language, names)

    # ------------------------------------------------------------ one step of one episode

    def _read(self, episode: Episode, turn: Exchange) -> Parsed | None:
        """Takes a reply in: ends the episode, or returns the calls (perhaps none) that have to be answered."""
        recaption = recaption_in(turn.reply)
        if episode.final:
            episode.recaption = recaption or ""
            if recaption is None:
                episode.stop = "no_recaption"
            else:
                episode.stop = self._ending(episode)
            return None
        parsed = parse_calls(turn.reply)
        turn.mended = parsed.mended
        if len(parsed.calls) > MAX_CALLS:
            turn.mended += (f"only the first {MAX_CALLS} calls are made",)
        if not parsed.calls and parsed.error is None and recaption is not None:
            episode.recaption = recaption
            episode.stop = self._ending(episode)
            return None
        return parsed

    def _ending(self, episode: Episode) -> str:
        """Why an episode with a recaption ends."""
        reason = reason_of(episode)
        if STOPS[reason] == "ok" and self._in_other_language(episode, episode.recaption):
            return "other_language"
        return reason

    def _advance(
        self, episode: Episode, turn: Exchange, parsed: Parsed, found: Sequence[tuple[ToolCall, Found]]
    ) -> None:
        """Decides the next input from what the calls gave."""
        options, words = episode.options, self.prompts.phrases(episode.language)
        turn.calls = [{"name": call.name, "arguments": call.arguments} for call in parsed.calls[:MAX_CALLS]]
        for call, result in found:
            if call.name == "text_search":
                episode.text_searches += 1
                episode.read += result.hits
                turn.read += result.hits
            else:
                episode.image_searches += 1
                episode.subject = result.subject
                turn.judged += result.judged
            if result.error:
                episode.failed_searches += 1
                episode.fault, episode.down = result.error, episode.down or result.down
        searched_images = any(call.name == "search_image" for call, _ in found)
        turn.stage = 2 if searched_images else 1
        if found:
            errors = [result.error for _, result in found if result.error]
            turn.tool_error = errors[0] if errors else None
            failed = len(errors) == len(found)
            parts = [words.tool_error if result.error else result.text for _, result in found]
        else:
            episode.bad_calls += 1
            turn.tool_error, failed = parsed.error or "no call", True
            parts = [words.no_call.replace("{error}", parsed.error or "").strip()]
        turn.tool_output = observation(parts, self.prompts, episode.language, failed)
        if searched_images:
            episode.references = self._choose(episode, turn.judged)
        over = (
            episode.bad_calls > options.max_bad_calls
            or episode.image_searches >= options.max_image_searches
            or len(episode.turns) >= options.max_rounds
        )
        if episode.references or over:
            episode.final = True
            instruction = self.prompts.final(len(episode.references), episode.language)
        else:
            instruction = words.again if searched_images else words.next
        episode.input = user_turn(turn.tool_output, instruction)

    @staticmethod
    def _choose(episode: Episode, judged: Sequence[Judged]) -> list[Judged]:
        """The best usable candidates, in order (paper, equation 10), none twice: not one that two searches found."""
        chosen: list[Judged] = []
        for each in sorted((each for each in judged if each.verdict.usable), key=lambda each: -each.verdict.score):
            if len(chosen) == episode.options.max_references:
                break
            if not any(each.hit.id == kept.hit.id or _same(each, kept) for kept in chosen):
                chosen.append(each)
        if chosen and episode.options.replace_references is not None:
            chosen = list(episode.options.replace_references(episode, chosen))
        return chosen


class Loop(Dialogue):
    """The whole loop: a policy thinks and draws. `on_event` is told "drawn", too; `seconds` has "draw"."""

    policy: Policy

    def run(self, episodes: Sequence[Episode]) -> None:
        """Thinks, searches and recaptions until every episode has a stop, then draws them all."""
        self.think(episodes)
        self.draw(episodes)

    def draw(self, episodes: Sequence[Episode]) -> None:
        """Draws every episode that ended without an error."""
        ready = [episode for episode in episodes if episode.done and not episode.error]
        began = time.perf_counter()
        pictures = self.policy.draw(ready) if ready else ()
        self.seconds["draw"] += time.perf_counter() - began
        for episode, picture in zip(ready, pictures, strict=True):
            if isinstance(picture, Exception):
                episode.stop, episode.error = "draw_error", told(picture)
            else:
                episode.picture = picture
            self._tell(episode, "drawn")
