"""The model judges reference candidates itself: it sees each through its ViT side and is asked four questions.

Each criterion is a question that is answered with one digit, 0 to 9. What counts is the mean of the digits by their
probabilities, so there is always an answer, it is the same every time, and nothing has to be parsed. All candidates
of a search are looked at in one forward, and all questions about them in another.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from PIL import Image

from unify_agent.agent.judge import WEIGHTS, Judged, Verdict, graded
from unify_agent.agent.unified import UnifiedPolicy
from unify_agent.agent.wording import Judging, Questions
from unify_agent.generation.appending import Part
from unify_agent.generation.session import Session
from unify_agent.interleave.segments import Text
from unify_agent.search.base import ImageHit

SEEN = 560
"""Pixels of a candidate's longest side as it is looked at."""
AT_ONCE = 8


class SelfJudge:
    """Asks the model of `policy`. Calls from several threads take turns."""

    name = "self"

    def __init__(self, policy: UnifiedPolicy, words: Judging):
        self.policy, self.words = policy, words
        self._digits = [policy.grammar.encode(str(digit))[-1] for digit in range(10)]
        self._lock = threading.Lock()

    def judge(self, subject: str, candidates: Sequence[tuple[ImageHit, Image.Image | None]]) -> list[Judged]:
        words = self.words.phrases(subject)
        readable = [(number, picture) for number, (_, picture) in enumerate(candidates) if picture is not None]
        verdicts = {}
        for start in range(0, len(readable), AT_ONCE):
            part = readable[start : start + AT_ONCE]
            with self._lock:
                scores = self._scores(subject, [picture for _, picture in part], words)
            for (number, picture), parts in zip(part, scores, strict=True):
                verdicts[number] = graded(parts, side=min(picture.size))
        unreadable = Verdict(0.0, "unreadable", False)
        return [Judged(*each, verdicts.get(number, unreadable)) for number, each in enumerate(candidates)]

    @torch.no_grad()
    def _scores(self, subject: str, pictures: Sequence[Image.Image], words: Questions) -> list[dict[str, float]]:
        """For each picture its criteria, 0 to 10."""
        policy, rows = self.policy, range(len(pictures))
        session = Session(policy.model, None, policy.grammar, policy.pixels, rows=len(pictures))
        look = Text(policy.grammar.encode_untrusted(words.look.replace("{subject}", subject)))
        shown: list[list[Part]] = [[policy.pixels.seen(_smaller(picture)), look] for picture in pictures]
        session.append(rows, shown)
        asked = session.fork([row for row in rows for _ in WEIGHTS])
        parts = [
            [Text(policy.grammar.encode_untrusted(getattr(words, criterion))), Text(())]
            for _ in rows
            for criterion in WEIGHTS
        ]
        said = asked.append(range(asked.rows), parts)
        beginnings = torch.stack([each.hidden[-2] for each in said])  # the marker that opens the answer
        logits = policy.model.logits(beginnings).float()[:, self._digits]
        digits = torch.arange(10, device=logits.device, dtype=logits.dtype)
        means = (logits.softmax(-1) @ digits).mul(10 / 9).tolist()
        return [dict(zip(WEIGHTS, means[len(WEIGHTS) * row :], strict=False)) for row in rows]


def _smaller(picture: Image.Image) -> Image.Image:
    if max(picture.size) <= SEEN:
        return picture
    small = picture.copy()
    small.thumbnail((SEEN, SEEN), Image.Resampling.LANCZOS)
    return small
