"""Quality control of a build: what a person looks at, and what is counted, below folder/quality.

    quality/index.html        the contact sheet: accepted and left-out items with their reasons (contact_sheet.py)
    quality/statistics.json   counts by category, language, form, difficulty, rounds, lengths; statistics.png
    quality/near.json         prompts and accepted pictures that are nearly the same, in groups of ids

All of it is made from the journal and the training layout alone; made again, each file is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from data.build import contact_sheet
from data.build.figures import figures, plot
from data.build.items import Item, read_items, without_names
from data.build.journal import JOURNAL
from data.build.listing import LOOKS
from data.build.lookalike import Looks, find_alike
from data.build.nearness import NEAR, find_near
from data.build.spec import Spec
from unify_agent.errors import UserError
from unify_agent.files import read_json, write_bytes, write_json

FOLDER = "quality"


def report(folder: Path, spec: Spec) -> None:
    """Statistics, near-duplicates and the contact sheet."""
    statistics(folder, spec)
    sheet(folder, spec)


def sheet(folder: Path, spec: Spec) -> Path:
    """`python -m data build sheet`: the contact sheet; returns the path of its page.

    What is nearly the same is shown as near.json has it, where `stats` was run before.
    """
    near = folder / FOLDER / "near.json"
    groups = read_json(near) if near.is_file() else {}
    return contact_sheet.write(folder / FOLDER, lambda: _items(folder), groups, spec.seed)


def statistics(folder: Path, spec: Spec) -> dict[str, Any]:
    """`python -m data build stats`: figures, a plot and near-duplicates; returns what is in statistics.json."""
    prompts: list[tuple[str, str]] = []
    pictures: list[tuple[str, Path]] = []

    def noted(items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            if item.prompt:
                prompts.append((item.id, without_names(item)))
            if item.picture is not None:
                pictures.append((item.id, item.picture))
            yield item

    found = figures(noted(_items(folder)))
    near = {"prompts": near_prompts(prompts), "pictures": near_pictures(pictures, Looks(spec.out / LOOKS))}
    found["near"] = {
        name: {"groups": len(part["groups"]), "items": sum(map(len, part["groups"]))} for name, part in near.items()
    }
    write_json(folder / FOLDER / "near.json", near, indent=1)
    write_json(folder / FOLDER / "statistics.json", found)
    write_bytes(folder / FOLDER / "statistics.png", plot(found, folder.resolve().name))
    return found


def near_prompts(prompts: list[tuple[str, str]]) -> dict[str, Any]:
    """Groups of ids of prompts that are nearly the same but for the names in them."""
    groups = find_near([text for _, text in prompts])
    return {
        "rule": f"character n-grams overlap by {NEAR:g} or more; every group is one, at most 1.2 % of pairs are missed",
        "groups": [[prompts[each][0] for each in group] for group in groups],
    }


def near_pictures(pictures: list[tuple[str, Path]], looks: Looks) -> dict[str, Any]:
    """Groups of ids of accepted pictures that look alike, and those that cannot be read."""
    found = looks.of(path for _, path in pictures)
    seen = [(name, look) for name, path in pictures if isinstance(look := found[path], bytes)]
    alike = find_alike([look for _, look in seen])
    rule = "proportions within 5 %, at most 10 of 128 bits, colours within 16 of 255: "
    rule += f"{alike.cut} pictures were compared with the nearest alone" if alike.cut else "every pair was found"
    return {
        "rule": rule,
        "groups": [[seen[each][0] for each in group] for group in alike.groups],
        "unreadable": [name for name, path in pictures if not isinstance(found[path], bytes)],
    }


def _items(folder: Path) -> Iterator[Item]:
    if not (folder / JOURNAL).is_file():
        raise UserError(f"{folder}: no build has begun here ({JOURNAL} is missing); run python -m data build first")
    return read_items(folder)
