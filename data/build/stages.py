"""The stages of a build, as the pipeline calls them. Each lives in a module of its own; here they are put together.

Whatever a stage needs of others it asks through the services. All may be called from many threads at once, for
different items, and again for the same item after a kill: they then come to the same result from what was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.build.contracts import Dropped, Entity, Task, Trial
from data.build.services import Services
from data.build.spec import Spec


@dataclass(frozen=True)
class Stages:
    """The functions of a build.

    read(spec): the entities of the list, in its order, and (what the list calls it, why) for those that are refused
    by name; raises UserError for a file that cannot be used. [data/build/entities.py: read_entities]
    describe(entity, spec, services): the same with metadata, or Dropped. [entities.py: describe]
    held_out(entity, spec): whether it goes to the benchmark: its tasks end after the prompts. [benchmark.py: held_out]
    tasks(entity, spec, services): its tasks, ids unique over the build, and (task without its prompt, why) for those
    of which none could be taken; Dropped when that is all of them. [prompts.py: make_tasks]
    research(task, spec, services): the trajectory up to its references. [trajectories.py: research]
    recaption(task, trajectory, spec, services): the trajectory with its grounded recaption. [recaption.py: recaption]
    draw(task, trajectory, number, spec, services): the picture of trial `number` (from 1). [pictures.py: draw]
    verify(task, trajectory, number, picture, spec, services): what the verifier says. [verification.py: verify]
    assemble(task, trajectory, trials, items, spec, services): writes the accepted task, the last trial's picture in
    it, as a folder below `items`, atomically; the same call again leaves the same bytes. [assembly.py: assemble]

    What follows is made when all is settled, each folder replaced as a whole, from folder/items and the outcomes in
    folder/journal.jsonl (data/build/journal.py); after a merge the same from those of all shards.

    split(folder, spec): folder/benchmark with its mini split; returns the ids of the tasks that must not be trained
    on beside it, with why (look-alikes, shared names). [benchmark.py: split]
    lay_out(folder, spec, left_out): folder/train, the training layout; pictures are hard links where that is possible.
    [assembly.py: lay_out]
    report(folder, spec): folder/quality: contact sheet, statistics, near-duplicates. [quality.py: report]
    """

    read: Callable[[Spec], tuple[Sequence[Entity], Sequence[tuple[str, Dropped]]]]
    describe: Callable[[Entity, Spec, Services], Entity]
    held_out: Callable[[Entity, Spec], bool]
    tasks: Callable[[Entity, Spec, Services], tuple[Sequence[Task], Sequence[tuple[Task, Dropped]]]]
    research: Callable[[Task, Spec, Services], Any]
    recaption: Callable[[Task, Any, Spec, Services], Any]
    draw: Callable[[Task, Any, int, Spec, Services], Path]
    verify: Callable[[Task, Any, int, Path, Spec, Services], Trial]
    assemble: Callable[[Task, Any, Sequence[Trial], Path, Spec, Services], None]
    split: Callable[[Path, Spec], Mapping[str, str]]
    lay_out: Callable[[Path, Spec, Collection[str]], None]
    report: Callable[[Path, Spec], None]


def all_stages() -> Stages:
    """The stages of the paper."""
    from data.build import assembly, benchmark, entities, pictures, prompts, quality, trajectories, verification
    from data.build import recaption as recaptions

    return Stages(
        read=entities.read_entities, describe=entities.describe, held_out=benchmark.held_out, tasks=prompts.make_tasks,
        research=trajectories.research, recaption=recaptions.recaption, draw=pictures.draw,
        verify=verification.verify, assemble=assembly.assemble, split=benchmark.split, lay_out=assembly.lay_out,
        report=quality.report,
    )  # fmt: skip
