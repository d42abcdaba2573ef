"""A corpus as a user would bring one: pages that resolve aliases, and candidate pictures, good and bad.

Every entity has six pictures or more under its name, so that a search for it is filled with its own. What is
wrong with a bad one can be seen in its pixels:

| kind      | picture                                                   |
|-----------|-----------------------------------------------------------|
| good      | clean, upright, on white or light grey, two scales        |
| blurred   | Gaussian blur of 5 of 128 pixels                          |
| watermark | letters drawn over it, half transparent                   |
| tiny      | 24 x 24 pixels                                            |
| text      | a page of lines with the drawing at the size of a stamp   |
| other     | the drawing of another entity that looks similar          |

About 15 % of the entities are `shy`: under the bare name there are bad pictures only, the good ones are titled
"<name> specimen". About 8 % have a single good picture, 4 % have none.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from data.openmoji.entities import LANGUAGES, Entity, keyed_random
from data.openmoji.pictures import LICENCE, SOURCE, Drawings, drawings_path, thumbnail
from data.openmoji.scenes import paste, sprite
from data.openmoji.words import document
from unify_agent.files import write_text

SIDE = 128
BAD = ("blurred", "watermark", "tiny", "text", "other")
SPECIMEN = {"en": "{name} specimen", "zh": "{name}标本"}
_SUPPLY = (("shy", 0.15), ("single", 0.08), ("none", 0.04))
_GOOD = ((52, (255, 255, 255)), (44, (236, 236, 236)))
"""Longest side out of 64, and background, of the first and the second good picture."""


def supply(entity: Entity) -> str:
    """Which references an entity has: `plenty`, `shy`, `single` or `none`. Common things have plenty."""
    draw, total = keyed_random("supply", entity.id).random(), 0.0
    for kind, share in _SUPPLY:
        total += share
        if draw < total and not entity.common:
            return kind
    return "plenty"


def plan(entity: Entity) -> list[tuple[str, bool]]:
    """The candidates of an entity in order: (kind, whether its title says "specimen")."""
    kind, rng = supply(entity), keyed_random("plan", entity.id)
    good = {"plenty": 2, "shy": 2, "single": 1, "none": 0}[kind]
    bad = 6 if kind == "shy" else 6 - good
    order = [BAD[i] for i in rng.permutation(len(BAD))] + [BAD[int(rng.integers(4))]]
    result = [("good", kind == "shy")] * good + [(each, False) for each in order[:bad]]
    return [result[i] for i in rng.permutation(len(result))]


# ---------------------------------------------------------------- pictures


def clean(rgba: np.ndarray, longest: int, background: tuple[int, int, int], side: int = SIDE) -> np.ndarray:
    """The drawing alone in the middle, `longest` / 64 of the frame: uint8 [side, side, 3]."""
    canvas = np.empty((side, side, 3), np.uint8)
    canvas[...] = background
    paste(canvas, sprite(rgba, longest * side // 64), (side / 2, side / 2))
    return canvas


def _letters(text: str, scale: int) -> np.ndarray:
    """A line of letters as a bool mask, from Pillow's built-in bitmap font."""
    from PIL import ImageDraw, ImageFont

    font = ImageFont.load_default_imagefont()
    width = int(font.getlength(text))
    line = Image.new("L", (width + 1, 11))
    ImageDraw.Draw(line).text((0, 0), text, fill=255, font=font)
    line = line.resize((line.width * scale, line.height * scale), Image.Resampling.NEAREST)
    return np.asarray(line) > 127


