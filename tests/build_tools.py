"""What tests of the stages of a build share: a spec against local servers, tasks of a world, a run of the stages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from build_servers import ROLES, Images, Thing, World
from chat_server import ChatServer

from data.build import pictures, recaption, trajectories, verification
from data.build.contracts import Entity, Task, Trial
from data.build.services import Services
from data.build.spec import Spec, read_spec
from unify_agent.agent.episode import Episode


def write_spec(place: Path, folder: Path, chat: str, images: str, **changes: Any) -> Path:
    """A spec in `place` of the world that lies in `folder`. `changes`: parts, merged into ours."""
    value: dict[str, Any] = {
        "entities": str(folder / "entities.csv"), "out": "out", "patience": 600,
        "services": {
            "teacher": {"url": chat, "model": "teacher", "concurrency": 8, "attempts": 3},
            **{role: {"same_as": "teacher", "model": role} for role in ROLES[1:]},
            "image": {"url": images, "model": "painter", "size": "64x96", "attempts": 3},
            "search": {"spec": f"index:{folder / 'index'}"},
        },
        "trajectories": {"words": "compact"},
    }  # fmt: skip
    for name, part in changes.items():
        if name == "services":
            for service, given in part.items():
                value["services"][service] |= given
        else:
            value[name] = value.get(name, {}) | part if isinstance(part, dict) else part
    path = place / "build.yaml"
    path.write_text(yaml.safe_dump(value, allow_unicode=True), encoding="utf-8")
    return path


def task_of(thing: Thing, folder: Path, language: str = "", seeds: bool = True) -> Task:
    """A task about a thing of a world that lies in `folder`."""
    language = language or ("en" if thing.en else "zh")
    names = {key: name for key, name in (("en", thing.en), ("zh", thing.zh)) if name}
    entity = Entity(
        id=f"{thing.number:03d}", names=names, category=thing.category, country=thing.country,
        seeds=tuple(folder / "seeds" / f"{thing.number}_{k}.png" for k in (1, 2)) if seeds else (),
        attributes=("a round outline",),
    )  # fmt: skip
    prompt = f"{thing.en} waits on the old harbour" if language == "en" else f"{thing.zh}在老港口等待"
    return Task(f"{entity.id}-p0", entity, prompt, language, "scene-first", "easy")


@dataclass
class Bench:
    """A world on the disk with its servers and services."""

    world: World
    folder: Path
    spec: Spec
    services: Services
    chat: ChatServer
    images: Images

    def task(self, name: str, **more: Any) -> Task:
        thing = self.world.thing_in(name)
        assert thing is not None
        return task_of(thing, self.folder, **more)


@contextmanager
def bench(
    place: Path,
    folder: Path,
    world: World | None = None,
    *,
    chat: dict[str, Any] | None = None,
    images: dict[str, Any] | None = None,
    **spec: Any,
) -> Iterator[Bench]:
    """Servers of the world in `folder`, and services of a spec in `place` that asks them.

    `chat`, `images`: arguments of the servers; `spec`: parts of the spec. Nobody waits between two attempts.
    """
    world = world or World()
    with world.chat(**(chat or {})) as talking, world.images(**(images or {})) as drawing:
        read = read_spec(write_spec(place, folder, talking.url, drawing.url, **spec))
        with Services(read, place / "out") as services:
            for role in ROLES:
                services.chat(role)._pace._backoff = 0.0
            services.image._pace._backoff = 0.0
            yield Bench(world, folder, read, services, talking, drawing)


@dataclass
class Made:
    """What became of a task: its trajectory and all its trials."""

    trajectory: Episode
    trials: list[Trial]


def make(bench: Bench, task: Task) -> Made:
    """A task through stages 2 to 5, one after the other, as the pipeline takes it."""
    trajectory = trajectories.research(task, bench.spec, bench.services)
    trajectory = recaption.recaption(task, trajectory, bench.spec, bench.services)
    trials: list[Trial] = []
    while len(trials) < bench.spec.verification.trials and not (trials and trials[-1].accepted):
        number = len(trials) + 1
        picture = pictures.draw(task, trajectory, number, bench.spec, bench.services)
        trials.append(verification.verify(task, trajectory, number, picture, bench.spec, bench.services))
    return Made(trajectory, trials)
