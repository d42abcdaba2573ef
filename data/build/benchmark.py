"""What is held out from training, and the benchmark that is made of it, in FactIP's schema.

Entities with a name in common, in any two languages, or with seeds that look alike are one group; a group is held out
as a whole. Which ones is a function of the seed and the list: of every `1 / share` entities of a category that have
two different seeds, in the order of the list, chance takes one. So each category gives its share, and a list that
grows at its end changes nothing for the groups that it leaves as they were.

    <run>/benchmark/test.json                    {id: {index, ip_name, image_prompt, source_category, ...}}
                    test_mini.json               a part of it, stratified in the same way
                    gt/<category>/<id>/seed1.png, seed2.png
"""

from __future__ import annotations

import math
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

from data.build.contracts import Entity, Part, Task
from data.build.items import ITEMS
from data.build.journal import JOURNAL, Outcome, read_journal
from data.build.listing import LOOKS, read_list
from data.build.lookalike import Looks, find_alike, same_picture
from data.build.names import normalised
from data.build.spec import Spec
from data.grouping import Groups
from unify_agent.datasets.trajectory import parse_trajectories
from unify_agent.files import whole_folder, write_json
from unify_agent.interleave.randomness import generator
from unify_agent.interleave.transforms import open_picture

HELD = "its entity is held out"
SEEN = "a picture of it looks like one held out"
"""Why a task that is done is not trained on."""
_KEPT_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def choose(entities: Sequence[Entity], looks: Mapping[Path, bytes], share: float, seed: int) -> dict[str, Part]:
    """The part of each entity by id. `looks`: of the seeds, packed (data/build/lookalike.py).

    Of a group that is held out the first entity that could be chosen is in the benchmark, the others are withheld.
    """
    groups = _groups(entities, looks)
    members: dict[int, list[int]] = defaultdict(list)
    for number in range(len(entities)):
        members[groups.find(number)].append(number)
    parts: dict[str, Part] = {entity.id: "train" for entity in entities}
    seen: dict[str, int] = defaultdict(int)
    decided: set[int] = set()
    for number, entity in enumerate(entities):
        if two_seeds(entity, looks) is None:
            continue
        place = seen[entity.category]
        seen[entity.category] += 1
        group = groups.find(number)
        if group in decided:
            continue
        decided.add(group)
        if _taken(place, share, seed, "benchmark", entity.category):
            parts |= {entities[each].id: "withheld" for each in members[group]}
            parts[entity.id] = "benchmark"
    return parts


def placed(entities: Sequence[Entity], parts: Mapping[str, Part]) -> tuple[Entity, ...]:
    """The entities with their parts, and their places in them."""
    seen: dict[tuple[str, str], int] = defaultdict(int)
    found = []
    for entity in entities:
        part = parts[entity.id]
        found.append(replace(entity, part=part, place=seen[entity.category, part]))
        seen[entity.category, part] += 1
    return tuple(found)


def held_out(entity: Entity, spec: Spec) -> bool:
    """Whether an entity goes to the benchmark: nothing but its prompt is made of it."""
    return entity.part == "benchmark"


def two_seeds(entity: Entity, looks: Mapping[Path, bytes]) -> tuple[Path, Path] | None:
    """The first two seeds that are two different pictures, None where there are none."""
    for one, two in combinations(entity.seeds, 2):
        if not same_picture(looks[one], looks[two]):
            return one, two
    return None


def _taken(place: int, share: float, seed: int, what: str, category: str) -> bool:
    """Whether chance takes the `place`-th of its category: one of every `1 / share`."""
    part = Fraction(share).limit_denominator(1_000_000)
    if not part:
        return False
    block = math.floor(place * part)
    start, stop = math.ceil(block / part), math.ceil((block + 1) / part)
    return place == start + int(generator(seed, 0, what, category, block).integers(stop - start))


def _groups(entities: Sequence[Entity], looks: Mapping[Path, bytes]) -> Groups:
    groups = Groups(range(len(entities)))
    first: dict[str, int] = {}
    for number, entity in enumerate(entities):
        for name in entity.names.values():
            groups.join(number, first.setdefault(normalised(name), number))
    owners = [(number, seed) for number, entity in enumerate(entities) for seed in entity.seeds]
    for group in find_alike([looks[seed] for _, seed in owners]).groups:
        for each in group[1:]:
            groups.join(owners[group[0]][0], owners[each][0])
    return groups


# ---------------------------------------------------------------- what is written


