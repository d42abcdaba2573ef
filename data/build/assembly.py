"""Stage 6: what was accepted, in the layout that training reads, with where everything in it came from.

    items/ID/CATEGORY/{traj,intermediate,images}/...    one accepted task: the training layout of one sample
    train/CATEGORY/{traj,intermediate,images}/...       all of them (hard links to the same files)
    train/licences.jsonl                                a line for every picture: licence, source, address, author
    train/build.json                                    which spec made it, and how many samples there are

A record's `options` say who did what: the models, the prompts by the spec's hash, every trial with its scores. Both
folders appear whole: an item when it is assembled, `train` when all is settled. The same input gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data.build import recaption
from data.build.contracts import Task, Trial
from data.build.linking import link_tree
from data.build.services import Services
from data.build.spec import Spec
from data.build.trajectories import provenance, with_pictures
from data.build.verification import truth_of
from unify_agent import __version__
from unify_agent.agent.episode import Episode
from unify_agent.agent.record import Recorder
from unify_agent.datasets.trajectory import Trajectory, parse_trajectories
from unify_agent.files import whole_folder, write_json, write_text
from unify_agent.interleave.transforms import open_picture

LICENCES = "licences.jsonl"
UNKNOWN = "unknown"


def assemble(
    task: Task, trajectory: Episode, trials: Sequence[Trial], items: Path, spec: Spec, services: Services
) -> None:
    """Writes an accepted task as a folder below `items`; the last of its `trials` is the accepted one."""
    accepted = trials[-1]
    episode = recaption.of_trial(task, trajectory, accepted.number, spec, services)
    episode = replace(
        with_pictures(episode),
        picture=np.asarray(open_picture(accepted.picture)),
        settings=settings_of(task, trajectory, trials, spec, services),
    )
    with whole_folder(items / task.id) as work:
        Recorder(work, "teacher", candidates=False, durable=False).write(episode)


def settings_of(
    task: Task, trajectory: Episode, trials: Sequence[Trial], spec: Spec, services: Services
) -> dict[str, Any]:
    """What the record of a task says about how it was made."""
    verifier = spec.chat("verifier")
    return {
        "version": __version__,
        "spec": spec.digest,
        "entity": task.entity.id,
        **{name: value for name, value in (
            ("given_id", task.entity.given_id), ("form", task.form), ("difficulty", task.difficulty)) if value},
        **provenance(spec),
        "painter": services.image.described(),
        "verifier": {"model": verifier.model, "threshold": spec.verification.threshold,
                     "against": truth_of(task, trajectory)[1]},
        "trials": [
            {"number": each.number, "accepted": each.accepted, "reason": each.reason, "scores": dict(each.scores)}
            for each in trials
        ],
    }  # fmt: skip


def lay_out(folder: Path, spec: Spec, left_out: Collection[str]) -> None:
    """Makes `folder/train` of all items but those `left_out` (ids of tasks), replacing what was there."""
    ids = [each for each in items_of(folder) if each not in left_out]
    rows: list[dict[str, str]] = []
    with whole_folder(folder / "train") as work:
        for item in ids:
            place = folder / "items" / item
            link_tree(place, work)
            for category, record in records_in(place):
                rows += licences_of(category, record)
        write_text(work / LICENCES, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        write_json(work / "build.json", {"spec": spec.digest, "version": __version__, "samples": len(ids)})


def items_of(folder: Path) -> list[str]:
    """The ids of all assembled tasks, sorted."""
    items = folder / "items"
    found = items.iterdir() if items.is_dir() else iter(())
    return sorted(each.name for each in found if each.is_dir() and not each.name.startswith("."))


def records_in(item: Path) -> Iterator[tuple[str, Trajectory]]:
    """The category and the record of an item."""
    for path in sorted(item.glob("*/traj/*_trajectory.json")):
        for record in parse_trajectories(path.read_text(encoding="utf-8"), path):
            yield path.parents[1].name, record


def licences_of(category: str, record: Trajectory) -> Iterator[dict[str, str]]:
    """A row for each picture of a record. `role`: `reference`, or `drawn`; what is not known is said to be so."""
    for each in record.references:
        more = each.model_extra or {}
        yield {
            "file": f"{category}/{each.file}", "role": "reference", "item": record.ip_index, "title": each.title,
            "licence": each.licence or UNKNOWN, "source": each.source or UNKNOWN, "url": more.get("url", ""),
            "author": more.get("author", ""),
        }  # fmt: skip
    yield {
        "file": f"{category}/{record.generated_image}", "role": "drawn", "item": record.ip_index,
        "title": record.ip_name, "licence": UNKNOWN, "source": f"drawn by {record.options['painter']['model']}",
        "url": "", "author": "",
    }  # fmt: skip
