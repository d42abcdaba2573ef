"""Trajectories of training entities: the scripted teacher drives the real loop over the real index.

Candidates are judged from pixels and titles, as in every run of the model; labels only say which trajectories to leave
out, those with a reference that shows something else. What is drawn is composed exactly. The folder takes its name
when all of it is written.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from data.openmoji.entities import LANGUAGES, Entity, common_entities, keyed_random, load_entities
from data.openmoji.pictures import Drawings, drawings_path
from data.openmoji.scenes import Composer, Scene
from data.openmoji.teacher import Kind, Task, Teacher
from data.openmoji.words import request
from unify_agent.agent.episode import AgentOptions, Episode
from unify_agent.agent.loop import Loop
from unify_agent.agent.pixeljudge import PixelJudge
from unify_agent.agent.record import Recorder
from unify_agent.agent.scripted import ScriptedPolicy
from unify_agent.agent.wording import load_prompts
from unify_agent.errors import UserError
from unify_agent.files import whole_folder, write_json
from unify_agent.search.index import Index

DIRECT, CLOSED_BOOK = 0.18, 0.05
"""Shares of trajectories that draw a common thing at once, and that have nothing to search with."""
COMPANION = 0.3
BATCH = 100


def tasks(entities: Sequence[Entity], count: int, seed: int = 0) -> dict[str, Task]:
    """`count` tasks by id. Things that have to be looked up come round in turn; languages and scenes at random.

    `entities`: of one split. The same arguments give the same tasks; a larger `count` begins with those of a smaller.
    """
    common = sorted(common_entities(entities), key=lambda e: e.id)
    rare = sorted((e for e in entities if not e.common), key=lambda e: e.id)
    if not rare:
        raise UserError("there is no entity to look up in this split of the world")
    turn, result = iter(_rounds(rare, seed)), {}
    for number in range(count):
        rng = keyed_random("task", str(seed), str(number))
        draw = rng.random()
        kind: Kind = "direct" if common and draw < DIRECT else "search"
        if draw >= 1 - CLOSED_BOOK:
            kind = "closed_book"
        entity = common[int(rng.integers(len(common)))] if kind == "direct" else next(turn)
        scene = Scene.sample(rng, companion=COMPANION, avoid=entity.id)
        language = LANGUAGES[int(rng.integers(len(LANGUAGES)))]
        result[f"{seed:02d}-{number:05d}"] = Task(entity, scene, language, kind)
    return result


def _rounds(entities: Sequence[Entity], seed: int):
    number = 0
    while True:
        for at in keyed_random("round", str(seed), str(number)).permutation(len(entities)):
            yield entities[int(at)]
        number += 1


def episode_of(item_id: str, task: Task) -> Episode:
    """The request of a task, ready for the loop."""
    rng = keyed_random("request", item_id)
    return Episode(
        id=item_id,
        request=request(task.scene, task.asked, task.language, rng),
        language=task.language,
        name=task.entity.name[task.language],
        category=task.entity.category,
        country="中国" if task.language == "zh" else "",
        options=AgentOptions(tools=task.kind != "closed_book"),
    )


def _share(work: tuple[Path, Path, dict[str, Task], int]) -> Counter[str]:
    """Writes one share of the trajectories (runs in a worker process)."""
    world, out, share, seed = work
    index = Index.open(world / "search")
    composer = Composer(Drawings.load(drawings_path(world)))

    def paint(episode: Episode):
        return composer(share[episode.id].scene, share[episode.id].entity.id)

    policy = ScriptedPolicy(Teacher(share, seed).say, paint, "teacher")
    loop = Loop(policy, index, PixelJudge(), load_prompts("compact"), threads=1)
    recorder = Recorder(out, policy.name, candidates=False, durable=False)
    counts: Counter[str] = Counter()
    ids = list(share)
    for start in range(0, len(ids), BATCH):
        episodes = [episode_of(item_id, share[item_id]) for item_id in ids[start : start + BATCH]]
        loop.run(episodes)
        for episode in episodes:
            task = share[episode.id]
            shown = {index.labels(each.hit.id)["entity"] for each in episode.references}
            if shown - {task.entity.id}:
                counts["left_out_wrong_reference"] += 1
                continue
            if episode.status != "ok":
                raise RuntimeError(f"the teacher failed: {episode.id}: {episode.stop} {episode.error}")
            recorder.write(episode)
            counts["trajectories"] += 1
            counts["closed_book" if task.kind == "closed_book" else episode.stop] += 1
            counts[episode.language] += 1
            counts["searched_again"] += episode.image_searches > 1
            counts["one_reference"] += len(episode.references) == 1
    return counts


def write_trajectories(
    world: Path | str,
    count: int,
    out: Path | str | None = None,
    *,
    seed: int = 0,
    split: str = "train",
    workers: int = 2,
) -> dict[str, int]:
    """Writes about `count` trajectories below `out` (default: `trajectories/` of the world) and returns their counts.

    The layout is the release's (category/{traj,intermediate,images}); `summary.json` holds the counts.
    """
    world = Path(world)
    chosen = tasks(load_entities(world, split), count, seed)
    ids = list(chosen)
    with whole_folder(Path(out) if out is not None else world / "trajectories") as work:
        shares = [(world, work, {i: chosen[i] for i in ids[k::workers]}, seed) for k in range(workers)]
        if workers > 1:
            with ProcessPoolExecutor(workers) as pool:
                counts = sum(pool.map(_share, shares), Counter())
        else:
            counts = _share(shares[0])
        for folder in work.iterdir():
            for part in ("traj", "intermediate", "images"):
                os.makedirs(folder / part, exist_ok=True)
        counts["categories"] = sum(1 for each in work.iterdir() if each.is_dir())
        result = {key: int(value) for key, value in sorted(counts.items())}
        write_json(work / "summary.json", result)
    return result
