"""Judging reference candidates: the paper's four criteria (section 4.1.2, equation 9), weighted, with a threshold.

    identity     the title names what is looked for, and the picture agrees with the others that do
    salience     the subject fills a good part of the picture
    clarity      edges are as sharp as the contrast allows, and there are enough pixels
    cleanliness  no watermark, not mostly text

`PixelJudge` sees pixels and result titles only, as a person at a search page does; `SelfJudge` asks the model, and
`EndpointJudge` a model behind an endpoint. `LabelJudge` reads the labels of the embedded world: it serves the teacher
and the tests, never a reported run. Scores are 0 to 10; a wrong identity scores 0 and is never used, whatever else is
good about it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from PIL import Image

from unify_agent.interleave.segments import Unusable
from unify_agent.search.base import ImageHit, TextHit
from unify_agent.search.index import CJK, Index, holds, normalise, words

WEIGHTS = {"identity": 0.4, "salience": 0.2, "clarity": 0.2, "cleanliness": 0.2}
_PIECES = re.compile(rf"[{CJK}]|[^\W_{CJK}]+")
THRESHOLD = 6.0  # the judge prompt's border between rejected (up to 5) and usable (appendix E.3)
POOR = 5.0  # a criterion below it rejects a picture, whatever the rest is
FAULTS = {"salience": "tiny", "clarity": "blurred", "cleanliness": "watermark"}
MIN_SIDE = 64  # pixels that a reference has at least


@dataclass(frozen=True)
class Verdict:
    """What a judge says of one candidate. `reason` is a key of the prompts' verdict words."""

    score: float
    reason: str
    usable: bool
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def is_text_heavy(self) -> bool:
        return self.reason == "text"

    @property
    def has_watermark(self) -> bool:
        return self.reason == "watermark"


@dataclass(frozen=True)
class Judged:
    """A candidate with its picture (RGB, None when it does not decode) and its verdict."""

    hit: ImageHit
    picture: Image.Image | None
    verdict: Verdict


@dataclass(frozen=True)
class Grading:
    """Equation 9: what each criterion weighs, and the score (0 to 10) that a usable picture reaches.

    Weights are relative: their sum counts as one. A criterion that weighs nothing is not looked at, but identity always
    is. Raises ValueError for weights of other criteria, below 0, or all 0.
    """

    weights: Mapping[str, float] = field(default_factory=lambda: dict(WEIGHTS))
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        if set(self.weights) != set(WEIGHTS) or min(self.weights.values()) < 0 or not sum(self.weights.values()):
            raise ValueError(f"weights of {', '.join(WEIGHTS)} from 0 on, not all 0, are expected")

    def score(self, parts: Mapping[str, float]) -> float:
        """The weighted mean of the criteria."""
        return sum(self.weights[part] * value for part, value in parts.items()) / sum(self.weights.values())

    def worst(self, parts: Mapping[str, float]) -> str:
        """The criterion with the least value, of those that count and are no matter of identity."""
        return min((part for part in FAULTS if self.weights[part]), key=lambda part: parts[part], default="identity")


USUAL = Grading()


class Judge(Protocol):
    """Verdicts for the candidates of one search, in their order. Called from several threads at once."""

    name: str

    def judge(self, subject: str, candidates: Sequence[tuple[ImageHit, Image.Image | None]]) -> list[Judged]: ...


def load_candidates(hits: Sequence[ImageHit], threads: int = 1) -> list[tuple[ImageHit, Image.Image | None]]:
    """Opens what was found; what does not decode stays in the list without a picture."""
    if threads < 2 or len(hits) < 2:
        return [(hit, _opened(hit)) for hit in hits]
    with ThreadPoolExecutor(min(threads, len(hits))) as pool:
        return list(zip(hits, pool.map(_opened, hits), strict=True))


def _opened(hit: ImageHit) -> Image.Image | None:
    try:
        return hit.open()
    except Unusable:
        return None


def subject_of(query: str, read: Sequence[TextHit]) -> str:
    """The name that an image query asks for: its longest part that the text evidence holds, else all of it.

    "brass owl specimen", after reading that some coined word means the brass owl, is about "brass owl". Parts are
    runs of words, in Chinese of characters (two or more).
    """
    plain = normalise(query)
    pieces = [found.span() for found in _PIECES.finditer(plain)]
    evidence = [normalise(f"{hit.title}\n{hit.text}") for hit in read]
    for length in range(len(pieces), 0, -1):
        for first in range(len(pieces) - length + 1):
            part = plain[pieces[first][0] : pieces[first + length - 1][1]]
            if len(part) > 1 and any(holds(text, part) == 1.0 for text in evidence):
                return part
    return plain


def title_match(title: str, subject: str) -> float:
    """1 when the title names the subject and little else, less with every other word, 0 when it doesn't name it."""
    plain = normalise(title)
    if holds(plain, subject) < 1.0:
        return 0.0
    rest = len(words(plain.replace(subject, " ", 1)))
    return 1.0 if rest == 0 else 0.9**rest


def graded(
    parts: Mapping[str, float],
    *,
    side: int,
    text_heavy: bool = False,
    watermark: bool = False,
    grading: Grading = USUAL,
) -> Verdict:
    """The verdict from the four criteria (0 to 10), the shorter `side` in pixels, and what was seen besides.

    A usable picture shows the right thing, reaches the threshold, and is poor in nothing.
    """
    found = dict(parts)
    if found["identity"] < POOR:
        return Verdict(0.0, "other", False, found)
    fault = "text" if text_heavy else "watermark" if watermark else None
    if side < MIN_SIDE:
        found["clarity"], fault = 0.0, fault or "tiny"
    score, worst = grading.score(found), grading.worst(found)
    if fault is None and found[worst] < POOR:
        fault = FAULTS[worst]
    if fault is not None:
        return Verdict(min(score, POOR), fault, False, found)
    return Verdict(score, "good", True, found) if score >= grading.threshold else Verdict(score, "spare", False, found)


def entities_in(index: Index) -> Callable[[str], str | None]:
    """The entity that a subject names, by the labels of the good pictures whose title it is."""

    def entity_of(subject: str) -> str | None:
        hits = index.search_image(subject, num=20)
        found = [index.labels(hit.id) for hit in hits if title_match(hit.title, normalise(subject)) == 1.0]
        named = Counter(str(label["entity"]) for label in found if label.get("kind") == "good")
        return max(named, key=lambda entity: named[entity], default=None)

    return entity_of


class LabelJudge:
    """Reads the index's labels: {"entity", "kind"}. `entity_of` gives the entity that a subject names, or None."""

    name = "labels"

    def __init__(self, labels: Callable[[str], dict], entity_of: Callable[[str], str | None]):
        self._labels, self._entity_of = labels, entity_of

    def judge(self, subject: str, candidates: Sequence[tuple[ImageHit, Image.Image | None]]) -> list[Judged]:
        wanted, result = self._entity_of(subject), []
        for hit, picture in candidates:
            label = self._labels(hit.id)
            reason = str(label["kind"]) if label["entity"] == wanted else "other"
            score = {"good": 9.0, "other": 0.0}.get(reason, 3.0)
            result.append(Judged(hit, picture, Verdict(score, reason, reason == "good")))
        return result
