"""Shards of a build, and how they become one.

    out/shards/2-of-8/...    a run folder of its own: journal, answers, pictures, items
    out/...                  after the merge: what a single run would have left, and merged.json

Which shard an entity belongs to follows from its id alone. Files are hard links where the file system has them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from data.build.contracts import Entity
from data.build.items import ITEMS
from data.build.journal import JOURNAL, SETTLED, read_journal
from data.build.linking import link_tree
from data.build.spec import Spec
from data.build.status import STATUS, read_status
from unify_agent.errors import UserError
from unify_agent.files import digest, whole_folder, write_bytes, write_json

SHARDS, MERGED, TRIALS = "shards", "merged.json", "pictures"
_NAME = re.compile(r"(\d+)-of-(\d+)")


def folder_of(out: Path, shard: tuple[int, int] | None) -> Path:
    """The run folder of a shard (I, N), or of a run that is none."""
    return out if shard is None else out / SHARDS / f"{shard[0]}-of-{shard[1]}"


def part_of(entities: Sequence[Entity], shard: tuple[int, int] | None) -> Sequence[Entity]:
    """The entities of a shard; all tasks of one are made together."""
    if shard is None:
        return entities
    number, of = shard
    return [entity for entity in entities if int(digest(entity.id)[:12], 16) % of == number - 1]


def check_free(out: Path, shard: tuple[int, int] | None) -> None:
    """Raises UserError where one `out` would hold both shards and a run that is none, or shards of two numbers."""
    if shard is None:
        if any(_shards(out)):
            raise UserError(f"{out}: holds the shards of a build; give --shard I/N or `merge`, or choose another out")
        return
    if (out / STATUS).is_file():
        raise UserError(f"{out}: holds a build that is not split; leave --shard out, or choose another out")
    for _, of, folder in _shards(out):
        if of != shard[1]:
            raise UserError(f"{folder}: a shard of {of}, not of {shard[1]}; choose another out")


def merge(spec: Spec, partial: bool = False) -> None:
    """Puts all shards together in `spec.out`. `partial`: as far as they are.

    Raises UserError: a shard that is missing, not finished or made from another spec, an item in two of them.
    """
    found = _whole(spec, partial)
    owner: dict[tuple[str, str], Path] = {}
    lines: list[bytes] = []
    for folder in found:
        for outcome in read_journal(folder / JOURNAL):
            other = owner.setdefault((outcome.kind, outcome.id), folder)
            if other != folder:
                raise UserError(f"{folder}: {outcome.kind} {outcome.id} is in {other.name}, too; were ids changed?")
            lines.append(outcome.line())
    for name in (ITEMS, TRIALS):
        with whole_folder(spec.out / name) as work:
            for folder in found:
                if (folder / name).is_dir():
                    link_tree(folder / name, work)
    write_bytes(spec.out / JOURNAL, b"".join(lines))
    write_json(spec.out / MERGED, {"spec": spec.digest, "shards": len(found)})


def done_in(folder: Path, listed: Collection[str]) -> set[str]:
    """The tasks that are done of the entities in `listed`, but for those of an earlier spec or list."""
    entities = {each.id: each for each in read_journal(folder / JOURNAL) if each.kind == "entity"}
    found = set()
    for task in read_journal(folder / JOURNAL):
        owner = entities.get(task.entity) if task.kind == "task" and task.entity in listed else None
        if owner is not None and task.state == "done" and task.made == owner.made:
            found.add(task.id)
    return found


def _whole(spec: Spec, partial: bool) -> list[Path]:
    """The folders of all shards, in order, each finished unless `partial`."""
    there = sorted(_shards(spec.out))
    if not there:
        raise UserError(f"{spec.out / SHARDS}: no shards to merge; run build with --shard I/N")
    of = there[0][1]
    if mixed := next((folder for _, other, folder in there if other != of), None):
        raise UserError(f"{mixed}: not a shard of {of}; remove the folders of the other split")
    missing = sorted(set(range(1, of + 1)) - {number for number, _, _ in there})
    if missing and not partial:
        raise UserError(f"{spec.out / SHARDS}: shard {missing[0]}/{of} is missing{_more(missing)}; run it first")
    for number, _, folder in there:
        status = read_status(folder)
        if status.get("spec") != spec.digest:
            raise UserError(f"{folder}: made from another spec than {spec.file}; run it again with this one")
        if status.get("state") == "running":
            raise UserError(f"{folder}: shard {number}/{of} is still running; wait for it")
        if status.get("state") != "done" and not partial:
            open_ones = sum(each.state not in SETTLED for each in read_journal(folder / JOURNAL))
            raise UserError(
                f"{folder}: shard {number}/{of} is not done ({status.get('state')}, {open_ones} items failed or wait); "
                "run it again, or merge what is there with --partial"
            )
    return [folder for _, _, folder in there]


def _more(missing: Sequence[int]) -> str:
    return f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""


def _shards(out: Path) -> Iterator[tuple[int, int, Path]]:
    folder = out / SHARDS
    for each in folder.iterdir() if folder.is_dir() else ():
        if (name := _NAME.fullmatch(each.name)) is not None and (each / STATUS).is_file():
            yield int(name[1]), int(name[2]), each
