"""What became of every entity and every task: one JSON line each, appended as it is settled.

    {"kind": "entity", "id": ..., "state": "done", "category": ..., "names": {...}, "tasks": [...]}
    {"kind": "task", "id": ..., "entity": ..., "state": "dropped", "stage": "verification", "reason": ...,
     "detail": ..., "prompt": ..., "language": ..., "form": ..., "difficulty": ...,
     "trials": [{"number": 1, "picture": "pictures/...", "accepted": false, "reason": ..., "scores": {...}}]}

The last line of an id counts. A line that a kill cut off is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

State = Literal["done", "dropped", "failed", "waiting", "held_out"]
"""waiting: for a budget. held_out: a task of a benchmark entity, whose prompt is all that is made of it."""


@dataclass(frozen=True)
class Outcome:
    """A line. `about` is what else it says.

    Of an entity: category, country, names, remark, attributes, seeds. Of a task: prompt, language, form, difficulty,
    category and `trials`, whose pictures are paths below the run folder.
    """

    kind: Literal["entity", "task"]
    id: str
    state: State
    entity: str = ""
    stage: str = ""
    reason: str = ""
    detail: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)


def read_journal(path: Path) -> Iterator[Outcome]:
    """The last outcome of each id, in the order in which the ids first came. Raises UserError for a damaged line."""
    raise NotImplementedError
