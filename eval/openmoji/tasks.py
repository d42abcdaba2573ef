"""What is asked: requests about entities that nobody has seen, and about common things.

A task is a pure function of (entity, seed). Each seed asks for the same entities in other scenes, in the other
language every time, so that three seeds measure three different requests about each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data.openmoji.entities import Entity
from data.openmoji.scenes import Scene
from data.openmoji.words import request
from unify_agent.errors import UserError
from unify_agent.files import digest

LANGUAGES = ("en", "zh")


@dataclass(frozen=True)
class Task:
    """One request. `common`: about a thing that the model is supposed to know, so nothing has to be looked up."""

    id: str
    entity: str
    name: str
    asked: str
    language: str
    request: str
    scene: Scene
    seed: int
    common: bool = False


def _random(*key: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(int(digest("openmoji", *key)[:16], 16)))


def _task(entity: Entity, position: int, seed: int, common: bool) -> Task:
    rng = _random("task", entity.id, str(seed))
    language = LANGUAGES[(position + seed) % 2]
    scene = Scene.sample(rng, avoid=entity.id)
    asked = (entity.name if common else entity.alias)[language]
    kind = "common" if common else "unseen"
    return Task(
        id=f"{kind}-{entity.id}-{seed}", entity=entity.id, name=entity.name[language], asked=asked,
        language=language, request=request(scene, asked, language, rng), scene=scene, seed=seed, common=common,
    )  # fmt: skip


def chosen(entities: Sequence[Entity], count: int, split: str = "test") -> list[Entity]:
    """`count` entities of a split in a fixed random order, so that a smaller choice begins a larger one."""
    pool = sorted((e for e in entities if e.split == split), key=lambda e: digest("openmoji", "choice", e.id))
    if len(pool) < count:
        raise UserError(f"--entities {count}: this world has {len(pool)} in its {split} split; build a larger one")
    return pool[:count]


def unseen_tasks(entities: Sequence[Entity], seed: int) -> list[Task]:
    """One request about each entity, by its alias."""
    return [_task(entity, position, seed, False) for position, entity in enumerate(entities)]


def common_tasks(entities: Sequence[Entity], seed: int) -> list[Task]:
    """One request about each common thing, by its name."""
    things = sorted((e for e in entities if e.common), key=lambda e: e.id)
    return [_task(entity, position, seed, True) for position, entity in enumerate(things)]
