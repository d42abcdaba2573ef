"""The two tools as the loop calls them: search, open what was found, judge it, and say it as evidence.

Searches of all episodes run at once. A judge that looks at each candidate by itself sees it when it has come, while
others of the search are under way; one that compares them sees them when all are there, opened at once. Whatever a
service does, the episode goes on: a fault is a finding.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from unify_agent.agent.arriving import Looking, OneByOne
from unify_agent.agent.episode import Episode
from unify_agent.agent.evidence import image_evidence, one_line, text_evidence
from unify_agent.agent.judge import Judge, Judged, load_candidates, subject_of
from unify_agent.agent.toolcalls import ToolCall
from unify_agent.agent.wording import Prompts
from unify_agent.search.base import ImageHit, OnHit, SearchBackend, TextHit, search_images

DOWN = {"service_down", "wrong_key", "auth", "rate_limited", "server", "timeout", "unreachable"}
"""Kinds of errors of searches and endpoints that befall every item alike."""
LONGEST_FAULT = 300


def is_down(error: Exception) -> bool:
    """Whether an error says that a service does not work, rather than that it did not like a question."""
    return getattr(error, "kind", None) in DOWN


def told(error: Exception) -> str:
    """An error on one line, bounded."""
    return one_line(f"{type(error).__name__}: {error}", LONGEST_FAULT)


@dataclass(frozen=True)
class Found:
    """What one tool call gave. `down`: its error is that of a service that does not work."""

    text: str = ""
    hits: tuple[TextHit, ...] = ()
    judged: tuple[Judged, ...] = ()
    subject: str = ""
    error: str = ""
    down: bool = False


class Tools:
    """Calls from any number of threads. `seconds` of "search", "open" and "judge", summed over threads.

    Of judging that begins while a search is under way, "judge" is what is left when the search has ended.
    """

    def __init__(self, search: SearchBackend, judge: Judge, prompts: Prompts, threads: int = 8):
        self.search, self.judge, self.prompts, self.threads = search, judge, prompts, threads
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.seconds[stage] += time.perf_counter() - began

    def call(self, episode: Episode, call: ToolCall) -> Found:
        """Runs one tool."""
        options, words = episode.options, self.prompts.phrases(episode.language)
        if call.name == "text_search":
            if not (options.tools and options.text_search) or episode.text_searches >= options.max_text_searches:
                return Found(words.no_results)
        elif not (options.tools and options.image_search):
            return Found(words.no_pictures)
        stage = call.name
        try:
            if call.name == "text_search":
                return self._texts(episode, call)
            subject = subject_of(call.arguments["q"], episode.read)
            with Looking(self.judge, subject) if isinstance(self.judge, OneByOne) else nullcontext() as looking:
                hits = self._pictures(episode, call, None if looking is None else looking.add)
                stage = "judge"
                judged = self._compared(subject, hits) if looking is None else self._seen(looking, hits)
            text = image_evidence(judged, self.prompts, episode.language)
            return Found(text, judged=tuple(judged), subject=subject)
        except Exception as fault:  # whatever a service does, the episode goes on
            return Found(error=f"{stage}: {told(fault)}", down=is_down(fault))

    def _texts(self, episode: Episode, call: ToolCall) -> Found:
        given = call.arguments
        top_k = given.get("top_k", self.prompts.defaults.top_k)
        with self._timed("search"):
            hits = self.search.text_search(given["q"], given.get("hl", episode.language), top_k)
        return Found(text_evidence(hits, self.prompts, episode.language), hits=tuple(hits))

    def _pictures(self, episode: Episode, call: ToolCall, on_hit: OnHit | None) -> list[ImageHit]:
        given = call.arguments
        num, hl = given.get("num", self.prompts.defaults.num), given.get("hl", episode.language)
        with self._timed("search"):
            return search_images(self.search, given["q"], given.get("location"), hl, num, on_hit)

    def _compared(self, subject: str, hits: Sequence[ImageHit]) -> list[Judged]:
        with self._timed("open"):
            candidates = load_candidates(hits, self.threads)
        with self._timed("judge"):
            return self.judge.judge(subject, candidates)

    def _seen(self, looking: Looking, hits: Sequence[ImageHit]) -> list[Judged]:
        with self._timed("judge"):
            return looking.judged(hits)
