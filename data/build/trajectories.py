"""Stage 2: a teacher drives the agent's own loop (paper, section 4.1.2), over the search that the spec names.

The loop is the one of inference (unify_agent/agent/loop.py): the same prompts, tools, limits and rounds, the same
choice of the best usable references (equations 8 to 10), judged by an endpoint with the spec's weights. Only the
teacher is told more than the student will be (`brief` in words/recaption.yaml), and no record keeps that.

What comes of it is a trajectory that may be trained on, or `Dropped`. Calls are brought into the form in which the
student is to write them. A trajectory whose last reply holds no recaption goes on to the next stage, which asks again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from data.build.asking import asking
from data.build.contracts import Dropped, Failed, Task, is_of_the_disk
from data.build.filling import told
from data.build.recaption_words import words_of
from data.build.services import Services
from data.build.spec import Spec
from data.build.verification import require_language, require_truth
from unify_agent.agent.endpoint import EndpointThinker, messages_of
from unify_agent.agent.endpointjudge import EndpointJudge
from unify_agent.agent.episode import AgentOptions, Episode, Exchange
from unify_agent.agent.judge import Grading, Judged
from unify_agent.agent.loop import Dialogue, Reply, reason_of, recaption_in
from unify_agent.agent.toolcalls import ToolCall, parse_calls, render_call
from unify_agent.agent.tools import is_down
from unify_agent.agent.wording import Judging, Prompts, load_judging, load_prompts
from unify_agent.files import digest
from unify_agent.interleave.grammar import misplaced_tag
from unify_agent.judging import ChatError
from unify_agent.search.base import ImageHit, SearchError, TextHit

THREADS = 4
"""For the tool calls of one trajectory."""
MOST_KNOWN = 300
"""Characters of what an entity is recognised by, as the judge of references is told it."""
AGAIN = 2
"""Times that a reply is asked for again that is neither a call nor a recaption."""
ANEW = 0.7
"""Temperature, at least, of what is asked for again: at none the same words would come again."""
LASTING = ("bad_request", "refused", "too_large")
"""Kinds of SearchError that the same question would meet again."""
_Found = TypeVar("_Found")
_SAID = re.compile(r"\s*<think>(.*?)</think>", re.DOTALL)


@lru_cache(maxsize=8)
def prompts_of(words: str) -> Prompts:
    """The agent's prompts, by name or file."""
    return load_prompts(words)


@lru_cache(maxsize=1)
def _judging() -> Judging:
    return load_judging()


def grading_of(spec: Spec) -> Grading:
    """Equation 9 as the spec has it."""
    return Grading(spec.references.weights, spec.references.threshold)


def seed_of(task: Task, spec: Spec, *more: object) -> int:
    """A seed of its own for a task (and whatever `more` tells apart), the same in every run."""
    return int(digest(" ".join(map(str, (spec.seed, task.id, *more))))[:7], 16)


class Teacher(EndpointThinker):
    """The teacher, who remembers what went wrong. `errors`: of its calls, in order."""

    def __init__(self, spec: Spec, services: Services) -> None:
        settings = spec.chat("teacher")
        words = words_of(spec.trajectories.recaption_words)
        super().__init__(
            services.chat("teacher"), settings.mode, settings.temperature,
            brief=lambda episode: words.phrases(episode.language).brief,
        )  # fmt: skip
        self.errors: list[Exception] = []

    def reply(self, episodes: Sequence[Episode]) -> list[Reply | Exception]:
        """As any thinker's; what is neither a call nor a recaption is asked for again, for it teaches nothing."""
        replies = super().reply(episodes)
        for number, episode in enumerate(episodes):
            for again in range(1, AGAIN + 1):
                given = replies[number]
                if isinstance(given, Exception) or episode.final or _says_something(given.text):
                    break
                seed = episode.seed + len(episode.turns) + 1000 * again
                try:
                    replies[number] = self.say(episode, messages_of(episode), seed, max(self.temperature, ANEW))
                except ChatError as error:
                    replies[number] = error
        self.errors += [each for each in replies if isinstance(each, Exception)]
        return replies


def _says_something(text: str) -> bool:
    return recaption_in(text) is not None or bool(parse_calls(text).calls)


class Evidence:
    """The search and the judge of one trajectory. The loop goes on whatever they raise; here it is remembered.

    Candidates are judged as pictures of the entity, whatever the teacher asked for; what is of no use is let go.
    """

    def __init__(self, task: Task, spec: Spec, services: Services) -> None:
        self._search, self._candidates = services.search, spec.references.candidates
        self._judge = EndpointJudge(services.chat("references"), _judging(), grading_of(spec))
        known = "; ".join(map(told, task.entity.attributes))[:MOST_KNOWN]
        self._subject = told(task.entity.name(task.language)) + (f" ({known})" if known else "")
        self.name = self._judge.name
        self.errors: list[Exception] = []

    def text_search(self, q: str, hl: str | None = None, top_k: int = 5) -> list[TextHit]:
        return self._heard(lambda: self._search.text_search(q, hl, top_k))

    def search_image(self, q: str, location: str | None = None, hl: str | None = None, num: int = 8) -> list[ImageHit]:
        return self._heard(lambda: self._search.search_image(q, location, hl, min(num, self._candidates)))

    def judge(self, subject: str, candidates: Sequence[tuple[ImageHit, Image.Image | None]]) -> list[Judged]:
        judged = self._heard(lambda: self._judge.judge(self._subject, candidates))
        return [each if each.verdict.usable else replace(each, picture=None) for each in judged]

    def _heard(self, ask: Callable[[], _Found]) -> _Found:
        try:
            return ask()
        except Exception as error:
            self.errors.append(error)
            raise


