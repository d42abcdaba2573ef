"""A batch of requests through the loop, each written as soon as its batch is drawn, whatever befalls the others.

What fails for a whole batch is tried again with halves of it down to single items, so that an item which is too much
for the memory takes no other with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unify_agent.agent.crew import Crew
from unify_agent.agent.episode import Episode
from unify_agent.agent.loop import Loop
from unify_agent.agent.record import Recorder
from unify_agent.agent.requests import REFUSED, Refused, Request
from unify_agent.agent.tools import is_down, told
from unify_agent.interleave.segments import Unusable


@dataclass(frozen=True)
class Outcome:
    """How an item ended: a line of the summary. `down`: because of a service that does not work."""

    id: str
    category: str
    status: str
    reason: str
    error: str = ""
    references: int = 0
    turns: int = 0
    discarded: int = 0
    seconds: float = 0.0
    given_id: str = ""
    down: bool = False

    @property
    def key(self) -> str:
        return f"{self.category}/{self.id}"

    @classmethod
    def of(cls, request: Request, episode: Episode, seconds: float) -> Outcome:
        """The outcome of an episode that has ended."""
        return cls(
            request.id, request.category, episode.status, episode.stop, episode.error or _fault(episode),
            len(episode.references), len(episode.turns), sum(len(turn.discarded) for turn in episode.turns),
            round(seconds, 2), request.given_id, episode.down and episode.status != "ok",
        )  # fmt: skip

    @classmethod
    def failed(cls, request: Request | Refused, reason: str, error: str, down: bool = False) -> Outcome:
        """The outcome of a request that never came to an end, or could not be taken at all."""
        if isinstance(request, Refused):
            return cls(request.where, REFUSED, "failed", reason, error)
        return cls(request.id, request.category, "failed", reason, error, given_id=request.given_id, down=down)

    def line(self) -> dict[str, Any]:
        """The summary's object; what says nothing is left out."""
        keep = ("id", "category", "status", "reason", "error", "references", "turns")
        return {name: value for name, value in asdict(self).items() if value or name in keep}


def _fault(episode: Episode) -> str:
    return episode.fault if episode.stop == "search_failed" else ""


class Runner:
    """Runs requests with one crew and writes them with `recorder`. `on_event`: see `Loop`."""

    def __init__(self, crew: Crew, recorder: Recorder, on_event: Callable[[Episode, str], None] | None = None):
        self.crew, self.recorder = crew, recorder
        self.loop = Loop(crew.policy, crew.search, crew.judge, crew.words, on_event=on_event)

    def run(self, requests: Sequence[Request]) -> Iterator[Outcome]:
        """The outcomes of a batch, in order; those first whose references cannot be read any more."""
        began = time.monotonic()
        taken, episodes = [], []
        for request in requests:
            try:
                episodes.append(self.crew.setup.episode(request))
                taken.append(request)
            except (Unusable, OSError) as gone:  # a reference that was there when the run began
                yield Outcome.failed(request, "bad_input", told(gone))
        requests = taken
        fault = self._failure(self.loop.think, episodes)
        if fault is not None and len(requests) > 1:
            middle = len(requests) // 2
            del episodes
            yield from self.run(requests[:middle])
            yield from self.run(requests[middle:])
            return
        if fault is not None:
            episodes[0].stop, (episodes[0].error, episodes[0].down) = "policy_error", fault
        self._draw(episodes)
        seconds = (time.monotonic() - began) / max(1, len(requests))
        for request, episode in zip(requests, episodes, strict=True):
            yield self._written(request, episode, seconds)

    def _draw(self, episodes: Sequence[Episode]) -> None:
        fault = self._failure(self.loop.draw, episodes)
        if fault is not None and len(episodes) > 1:
            middle = len(episodes) // 2
            self._draw(episodes[:middle])
            self._draw(episodes[middle:])
        elif fault is not None:
            episodes[0].stop, episodes[0].error = "draw_error", fault[0]

    @staticmethod
    def _failure(stage: Callable[[Sequence[Episode]], None], episodes: Sequence[Episode]) -> tuple[str, bool] | None:
        """What went wrong in a stage, and whether it is a service's. The error itself, which holds on to the memory of
        all that was under way, is gone when this returns."""
        try:
            stage(episodes)
        except Exception as fault:
            return told(fault), is_down(fault)
        return None

    def _written(self, request: Request, episode: Episode, seconds: float) -> Outcome:
        try:
            episode.settings |= self.crew.described(request)
            self.recorder.write(episode)
        except OSError as fault:
            return Outcome.failed(request, "write_error", f"{fault.strerror or fault}: {fault.filename or 'a file'}")
        except ValueError as fault:  # what was said or found cannot be written down
            return Outcome.failed(request, "write_error", told(fault))
        return Outcome.of(request, episode, seconds)
