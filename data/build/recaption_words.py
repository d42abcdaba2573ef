"""The teacher's words about recaptions: words/recaption.yaml, or a file of the same keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from data.build.recaption_rules import Fault
from unify_agent.agent.wording import load_words

FOLDER = Path(__file__).parent / "words"


class Part(BaseModel):
    """Base of all words: closed and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FaultWords(Part):
    """What is said of each kind of `Fault`, and of a reply without a recaption."""

    missing: str
    tags: str
    talk: str
    short: str
    long: str
    unnamed: str
    unknown: str
    misnamed: str
    language: str
    order: str
    unkept: str
    kept_early: str
    faceless: str
    sceneless: str


class RecaptionPhrases(Part):
    """One language's words."""

    brief: str
    complaint: str
    faults: FaultWords

    def complaint_of(self, faults: Sequence[Fault]) -> str:
        """What a teacher is told whose recaption has these faults."""
        lines = [getattr(self.faults, each.kind).replace("{detail}", each.detail) for each in faults]
        return self.complaint.replace("{faults}", "\n".join(f"- {line}" for line in lines))


class RecaptionWords(Part):
    """Both languages'."""

    en: RecaptionPhrases
    zh: RecaptionPhrases

    def phrases(self, language: str) -> RecaptionPhrases:
        """The words in a language; English for one that the file lacks."""
        return self.zh if language == "zh" else self.en


@lru_cache(maxsize=4)
def words_of(file: Path | None) -> RecaptionWords:
    """Ours, or those of a file. Raises UserError that names file and key."""
    return load_words(file or FOLDER / "recaption.yaml", RecaptionWords)
