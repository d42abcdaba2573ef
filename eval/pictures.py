"""Which picture belongs to which item, and what is wrong with the rest. All of it is known before a judge is asked."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from PIL import Image

from eval.benchmarks.base import SUFFIXES, Benchmark, Dataset, Item
from unify_agent.errors import UserError
from unify_agent.files import digest, read_json
from unify_agent.interleave.segments import Unusable
from unify_agent.interleave.transforms import open_picture

ASIDE = frozenset({"intermediate", "tmp", "gt"})
"""Folders of an agent's record that hold other pictures than its results."""
NAMED = 50
"""So many unknown pictures are compared with the names that are expected."""
STAMP = "dataset.json"
"""What `generate` leaves beside its pictures: which data set they were made for."""


@dataclass(frozen=True)
class Found:
    """The picture of an item: its path and SHA-256, or what is wrong (`problem`, one word, and `detail`)."""

    id: str
    path: Path | None = None
    sha256: str = ""
    trajectory: Path | None = None
    problem: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Survey:
    """A folder of pictures seen with a data set's eyes. `strangers`: pictures that belong to no item, with the item
    that each may have been meant for, "" where none is near. `twins`: ids that have the same picture.
    """

    found: tuple[Found, ...]
    strangers: tuple[tuple[Path, str], ...]
    twins: tuple[tuple[str, ...], ...]
    references: tuple[tuple[str, str], ...]

    @property
    def problems(self) -> list[tuple[str, str, str]]:
        """(kind, id, detail) of everything that keeps an item from being scored, in the order of the items."""
        wrong = [(each.problem, each.id, each.detail) for each in self.found if each.problem]
        return wrong + [("reference", item_id, detail) for item_id, detail in self.references]


def survey(benchmark: Benchmark, dataset: Dataset, images: Path, items: Sequence[Item] | None = None) -> Survey:
    """Finds and decodes the pictures of `items` (default: of all) among those of the data set.

    Raises UserError when the folder is missing or belongs to other data.
    """
    items = dataset.items if items is None else items
    if not images.is_dir():
        raise UserError(f"{images}: no such folder of pictures")
    check_stamp(images, dataset)
    there = _pictures_below(images)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda item: _find(benchmark, item, images, there), items))
        paths = {path for item in items for path in item.references}
        broken = {path: why for path, why in zip(paths, pool.map(_broken, paths), strict=True) if why}
    used = {path for item in dataset.items for place in benchmark.places(item) for path in there.get(place, ())}
    expected = {place: item.id for item in dataset.items for place in benchmark.places(item)}
    unknown = [(path, stem) for stem, some in sorted(there.items()) for path in some if path not in used]
    strangers = tuple(
        (path, _meant(stem, expected) if number < NAMED else "") for number, (path, stem) in enumerate(unknown)
    )
    same: dict[str, list[str]] = defaultdict(list)
    for each in found:
        if each.sha256:
            same[each.sha256].append(each.id)
    references = tuple(
        (item.id, f"{path}: {broken[path]}") for item in items for path in item.references if path in broken
    )
    return Survey(tuple(found), strangers, tuple(tuple(ids) for ids in same.values() if len(ids) > 1), references)


def stamp_of(benchmark: Benchmark, dataset: Dataset) -> dict[str, str]:
    """What a folder of generated pictures says of the data set that they were made for."""
    return {"benchmark": benchmark.name, "variant": dataset.variant, "sha256": dataset.sha256}


def check_stamp(images: Path, dataset: Dataset) -> None:
    """Raises UserError when the folder says that its pictures were made for another data set."""
    if not (images / STAMP).is_file():
        return
    stamp = read_json(images / STAMP, "stamp of a folder of pictures")
    if not isinstance(stamp, dict) or stamp.get("sha256") != dataset.sha256:
        variant = stamp.get("variant") if isinstance(stamp, dict) else None
        raise UserError(f"{images / STAMP}: these pictures were made for other data ({variant}), where the ids mean "
                        "other prompts")  # fmt: skip