def _watermark(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    mark = np.zeros(picture.shape[:2], bool)
    step = int(rng.integers(28, 36))
    for number, top in enumerate(range(4, SIDE - 22, step)):
        line = _letters("STOCK PHOTO", 2)[:, : SIDE - 2]
        left = int(rng.integers(0, 12)) if number % 2 else 0
        line = line[:, : SIDE - left]
        mark[top : top + line.shape[0], left : left + line.shape[1]] |= line
    out = picture.astype(np.uint16)
    out[mark] = (out[mark] * 45 + np.array([130, 130, 140]) * 55) // 100
    return out.astype(np.uint8)


def _page(rgba: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    canvas = np.full((SIDE, SIDE, 3), 255, np.uint8)
    alphabet = "abcdefghiklmnoprstuvw     "
    for top in range(2, SIDE - 12, 11):
        text = "".join(alphabet[i] for i in rng.integers(len(alphabet), size=20))
        line = _letters(text, 1)[:, : SIDE - 4]
        canvas[top : top + line.shape[0], 2 : 2 + line.shape[1]][line] = 40
    corner = (SIDE - 22, SIDE - 22) if rng.random() < 0.5 else (22, SIDE - 22)
    left, top = int(corner[0]) - 20, int(corner[1]) - 20
    canvas[top : top + 40, left : left + 40] = 255
    paste(canvas, sprite(rgba, 36), corner)
    return canvas


def candidate(rgba: np.ndarray, kind: str, number: int, rng: np.random.Generator) -> np.ndarray:
    """One candidate picture, uint8 [128, 128, 3] ([24, 24, 3] for `tiny`). `number` counts the good ones."""
    if kind == "text":
        return _page(rgba, rng)
    picture = clean(rgba, *_GOOD[number % 2])
    if kind == "blurred":
        return np.asarray(Image.fromarray(picture).filter(ImageFilter.GaussianBlur(5)))
    if kind == "watermark":
        return _watermark(picture, rng)
    if kind == "tiny":
        return np.asarray(Image.fromarray(picture).resize((24, 24), Image.Resampling.BOX))
    return picture


def look_alikes(entities: Sequence[Entity], drawings: Drawings) -> dict[str, str]:
    """For each entity the one of another family and the same split that looks most like it."""
    result: dict[str, str] = {}
    for split in ("train", "val", "test"):
        group = [e for e in entities if e.split == split]
        flat = np.stack([thumbnail(drawings[e.id]).ravel() for e in group])
        gram = (flat**2).sum(1)[:, None] + (flat**2).sum(1)[None] - 2 * flat @ flat.T
        families = np.array([e.family for e in group])
        gram[families[:, None] == families[None]] = np.inf
        result |= {e.id: group[int(row.argmin())].id for e, row in zip(group, gram, strict=True)}
    return result


# ---------------------------------------------------------------- writing


def _write_pictures(task: tuple[Path, Path, list[tuple[Entity, str]]]) -> list[dict]:
    """One share of the pictures (runs in a worker process); returns their records."""
    folder, archive, share = task
    drawings, records = Drawings.load(archive), []
    for entity, similar in share:
        good = 0
        for number, (kind, specimen) in enumerate(plan(entity)):
            shown = similar if kind == "other" else entity.id
            rng = keyed_random("candidate", entity.id, str(number))
            picture = candidate(drawings[shown], kind, good if kind == "good" else number, rng)
            good += kind == "good"
            name = f"{entity.id}_{number}"
            Image.fromarray(picture).save(folder / f"{name}.png", compress_level=1)
            titles = {
                lang: SPECIMEN[lang].format(name=entity.name[lang]) if specimen else entity.name[lang]
                for lang in LANGUAGES
            }
            records.append({
                "id": name, "path": f"pictures/{name}.png", "title": titles,
                "width": picture.shape[1], "height": picture.shape[0],
                "source": f"{SOURCE}/blob/master/color/svg/{shown}.svg", "licence": LICENCE,
                "labels": {"entity": shown, "kind": kind, "about": entity.id, "split": entity.split},
            })  # fmt: skip
    return records


def documents(entities: Sequence[Entity]) -> list[dict]:
    """The pages, one for every alias and language."""
    result = []
    for entity in entities:
        for language in LANGUAGES:
            title, text = document(entity, language)
            source = f"openmoji:{entity.id}#{language}"
            result.append({"id": f"{entity.id}-{language}", "title": title, "text": text, "lang": language,
                           "source": source})  # fmt: skip
    return result


def _lines(records: Sequence[dict]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def write_corpus(world: Path, entities: Sequence[Entity], drawings: Drawings, workers: int = 2) -> dict[str, int]:
    """Write `corpus/docs.jsonl`, `corpus/images.jsonl` and the index `search/` of a world; return their counts.

    The pictures live in the index; the corpus points at them there.
    """
    from unify_agent.search.building import build_index

    work = world / ".corpus.building"
    shutil.rmtree(work, ignore_errors=True)
    (work / "pictures").mkdir(parents=True)
    try:
        similar = look_alikes(entities, drawings)
        pairs = [(entity, similar[entity.id]) for entity in entities]
        shares = [(work / "pictures", drawings_path(world), pairs[k::workers]) for k in range(workers)]
        if workers > 1:
            with ProcessPoolExecutor(workers) as pool:
                parts = list(pool.map(_write_pictures, shares))
        else:
            parts = [_write_pictures(share) for share in shares]
        records = sorted((record for part in parts for record in part), key=lambda record: record["id"])
        docs = documents(entities)
        write_text(work / "docs.jsonl", _lines(docs))
        write_text(work / "images.jsonl", _lines(records))
        build_index(work / "docs.jsonl", work / "images.jsonl", world / "search")
        for record in records:
            record["path"] = os.path.join("..", "search", record["path"])
        write_text(world / "corpus" / "images.jsonl", _lines(records))
        write_text(world / "corpus" / "docs.jsonl", _lines(docs))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return {"documents": len(docs), "pictures": len(records)}
