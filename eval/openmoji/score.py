"""What a run got right: words from its records, pictures against the exact pictures of the same scene.

Everything counts that was asked for: an item without a picture or without a recaption is wrong, not left out.
`figures` of a variant with several seeds resample entities, since an entity's seeds are not independent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from data.openmoji.entities import contains_name
from data.openmoji.scenes import BACKGROUNDS, COMPANION, SIDE, Scene, companion_place
from data.openmoji.words import parse_recaption
from eval.metrics import Box, Figure, PictureScore, clustered, proportion, score_picture
from eval.openmoji.store import Item
from eval.openmoji.tasks import Task

PICTURE_FIGURES = {
    "identity": "identity_top1", "background": "background_right", "place": "place_right", "scene": "scene_correct",
}  # fmt: skip
"""Attribute of `PictureScore` -> name of the figure."""


@dataclass(frozen=True)
class Scored:
    """One item. `calls` and `queries` have an outcome for every turn that should have held a call, `replies` for
    every reply in such a turn, those included that were discarded and drawn again.

    recaption_complete: a whole recaption that names exactly the references there are, and every attribute.
    recaption_true: besides, the thing's name and the scene are those that were asked for.
    references_right: the chosen references show the entity (read from labels, which the agent never sees).
    """

    task: Task
    calls: tuple[bool, ...]
    queries: tuple[bool, ...]
    replies: tuple[bool, ...]
    searched: bool
    recaption_complete: bool
    recaption_true: bool
    references_right: bool
    picture: PictureScore | None


def expected_tool(item: Item, turn: int) -> str:
    """What the teacher would call in a turn: text search until a page was read, image search from then on."""
    read = any(call["name"] == "text_search" for step in item.steps[:turn] for call in step.calls)
    return "search_image" if read else "text_search"


def carries(query: str, name: str, language: str) -> bool:
    """Whether a query holds a name exactly: as whole words in English, as characters in Chinese."""
    return contains_name(query, name, "en") if language == "en" else name in query


def score_calls(task: Task, item: Item) -> tuple[tuple[bool, ...], tuple[bool, ...], tuple[bool, ...]]:
    """Per turn that is not a recaption: is it one well-formed call of the right tool; per call: the exact name; per
    reply, those included that were discarded and drawn again: is it such a call.

    A reply that had to be mended does not count as well-formed. A text query must hold the alias, an image query the
    proper name.
    """
    valid, exact, replies = [], [], []
    last = len(item.steps) - 1
    for turn, step in enumerate(item.steps):
        if turn == last and step.observation is None:
            continue
        names = [call["name"] for call in step.calls]
        malformed = bool(step.mended) or (step.error is not None and not names)
        valid.append(names == [expected_tool(item, turn)] and not malformed)
        replies += [False] * len(step.discarded) + valid[-1:]
        for call in step.calls:
            wanted = task.asked if call["name"] == "text_search" else task.name
            exact.append(carries(str(call["arguments"]["q"]), wanted, task.language))
    return tuple(valid), tuple(exact), tuple(replies)


def score_item(
    task: Task,
    item: Item,
    picture: np.ndarray | None,
    gallery: np.ndarray | None,
    truth: int,
    entity_of: Callable[[str], str | None],
) -> Scored:
    """`gallery` are the exact pictures of all entities in the task's scene, `truth` the index of the right one.

    Without a gallery the picture is not scored. `entity_of` tells what the candidate with an id really shows.
    """
    calls, queries, replies = score_calls(task, item)
    said = parse_recaption(item.recaption)
    complete = said.complete(len(item.references))
    true = complete and said.scene == task.scene and (said.name or "").casefold() == task.name.casefold()
    chosen = [each for step in item.steps for each in step.candidates if each.chosen]
    return Scored(
        task=task,
        calls=calls,
        queries=queries,
        replies=replies,
        searched=any(step.calls for step in item.steps),
        recaption_complete=complete,
        recaption_true=true,
        references_right=bool(chosen) and all(entity_of(each.id) == task.entity for each in chosen),
        picture=None
        if gallery is None
        else score_picture(picture, gallery, truth, BACKGROUNDS, task.scene.background, corner_box(task.scene)),
    )


def corner_box(scene: Scene) -> Box | None:
    """Where the second thing of a scene stands."""
    if scene.corner is None:
        return None
    x, y = companion_place(scene.corner)
    reach = COMPANION / 2 + 1
    left, top = max(0, round(x - reach)), max(0, round(y - reach))
    return left, top, min(SIDE, round(x + reach)), min(SIDE, round(y + reach))


def by_entity(scored: Sequence[Scored], outcome: Callable[[Scored], Iterable[bool]]) -> dict[str, list[float]]:
    """Outcomes grouped by entity, for `clustered`."""
    groups: dict[str, list[float]] = defaultdict(list)
    for each in scored:
        groups[each.task.entity] += map(float, outcome(each))
    return dict(groups)


def of_picture(part: str) -> Callable[[Scored], list[bool]]:
    """The outcome `part` (a key of `PICTURE_FIGURES`) of an item's picture; nothing where none was scored."""
    return lambda scored: [] if scored.picture is None else [getattr(scored.picture, part)]


def figures(scored: Sequence[Scored]) -> dict[str, Figure]:
    """The figures of one variant over requests about unseen entities."""

    def of(outcome: Callable[[Scored], Iterable[bool]]) -> Figure:
        return clustered(by_entity(scored, outcome))

    result = {
        "tool_calls_valid": of(lambda s: s.calls),
        "replies_valid": of(lambda s: s.replies),
        "query_exact": of(lambda s: s.queries),
        "searched": of(lambda s: [s.searched]),
        "references_right": of(lambda s: [s.references_right]),
        "recaption_complete": of(lambda s: [s.recaption_complete]),
        "recaption_true": of(lambda s: [s.recaption_true]),
    }
    drawn = [s for s in scored if s.picture is not None]
    for part, name in PICTURE_FIGURES.items():
        result[name] = clustered(by_entity(drawn, of_picture(part)))
    good = [s for s in drawn if s.references_right and s.recaption_true]
    result["identity_when_evidence_right"] = clustered(by_entity(good, of_picture("identity")))
    return result


def decisions(unseen: Sequence[Scored], common: Sequence[Scored]) -> Figure:
    """Unknown things are searched for, known ones are not."""
    return proportion([s.searched for s in unseen] + [not s.searched for s in common])
