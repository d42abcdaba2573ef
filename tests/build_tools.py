"""What tests of the stages of a build share: a spec against local servers, tasks of a world, a run of the stages."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from build_servers import ROLES, Images, Thing, World
from chat_server import ChatServer

from data.build.contracts import Entity, Task
from data.build.services import Services
from data.build.spec import Spec, read_spec


def write_spec(folder: Path, chat: str, images: str, **changes: Any) -> Path:
    """A spec of the world that lies in `folder`. `changes`: parts, merged into ours."""
    value: dict[str, Any] = {
        "entities": "entities.csv", "out": "out", "patience": 0,
        "services": {
            "teacher": {"url": chat, "model": "teacher", "concurrency": 8, "attempts": 3},
            **{role: {"same_as": "teacher", "model": role} for role in ROLES[1:]},
            "image": {"url": images, "model": "painter", "size": "64x96", "attempts": 3},
            "search": {"spec": "index:index"},
        },
        "trajectories": {"words": "compact"},
    }  # fmt: skip
    for name, part in changes.items():
        if name == "services":
            for service, given in part.items():
                value["services"][service] |= given
        else:
            value[name] = value.get(name, {}) | part if isinstance(part, dict) else part
    path = folder / "build.yaml"
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
def bench(folder: Path, world: World | None = None, *, chat: dict | None = None, images: dict | None = None, **spec):
    """Servers of a world, and services of a spec that asks them. `chat`, `images`: see build_servers."""
    world = world or World()
    if not (folder / "index").exists():
        world.write(folder)
    with world.chat(**(chat or {})) as talking, world.images(**(images or {})) as drawing:
        read = read_spec(write_spec(folder, talking.url, drawing.url, **spec))
        with Services(read, folder / "out") as services:
            for client in services._clients.values():
                client._pace._backoff = 0.0
            services.image._pace._backoff = 0.0
            yield Bench(world, folder, read, services, talking, drawing)
