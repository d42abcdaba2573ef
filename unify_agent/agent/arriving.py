"""Judges that look at each candidate by itself, and so need not wait for the last picture of a search.

A verdict depends on what is looked for and on the picture, never on the others or on time: what comes out, and in which
order, is the same however the pictures arrive. One that turns out to be a smaller copy of a later one was looked at in
vain. A judge that compares candidates (`PixelJudge`) has to see all of them first and is none of these.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from PIL import Image

from unify_agent.agent.judge import Judged, Verdict, load_candidates
from unify_agent.search.base import ImageHit

Seen = Verdict | Exception
Candidate = tuple[ImageHit, Image.Image | None]


class OneByOne(ABC):
    """A `Judge` that looks at `at_once` candidates at a time, each by itself."""

    name: str
    at_once: int = 1

    @abstractmethod
    def verdict(self, subject: str, hit: ImageHit, picture: Image.Image) -> Seen:
        """What it says of one picture; the error where it says nothing of use.

        Raises what makes it useless for the others, too. Called from `at_once` threads.
        """

    def seen(self, subject: str, hit: ImageHit, picture: Image.Image | None) -> Seen:
        """The same for a candidate that perhaps did not decode."""
        return Verdict(0.0, "unreadable", False) if picture is None else self.verdict(subject, hit, picture)

    def judge(self, subject: str, candidates: Sequence[Candidate]) -> list[Judged]:
        """See `Judge`. Raises what `verdict` raises, and its error when it says nothing of use of any candidate."""
        with ThreadPoolExecutor(self.at_once) as pool:
            return settled(candidates, list(pool.map(lambda each: self.seen(subject, *each), candidates)))


def settled(candidates: Sequence[Candidate], seen: Sequence[Seen]) -> list[Judged]:
    """Candidates with their verdicts; one of which nothing of use was said is not used.

    Raises the first error when nothing was said of any that decodes.
    """
    errors = [each for each in seen if isinstance(each, Exception)]
    if errors and len(errors) == sum(picture is not None for _, picture in candidates):
        raise errors[0]
    unusable = Verdict(0.0, "unreadable", False)
    return [
        Judged(*each, unusable if isinstance(verdict, Exception) else verdict)
        for each, verdict in zip(candidates, seen, strict=True)
    ]


class Looking:
    """`with Looking(judge, subject) as looking:` tell it of hits as they arrive, in any thread, then ask for verdicts.

    At the end what was not begun is given up, and what was begun is waited for.
    """

    def __init__(self, judge: OneByOne, subject: str) -> None:
        self._judge, self._subject = judge, subject
        self._pool = ThreadPoolExecutor(judge.at_once, thread_name_prefix="judging")
        self._lock, self._looks = threading.Lock(), dict[str, Future[tuple[Candidate, Seen]]]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, hit: ImageHit) -> None:
        """A picture is there: it is opened and judged as soon as there is a thread for it."""
        with self._lock:
            if hit.id not in self._looks:
                self._looks[hit.id] = self._pool.submit(self._look, hit)

    def judged(self, hits: Sequence[ImageHit]) -> list[Judged]:
        """What `judge` says of these candidates, in their order, those included that were not told before."""
        for hit in hits:
            self.add(hit)
        found = [self._looks[hit.id].result() for hit in hits]
        candidates = [(hit, picture) for hit, ((_, picture), _) in zip(hits, found, strict=True)]
        return settled(candidates, [seen for _, seen in found])

    def _look(self, hit: ImageHit) -> tuple[Candidate, Seen]:
        (candidate,) = load_candidates([hit])
        return candidate, self._judge.seen(self._subject, *candidate)