def split(folder: Path, spec: Spec) -> Mapping[str, str]:
    """Writes folder/benchmark anew from the journal; returns the ids of tasks that must not be trained on beside it,
    with why.

    Those are tasks that were finished while the list was another one: of entities that are now held out, and of
    entities that the list no longer has but whose names or seeds it holds out; and tasks with a reference that looks
    like a seed of what is held out.
    """
    looks = Looks(spec.out / LOOKS)
    listed = read_list(spec.entities, looks)
    parts = choose(listed.entities, listed.looks, spec.benchmark.share, spec.seed)
    entities = {entity.id: entity for entity in listed.entities}
    kept = {normalised(name) for e in listed.entities if parts[e.id] != "train" for name in e.names.values()}
    names: dict[str, Iterable[str]] = {}
    seeds: dict[str, list[Path]] = {}
    prompts: dict[str, Outcome] = {}
    left_out: dict[str, str] = {}
    shown: dict[str, list[Path]] = {}
    for outcome in read_journal(folder / JOURNAL):
        if outcome.kind == "entity":
            names[outcome.id] = outcome.about.get("names", {}).values()
            seeds[outcome.id] = [Path(seed) for seed in outcome.about.get("seeds", ())]
        elif outcome.state == "held_out":
            prompts.setdefault(outcome.entity, outcome)
        elif outcome.state == "done":
            gone = outcome.entity not in parts and kept & set(map(normalised, names.get(outcome.entity, ())))
            if gone or parts.get(outcome.entity, "train") != "train":
                left_out[outcome.id] = HELD
            else:
                gone_seeds = [] if outcome.entity in parts else seeds.get(outcome.entity, [])
                shown[outcome.id] = [*gone_seeds, *_references(folder / ITEMS / outcome.id)]
    held = [listed.looks[seed] for entity in listed.entities if parts[entity.id] != "train" for seed in entity.seeds]
    left_out |= dict.fromkeys(_showing(held, shown, looks), SEEN)
    tasks = [
        Task(prompt.id, entities[name], prompt.about["prompt"], prompt.about["language"])
        for name, part in parts.items()
        if part == "benchmark" and (prompt := prompts.get(name))
    ]
    write_benchmark(folder / "benchmark", tasks, listed.looks, spec.benchmark.mini, spec.seed)
    return left_out


def _references(item: Path) -> Iterator[Path]:
    """The files of a finished task's references; none where it has no folder."""
    for path in sorted(item.glob("*/traj/*_trajectory.json")):
        for record in parse_trajectories(path.read_text(encoding="utf-8"), path):
            yield from (path.parents[1] / each.file for each in record.references)


def _showing(held: Sequence[bytes], shown: Mapping[str, Sequence[Path]], looks: Looks) -> list[str]:
    """The ids under which a picture is shown that looks like one of `held`. Pictures that are gone show nothing."""
    if not held:
        return []
    found = looks.of(path for paths in shown.values() for path in paths)
    owners = [(name, look) for name, paths in shown.items() for path in paths if isinstance(look := found[path], bytes)]
    alike = find_alike([*held, *(look for _, look in owners)])
    numbers = {each for group in alike.groups if group[0] < len(held) for each in group}
    return sorted({owners[number - len(held)][0] for number in numbers if number >= len(held)})


def write_benchmark(out: Path, tasks: Sequence[Task], looks: Mapping[Path, bytes], mini: float, seed: int) -> None:
    """A benchmark of one task an entity. `mini`: the share of each category in the mini split."""
    if not tasks:
        shutil.rmtree(out, ignore_errors=True)
        return
    entries: dict[str, dict[str, Any]] = {}
    small: dict[str, dict[str, Any]] = {}
    seen: dict[str, int] = defaultdict(int)
    with whole_folder(out) as work:
        for task in tasks:
            entity = task.entity
            seeds = two_seeds(entity, looks)
            assert seeds is not None, "chosen for its two seeds"
            places = [_put(seed, work, f"gt/{entity.category}/{entity.id}/seed{k}") for k, seed in enumerate(seeds, 1)]
            entries[entity.id] = {
                "index": entity.id, "country": entity.country, "ip_name": entity.name(task.language),
                "image_prompt": task.prompt, "source_category": entity.category, "seed1_url": places[0],
                "seed2_url": places[1], "language": task.language,
            }  # fmt: skip
            if _taken(seen[entity.category], mini, seed, "mini", entity.category):
                small[entity.id] = entries[entity.id]
            seen[entity.category] += 1
        write_json(work / "test.json", entries)
        write_json(work / "test_mini.json", small)


def _put(seed: Path, work: Path, name: str) -> str:
    """A copy of a seed, as it is or as PNG where scorers know no such file; returns its path below `work`."""
    suffix = seed.suffix.lower() if seed.suffix.lower() in _KEPT_SUFFIXES else ""
    place = work / f"{name}{suffix or '.png'}"
    place.parent.mkdir(parents=True, exist_ok=True)
    if suffix:
        shutil.copyfile(seed, place)
    else:
        open_picture(seed).save(place, "PNG")
    return place.relative_to(work).as_posix()