def episode_of(task: Task, spec: Spec) -> Episode:
    """A task as the loop sees it."""
    options = AgentOptions(max_rounds=spec.trajectories.rounds, max_references=spec.references.keep)
    return Episode(
        id=task.id, request=task.prompt, language=task.language, name=task.entity.name(task.language),
        category=task.entity.category, country=task.entity.country, seed=seed_of(task, spec), options=options,
    )  # fmt: skip


def research(task: Task, spec: Spec, services: Services) -> Episode:
    """The trajectory of a task, without the pixels of its references (`with_pictures`).

    Raises Dropped, or what a service that does not work raised.
    """
    require_language(task.language)
    require_truth(task.entity, spec)
    teacher = Teacher(spec, services)
    evidence = Evidence(task, spec, services)
    episode = episode_of(task, spec)
    Dialogue(teacher, evidence, evidence, prompts_of(spec.trajectories.words), THREADS).think([episode])
    for error in [*evidence.errors, *teacher.errors]:
        if is_down(error) or is_of_the_disk(error):
            raise error
    with asking("trajectory", "the teacher"):
        for error in teacher.errors:
            raise error
    if episode.stop == "search_failed":
        _failed_search(evidence.errors)
    if episode.bad_calls:
        raise Dropped("trajectory", "bad_calls", _first_fault(episode))
    require_ending(replace(episode, stop=reason_of(episode)) if episode.stop == "no_recaption" else episode, spec)
    for turn in episode.turns:
        _bring_into_form(turn)
        if tag := misplaced_tag(turn.reply):
            if turn is not episode.turns[-1] or episode.stop != "no_recaption":
                raise Dropped("trajectory", "misplaced tag", tag)
        turn.judged = [replace(each, picture=None) for each in turn.judged]
    episode.references = [replace(each, picture=None) for each in episode.references]
    return episode


def with_pictures(episode: Episode) -> Episode:
    """The episode with its references opened: while a task waits for services it holds no pixels."""
    return replace(episode, references=[replace(each, picture=each.hit.open()) for each in episode.references])


def require_ending(episode: Episode, spec: Spec) -> None:
    """Raises Dropped for a trajectory that ended in a way that the spec does not take."""
    if episode.stop not in spec.trajectories.endings:
        raise Dropped("trajectory", episode.stop, episode.error or episode.fault)


def _failed_search(errors: Sequence[Exception]) -> None:
    """Raises what a search that found no answer means for the task."""
    error = min(errors, key=_weight)
    if isinstance(error, ChatError):
        with asking("trajectory", "the judge of references"):
            raise error
    if isinstance(error, SearchError) and error.kind not in LASTING:
        raise error
    if isinstance(error, SearchError):
        raise Dropped("trajectory", "search_failed", str(error))
    raise Failed("trajectory", "search_failed", f"{type(error).__name__}: {error}")


def _weight(error: Exception) -> tuple[bool, str, str]:
    """For the choice among errors of several threads: one that may pass before one that lasts, else by what it says."""
    return isinstance(error, SearchError) and error.kind in LASTING, type(error).__name__, str(error)


def _first_fault(episode: Episode) -> str:
    return next((turn.tool_error or "" for turn in episode.turns if not turn.calls and turn.tool_error), "")


def _bring_into_form(turn: Exchange) -> None:
    """Writes a reply's calls as the student is to write them: a thought, then each call between its tags."""
    if not turn.calls:
        return
    said = _SAID.match(turn.reply)
    before, tag, _ = turn.reply.partition("<tool_call>")
    thought = said[1] if said else before.strip() if tag else ""
    calls = "\n".join(render_call(ToolCall(**call)) for call in turn.calls)
    turn.reply = f"<think>{thought}</think>\n{calls}"


def provenance(spec: Spec) -> dict[str, Any]:
    """Who makes trajectories, for their records."""
    teacher, judge, given = spec.chat("teacher"), spec.chat("references"), spec.references
    return {
        "teacher": {"model": teacher.model, "mode": teacher.mode, "temperature": teacher.temperature},
        "judge": {"model": judge.model, "weights": given.weights, "threshold": given.threshold},
        "search": kind_of(spec.services.search.spec),
        "words": Path(spec.trajectories.words).name,
    }  # fmt: skip


def kind_of(search: str) -> str:
    """The kind of a search back end and the last part of its place: records hold no paths of a machine."""
    kind, _, place = search.partition(":")
    return f"{kind}:{Path(place).name}" if place else kind
