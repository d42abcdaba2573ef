"""Stage 5: a multimodal judge compares each drawing with the seed pictures; code decides (paper, section 4.1.3).

The judge gives three numbers and a reason and knows no threshold. A drawing is accepted when none of them is below the
spec's. Which drawings there are, and when a task has had enough of them, is the pipeline's affair.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from data.build.contracts import Dropped, Entity, Task, Trial
from data.build.filling import FOLDER, fill, told
from data.build.recaption_rules import LANGUAGES
from data.build.services import Services
from data.build.spec import Spec
from unify_agent.agent.episode import Episode
from unify_agent.agent.wording import load_words
from unify_agent.judging import ChatError, Picture, PicturePolicy, structured, system, user
from unify_agent.judging.transport import is_moderated

SENT = PicturePolicy(longest=1024, format="jpeg", quality=92)
CRITERIA = ("identity", "scene", "soundness")
ROOM = 512
MOST_PROMPT = 2000
"""Characters of a prompt that the judge is told."""


class Verified(structured.Verdict):
    """What the judge answers."""

    identity: int = Field(ge=0, le=10)
    scene: int = Field(ge=0, le=10)
    soundness: int = Field(ge=0, le=10)
    reason: str


class VerificationPhrases(BaseModel):
    """One language's words; see words/verification.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rubric: str
    truth: str
    known: str
    drawn: str
    prompt: str


class VerificationWords(BaseModel):
    """Both languages'."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    en: VerificationPhrases
    zh: VerificationPhrases


@lru_cache(maxsize=4)
def words_of(file: Path | None) -> VerificationWords:
    """Ours, or those of a file. Raises UserError that names file and key."""
    return load_words(file or FOLDER / "verification.yaml", VerificationWords)


def require_truth(entity: Entity, spec: Spec) -> None:
    """Raises Dropped for an entity whose drawings there is nothing to compare with, before anything is spent on it."""
    if not entity.seeds and spec.verification.without_seeds == "refuse":
        raise Dropped("verification", "no seed pictures", f"{entity.id} has none, and the spec refuses such")


def require_language(language: str) -> None:
    """Raises Dropped for a language in which there are no trajectories."""
    if language not in LANGUAGES:
        raise Dropped("trajectory", "language", f"the agent is asked in {' or '.join(LANGUAGES)}, not {language}")


def truth_of(task: Task, trajectory: Episode) -> tuple[tuple[Path, ...], str]:
    """The pictures that a drawing is compared with, and what they are: `seeds` or `references`."""
    if task.entity.seeds:
        return task.entity.seeds, "seeds"
    return tuple(each.hit.path for each in trajectory.references), "references"


def verify(task: Task, trajectory: Episode, number: int, picture: Path, spec: Spec, services: Services) -> Trial:
    """What the judge says of a drawing. A drawing of which it says nothing usable is not accepted.

    Raises Dropped where there is nothing to compare with, or what a service that does not work raised.
    """
    truth, _ = truth_of(task, trajectory)
    if not truth:
        raise Dropped("verification", "nothing to compare with", "neither seed pictures nor references")
    words = words_of(spec.verification.words)
    phrases = words.zh if task.language == "zh" else words.en
    known = "; ".join(map(told, task.entity.attributes))
    shown: list[Any] = [
        fill(phrases.truth, {"count": len(truth), "name": told(task.entity.name(task.language))}),
        *(Picture.of(path, SENT) for path in truth),
        *([fill(phrases.known, {"attributes": known})] if known else []),
        fill(phrases.prompt, {"prompt": told(task.prompt, MOST_PROMPT)}),
        phrases.drawn,
        Picture.of(picture, SENT),
    ]
    try:
        answer = services.chat("verifier").ask(
            [system(phrases.rubric), user(*shown)], schema=Verified, max_tokens=ROOM,
            temperature=spec.chat("verifier").temperature,
        )  # fmt: skip
    except ChatError as error:
        if error.kind in ("malformed", "truncated", "empty") or is_moderated(error):
            return Trial(number, picture, False, f"no verdict: {error.kind}")
        raise
    seen = answer.parsed
    assert isinstance(seen, Verified)
    scores = {criterion: float(getattr(seen, criterion)) for criterion in CRITERIA}
    low = [criterion for criterion in CRITERIA if scores[criterion] < spec.verification.threshold]
    reason = f"{low[0]}: {' '.join(seen.reason.split())[:200]}" if low else ""
    return Trial(number, picture, not low, reason, scores)
