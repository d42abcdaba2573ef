"""A model behind an OpenAI-compatible endpoint judges reference candidates, each on its own, several at once."""

from __future__ import annotations

from PIL import Image
from pydantic import Field

from unify_agent.agent.arriving import OneByOne
from unify_agent.agent.judge import USUAL, WEIGHTS, Grading, Verdict, graded
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


class EndpointJudge(OneByOne):
    """Asks `client`; `grading` weighs what it says. A candidate of which nothing usable is said is not used.

    `judge` raises ChatError when the service does not work, or says nothing usable of any candidate.
    """

    name = "openai"

    def __init__(self, client: ChatClient, words: Judging, grading: Grading = USUAL):
        self.client, self.words, self.grading, self.at_once = client, words, grading, client.concurrency

    def verdict(self, subject: str, hit: ImageHit, picture: Image.Image) -> Verdict | ChatError:
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
