"""The model judges reference candidates itself: it sees each through its ViT side and is asked four questions.

Each criterion is a question that is answered with one digit, 0 to 9. What counts is the mean of the digits by their
probabilities, so there is always an answer, it is the same every time, and nothing has to be parsed. A candidate is
looked at in one forward, and all questions about it are asked in another; the next one waits for its turn, so that no
verdict depends on which of them were there together.
"""

from __future__ import annotations

import threading

import torch
from PIL import Image

from unify_agent.agent.arriving import OneByOne
from unify_agent.agent.judge import WEIGHTS, Verdict, graded
from unify_agent.agent.unified import UnifiedPolicy
from unify_agent.agent.wording import Judging, Questions
from unify_agent.generation.session import Session
from unify_agent.interleave.segments import Text
from unify_agent.search.base import ImageHit

SEEN = 560
"""Pixels of a candidate's longest side as it is looked at."""


class SelfJudge(OneByOne):
    """Asks the model of `policy`. Calls from several threads take turns."""

    name = "self"

    def __init__(self, policy: UnifiedPolicy, words: Judging):
        self.policy, self.words = policy, words
        self._digits = [policy.grammar.encode(str(digit))[-1] for digit in range(10)]
        self._lock = threading.Lock()

    def verdict(self, subject: str, hit: ImageHit, picture: Image.Image) -> Verdict:
        with self._lock:
            parts = self._scores(subject, picture, self.words.phrases(subject))
        return graded(parts, side=min(picture.size))

    @torch.no_grad()
    def _scores(self, subject: str, picture: Image.Image, words: Questions) -> dict[str, float]:
        """Its criteria, 0 to 10."""
        policy = self.policy
        session = Session(policy.model, None, policy.grammar, policy.pixels)
        look = Text(policy.grammar.encode_untrusted(words.look.replace("{subject}", subject)))
        session.append([0], [[policy.pixels.seen(_smaller(picture)), look]])
        asked = session.fork([0] * len(WEIGHTS))
        questions = [
            [Text(policy.grammar.encode_untrusted(getattr(words, criterion))), Text(())] for criterion in WEIGHTS
        ]
        said = asked.append(range(asked.rows), questions)
        beginnings = torch.stack([each.hidden[-2] for each in said])  # the marker that opens the answer
        logits = policy.model.logits(beginnings).float()[:, self._digits]
        digits = torch.arange(10, device=logits.device, dtype=logits.dtype)
        means = (logits.softmax(-1) @ digits).mul(10 / 9).tolist()
        return dict(zip(WEIGHTS, means, strict=True))


def _smaller(picture: Image.Image) -> Image.Image:
    if max(picture.size) <= SEEN:
        return picture
    small = picture.copy()
    small.thumbnail((SEEN, SEEN), Image.Resampling.LANCZOS)
    return small
