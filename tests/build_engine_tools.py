"""Stages of a build that cost nothing, for tests of what drives them, and the command in this process or another.

    toy = Toy()                                        # counts what is asked of it
    toy.write(folder, "a", "b=changed")                # the list: an id a line, what it says after `=`
    toy.faults["draw", "a-p1"] = RuntimeError("...")   # raised by that stage for that item
    code = build(monkeypatch, toy, spec, "--limit", 1)

`made` counts work by (stage, item); a second count of the same is work that was done twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from build_tools import write_spec

from data.__main__ import main
from data.build import command
from data.build.assembly import items_of
from data.build.contracts import Dropped, Entity, Task, Trial
from data.build.services import Services
from data.build.spec import Spec
from data.build.stages import Stages
from unify_agent import errors
from unify_agent.files import whole_folder

ROOT = Path(__file__).parents[1]


def toy_spec(folder: Path, **changes: Any) -> Path:
    """A spec whose services are never asked."""
    services = {"search": {"spec": "wikipedia"}} | changes.pop("services", {})
    return write_spec(folder, folder, "http://127.0.0.1:9", "http://127.0.0.1:9", services=services, **changes)


class Toy:
    """Stages over a list of ids. `before`: called with (stage, item) ahead of each piece of work."""

    def __init__(self) -> None:
        self.made: Counter[tuple[str, str]] = Counter()
        self.faults: dict[tuple[str, str], BaseException] = {}
        self.rejected: set[str] = set()
        self.unwritten: set[str] = set()
        self.held: set[str] = set()
        self.before: Callable[[str, str], None] = lambda stage, item: None
        self._lock = threading.Lock()

    def write(self, folder: Path, *rows: str) -> None:
        """The list, as `entities.csv`."""
        (folder / "entities.csv").write_text("".join(f"{row}\n" for row in rows))

    def of(self, *stages: str) -> set[str]:
        """The items that some stages worked on since `made` was cleared."""
        return {item for stage, item in self.made if stage in stages}

    def stages(self) -> Stages:
        return Stages(
            read=self._read, describe=self._describe, held_out=lambda entity, spec: entity.id in self.held,
            tasks=self._tasks, research=self._research, recaption=lambda task, trajectory, spec, services: trajectory,
            draw=self._draw, verify=self._verify, assemble=self._assemble, split=lambda folder, spec: {},
            lay_out=self._lay_out, report=lambda folder, spec: None,
        )  # fmt: skip

    def _work(self, stage: str, item: str) -> None:
        self.before(stage, item)
        with self._lock:
            self.made[stage, item] += 1
        if (fault := self.faults.get((stage, item))) is not None:
            raise fault

    def _read(self, spec: Spec) -> tuple[Sequence[Entity], Sequence[tuple[str, Dropped]]]:
        rows = [line.partition("=") for line in spec.entities.read_text().splitlines()]
        return [Entity(name, {"en": name}, "toy", remark=said) for name, _, said in rows], ()

    def _describe(self, entity: Entity, spec: Spec, services: Services) -> Entity:
        self._work("describe", entity.id)
        return replace(entity, attributes=("round",))

    def _tasks(self, entity: Entity, spec: Spec, services: Services) -> tuple[list[Task], list[tuple[Task, Dropped]]]:
        self._work("tasks", entity.id)
        names = [f"{entity.id}-p{number}" for number in range(1, spec.prompts.per_entity + 1)]
        tasks = [Task(name, entity, f"{entity.id} waits", "en", "action", "direct") for name in names]
        why = Dropped("prompts", "no prompt could be taken", "it is nearly the same as an earlier one")
        refused = [(replace(task, prompt=""), why) for task in tasks if task.id in self.unwritten]
        return [task for task in tasks if task.id not in self.unwritten], refused

    def _research(self, task: Task, spec: Spec, services: Services) -> Any:
        self._work("research", task.id)
        return task.prompt

    def _draw(self, task: Task, trajectory: Any, number: int, spec: Spec, services: Services) -> Path:
        self._work("draw", task.id)
        place = services.folder / "pictures" / f"{task.id}_{number}.png"
        place.parent.mkdir(exist_ok=True)
        place.write_text(task.id)
        return place

    def _verify(self, task: Task, trajectory: Any, number: int, picture: Path, spec: Spec, services: Services) -> Trial:
        self._work("verify", task.id)
        good = task.id not in self.rejected
        return Trial(number, picture, good, "" if good else f"identity: unlike {number}", {"identity": 9.0 * good})

    def _assemble(
        self, task: Task, trajectory: Any, trials: Sequence[Trial], items: Path, spec: Spec, services: Services
    ) -> None:
        self._work("assemble", task.id)
        with whole_folder(items / task.id) as work:
            (work / "record").write_text(f"{task.id}: {trajectory}, {task.entity.remark}")

    def _lay_out(self, folder: Path, spec: Spec, left_out: Collection[str]) -> None:
        with whole_folder(folder / "train") as work:
            for item in items_of(folder):
                if item not in left_out:
                    (work / item).write_bytes((folder / "items" / item / "record").read_bytes())


def build(monkeypatch: Any, toy: Toy | None, spec: Path, *arguments: object) -> int:
    """`python -m data build ...` in this process; with the stages of the paper where no toy is given."""
    if toy is not None:
        monkeypatch.setattr(command, "all_stages", toy.stages)
    monkeypatch.setattr(sys, "argv", ["python -m data", "build", *map(str, arguments), "--spec", str(spec)])
    return errors.run(main)


def start(spec: Path, *arguments: object) -> subprocess.Popen[str]:
    """`python -m data build ...` in a process of its own."""
    command_line = [sys.executable, "-m", "data", "build", *map(str, arguments), "--spec", str(spec)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command_line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def files_in(folder: Path) -> dict[str, bytes]:
    """Names and contents of all files below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
