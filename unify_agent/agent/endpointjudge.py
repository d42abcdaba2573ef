"""A model behind an OpenAI-compatible endpoint judges reference candidates, each on its own, several at once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from PIL import Image
from pydantic import Field

from unify_agent.agent.judge import USUAL, WEIGHTS, Grading, Judged, Verdict, graded
from unify_agent.agent.tools import is_down
from unify_agent.agent.wording import Judging
from unify_agent.judging import ChatClient, ChatError, Picture, PicturePolicy, structured, system, user
from unify_agent.search.base import ImageHit

SENT = PicturePolicy(longest=768, format="jpeg", quality=90)


class Seen(structured.Verdict):
    """What the endpoint answers."""

    identity: int = Field(ge=0, le=10)
    salience: int = Field(ge=0, le=10)
    clarity: int = Field(ge=0, le=10)
    cleanliness: int = Field(ge=0, le=10)
    is_text_heavy: bool
    has_watermark: bool


class EndpointJudge:
    """Asks `client`; `grading` weighs what it says. A candidate of which nothing usable is said is not used.

    `judge` raises ChatError when the service does not work, or says nothing usable of any candidate.
    """

    name = "openai"

    def __init__(self, client: ChatClient, words: Judging, grading: Grading = USUAL):
        self.client, self.words, self.grading = client, words, grading

    def judge(self, subject: str, candidates: Sequence[tuple[ImageHit, Image.Image | None]]) -> list[Judged]:
        if not candidates:
            return []
        with ThreadPoolExecutor(min(len(candidates), self.client.concurrency)) as pool:
            seen = list(pool.map(lambda each: self._verdict(subject, *each), candidates))
        errors = [each for each in seen if isinstance(each, ChatError)]
        if errors and len(errors) == sum(picture is not None for _, picture in candidates):
            raise errors[0]
        unusable = Verdict(0.0, "unreadable", False)
        return [
            Judged(*each, unusable if isinstance(verdict, ChatError) else verdict)
            for each, verdict in zip(candidates, seen, strict=True)
        ]

    def _verdict(self, subject: str, hit: ImageHit, picture: Image.Image | None) -> Verdict | ChatError:
        if picture is None:
            return Verdict(0.0, "unreadable", False)
        words = self.words.phrases(subject)
        messages = [
            system(words.rubric),
            user(words.ask.replace("{subject}", subject), Picture.of(hit.path, SENT)),
        ]
        try:
            found = self.client.ask(messages, schema=Seen, max_tokens=512).parsed
        except ChatError as error:
            if is_down(error):
                raise
            return error
        assert isinstance(found, Seen)
        parts = {criterion: float(getattr(found, criterion)) for criterion in WEIGHTS}
        return graded(
            parts, side=min(picture.size), text_heavy=found.is_text_heavy, watermark=found.has_watermark,
            grading=self.grading,
        )  # fmt: skip
