"""What the stages of a build agree on: the things that pass from one to the next, and how one of them ends early.

A stage is a function of its input, the spec and the services. It asks others only through the services, which keep
every answer, so that a stage that is run again after a kill asks nothing twice and comes to the same result. Chance
comes from generators keyed by the seed and the id of what is made, never from a clock or from the order of the work.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from unify_agent.errors import UserError

Stage = Literal["entities", "prompts", "trajectory", "recaption", "picture", "verification", "assembly"]
Part = Literal["train", "benchmark", "withheld"]
CATEGORIES = {
    "Character": ("animation", "comic", "celebrity", "game", "mascot", "mythology"),
    "Object": ("food", "art", "toy", "animal"),
    "Scene": ("landmark", "festival"),
}
"""FactIP's twelve, in their three groups."""


@dataclass(frozen=True)
class Entity:
    """Something rare that is to be drawn. `id` names files; `given_id` is what the list called it.

    names: by language (`en`, `zh`, ...), at least one. remark: what the list says of it. seeds: pictures that truly
    show it, for verification and for the benchmark; never shown to the teacher. attributes: what it can be recognised
    by, found by the metadata stage. place: its number in its part of its category, from 0 in the order of the list.
    part: `benchmark`, or `withheld` when it is too like one of those to be trained on (data/build/benchmark.py).
    """

    id: str
    names: Mapping[str, str]
    category: str
    country: str = ""
    remark: str = ""
    seeds: tuple[Path, ...] = ()
    attributes: tuple[str, ...] = ()
    given_id: str = ""
    place: int = 0
    part: Part = "train"

    def name(self, language: str) -> str:
        """The name in a language, else in any."""
        return self.names.get(language) or next(iter(self.names.values()))


@dataclass(frozen=True)
class Task:
    """A prompt for an entity: one trajectory is to come of it. `form` and `difficulty`: see the prompts stage."""

    id: str
    entity: Entity
    prompt: str
    language: str
    form: str = ""
    difficulty: str = ""


class Dropped(Exception):
    """An entity or a task that is left out for good, in a stage, for a named reason. `detail` is one line."""

    def __init__(self, stage: Stage, reason: str, detail: str = "") -> None:
        self.stage, self.reason, self.detail = stage, reason, " ".join(detail.split())[:500]
        super().__init__(f"{stage}: {reason}" + (f" ({self.detail})" if self.detail else ""))


def is_of_the_disk(error: Exception) -> bool:
    """Whether an error says that what a run keeps cannot be written: the run's affair, not that of an item."""
    return isinstance(error, UserError) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class OverBudget(BaseException):
    """A service has spent its budget: what needs it stays undone, and a later run with more continues there.

    No `Exception`, so that no stage and no agent loop on the way takes it for a call that failed.
    """

    def __init__(self, service: str) -> None:
        self.service = service
        super().__init__(f"{service}: its budget is spent")


class Halted(BaseException):
    """The run cannot go on: a key is not accepted, a service is down, or it was told to stop. One line for a person."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class Failed(Exception):
    """A task (or an entity) that came to nothing this time, for a reason that may pass: tried again by a later run.

    Stages raise it for what they see; a ChatError or SearchError that leaves a stage is taken for one.
    """

    def __init__(self, stage: Stage, reason: str, detail: str = "") -> None:
        self.stage, self.reason, self.detail = stage, reason, " ".join(detail.split())[:500]
        super().__init__(f"{stage}: {reason}" + (f" ({self.detail})" if self.detail else ""))


@dataclass(frozen=True)
class Trial:
    """One drawing of a task and what the verifier said. `scores`: its criteria; `accepted`, and why not."""

    number: int
    picture: Path
    accepted: bool
    reason: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