def _pictures_below(images: Path) -> dict[str, list[Path]]:
    """Path without extension, relative and with `/` -> picture files."""
    there: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(images.rglob("*")):
        inner = path.relative_to(images)
        aside = any(part in ASIDE or part.startswith(".") for part in inner.parts)
        if path.suffix.lower() in SUFFIXES and not aside and path.is_file():
            there[inner.with_suffix("").as_posix()].append(path)
    return dict(there)


def _find(benchmark: Benchmark, item: Item, images: Path, there: dict[str, list[Path]]) -> Found:
    paths = [path for place in benchmark.places(item) for path in there.get(place, ())]
    if not paths:
        return Found(item.id, problem="missing", detail=f"no picture {benchmark.places(item)[0]}.png")
    if len(paths) > 1:
        both = " and ".join(path.relative_to(images).as_posix() for path in paths)
        return Found(item.id, problem="duplicate", detail=f"{both}: one item, one picture")
    path = paths[0]
    name = path.relative_to(images).as_posix()
    if path.stat().st_size == 0:
        return Found(item.id, problem="empty", detail=f"{name}: zero bytes")
    if why := _broken(path):
        return Found(item.id, problem="corrupt", detail=f"{name}: {why}")
    trajectory = next((images / name for name in benchmark.trajectories(item) if (images / name).is_file()), None)
    said = prompt_of(path, trajectory)
    if said is not None and item.prompt and said.strip() != item.prompt.strip():
        return Found(item.id, problem="other_prompt", detail=f"{name}: made for another prompt: {said[:60]!r}")
    return Found(item.id, path, digest(path), trajectory)


def _broken(path: Path) -> str:
    """Why a picture does not decode, "" when it does."""
    try:
        open_picture(path)
    except Unusable as error:
        return str(error.reason)
    return ""


def prompt_of(path: Path, trajectory: Path | None) -> str | None:
    """The prompt that a picture was made for, where its record or the file itself says so.

    A text chunk holds a text as it is or as JSON (unify_agent/agent/record.py); other programs keep whole workflows
    under that name, which say nothing.
    """
    if trajectory is not None and trajectory.suffix == ".json":
        record = read_trajectory(trajectory)
        if isinstance(record, dict) and isinstance(record.get("image_prompt"), str):
            return record["image_prompt"]
    if path.suffix.lower() == ".png":
        with Image.open(path) as picture:
            text = getattr(picture, "text", {}).get("prompt")
        try:
            value = json.loads(text or "null")
        except (ValueError, RecursionError):
            return str(text)
        return value if isinstance(value, str) else None
    return None


def read_trajectory(path: Path) -> Any:
    """The record of how a picture was made: JSON, or the text of a thought. None when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix == ".json" else text
    except (OSError, ValueError):
        return None


def _meant(stem: str, expected: dict[str, str]) -> str:
    """The id that a picture's name is near to: by its number, else by its letters."""
    name = stem.rsplit("/", 1)[-1]
    number = name.lstrip("0")
    for place, item_id in expected.items():
        if number and place.rsplit("/", 1)[-1] == number:
            return item_id
    close = get_close_matches(stem, list(expected), n=1, cutoff=0.8)
    return expected[close[0]] if close else ""


def lines(survey: Survey, limit: int = 20) -> list[str]:
    """What is wrong as lines for a person: kinds with their counts, then ids with details, `limit` of each kind."""
    kinds: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for kind, item_id, detail in survey.problems:
        kinds[kind].append((item_id, detail))
    for path, meant in survey.strangers:
        kinds["unknown"].append((meant and f"{meant}?", f"{path}: belongs to no item of the data set"))
    told: list[str] = []
    for kind, some in kinds.items():
        told.append(f"{kind}: {len(some)}")
        told += [f"  {item_id}: {detail}" if item_id else f"  {detail}" for item_id, detail in some[:limit]]
        if len(some) > limit:
            told.append(f"  and {len(some) - limit} more: {_ids(some[limit:])}")
    told += [f"same picture: {', '.join(ids)}" for ids in survey.twins[:limit]]
    return told


def _ids(some: Sequence[tuple[str, str]]) -> str:
    return ", ".join(item_id for item_id, _ in some if item_id)
