"""Nothing that is trained may have met a held-out entity: not by its picture, not by its name, not by its twin.

`check` looks at what was really written, not at what the code meant to write.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from data.openmoji import copying
from data.openmoji.entities import LANGUAGES, NEAR, Entity, contains_name, load_entities, picture_distances
from data.openmoji.pictures import Drawings, drawings_path, picture_hash
from data.openmoji.tokenizer import training_texts
from unify_agent.errors import UserError


def check(world: Path | str, samples: int = 200) -> dict[str, int]:
    """Look for held-out entities in all that is trained on; return how much was looked at.

    Raises `UserError` that names the first leak. `samples`: copying samples and batches of pictures drawn.
    """
    world = Path(world)
    entities = load_entities(world)
    held_out = [e for e in entities if e.split != "train"]
    drawings = Drawings.load(drawings_path(world))
    counts = {"held_out": len(held_out), "train": len(entities) - len(held_out)}
    _families(entities)
    _drawings(entities, drawings)
    counts["tokenizer_texts"] = _texts("the tokenizer's texts", training_texts(entities), held_out)
    counts["copying_texts"] = _texts("copying samples", _copying(entities, held_out, samples), held_out)
    counts["trained_drawings"] = _sources(world, held_out)
    folder = world / "trajectories"
    if folder.is_dir():
        counts["trajectories"] = _trajectories(folder, world, held_out)
    return counts


def leaked_name(text: str, held_out: Iterable[Entity]) -> str | None:
    """The first name or alias of a held-out entity that a text contains, or None."""
    low = text.lower()
    for entity in held_out:
        for language in LANGUAGES:
            for name in (entity.name[language], entity.alias[language]):
                if name.lower() in low and contains_name(text, name, language):
                    return name
    return None


def drop_leaking(folder: Path, world: Path) -> int:
    """Remove the trajectories that met a held-out name among their search results; return how many.

    The index holds every entity, so a page about a held-out one comes up beside the right one now and then.
    """
    held_out = [e for e in load_entities(world) if e.split != "train"]
    dropped = 0
    for path in sorted(folder.glob("*/traj/*_trajectory.json")):
        if leaked_name(_record_text(path), held_out) is not None:
            item = path.name.removesuffix("_trajectory.json")
            category = path.parents[1]
            path.unlink()
            shutil.rmtree(category / "intermediate" / item, ignore_errors=True)
            for picture in (category / "images").glob(f"{item}_*"):
                picture.unlink()
            dropped += 1
    return dropped


def _record_text(path: Path) -> str:
    """All that a record says, line breaks inside its strings made real, so that words end where they end."""
    text = json.dumps(json.loads(path.read_text(encoding="utf-8")), ensure_ascii=False)
    return text.replace("\\n", "\n")


def _families(entities: Sequence[Entity]) -> None:
    split_of: dict[str, str] = {}
    for entity in entities:
        if split_of.setdefault(entity.family, entity.split) != entity.split:
            raise UserError(f"leak: family {entity.family} lies in {split_of[entity.family]} and {entity.split}")


def _drawings(entities: Sequence[Entity], drawings: Drawings) -> None:
    hashes: dict[str, Entity] = {}
    for entity in entities:
        twin = hashes.setdefault(picture_hash(drawings[entity.id]), entity)
        if twin is not entity:
            raise UserError(f"leak: {entity.id} and {twin.id} are the same picture")
    splits = np.array([e.split for e in entities])
    distances = picture_distances(drawings, [e.id for e in entities])
    distances[splits[:, None] == splits[None]] = np.inf
    if len(entities) and distances.min() < NEAR:
        row, column = map(int, np.unravel_index(distances.argmin(), distances.shape))
        raise UserError(f"leak: {entities[row].id} and {entities[column].id} look nearly the same, in two splits")


def _texts(what: str, texts: Sequence[str], held_out: Sequence[Entity]) -> int:
    name = leaked_name("\n".join(texts), held_out)
    if name is not None:
        where = next(text for text in texts if name.lower() in text.lower())
        raise UserError(f"leak: {what} hold the held-out name {name!r}: {where[:120]!r}")
    return len(texts)


def _copying(entities: Sequence[Entity], held_out: Sequence[Entity], samples: int) -> list[str]:
    names, rng = copying.Names([e for e in entities if e.split == "train"], held_out), np.random.default_rng(0)
    return ["\n".join(copying.sample(task, names, rng)) for task in copying.TASKS for _ in range(samples)]


def _sources(world: Path, held_out: Sequence[Entity]) -> int:
    """The drawings that the sources of pictures hand out."""
    from data.openmoji.pretrain import Pictures

    never, pictures = {e.id for e in held_out}, Pictures(str(world))
    known = {e.id for e in load_entities(world, "train")}
    for code in pictures.train:
        if code in never or code not in known:
            raise UserError(f"leak: the autoencoder trains on the held-out drawing {code}")
    if set(pictures.held_out) & ({e.id for e in held_out if e.split == "test"} | known):
        raise UserError("leak: the autoencoder's held-out pictures are not those of the validation entities")
    return len(pictures.train)


def _trajectories(folder: Path, world: Path, held_out: Sequence[Entity]) -> int:
    """Names in every record, pictures in every folder of references."""
    records = sorted(folder.glob("*/traj/*.json"))
    texts = [_record_text(path) for path in records]
    name = leaked_name("\n".join(texts), held_out)
    if name is not None:
        path = next(p for p, text in zip(records, texts, strict=True) if name.lower() in text.lower())
        raise UserError(f"leak: {path} holds the held-out name {name!r}")
    never = set()
    for line in (world / "corpus" / "images.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["labels"]["split"] != "train":
            never.add(_file_hash(world / "corpus" / record["path"]))
    for path in folder.glob("*/intermediate/**/*.png"):
        if _file_hash(path) in never:
            raise UserError(f"leak: {path} is a picture of a held-out entity")
    return len(records)


def _file_hash(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
