"""The contact sheet: a page that opens from the disk and shows what was accepted and what was not, and why.

    index.html     the page; sheet.js and sheet.css beside it
    items.js       what every shown item is filtered by
    parts/K.js     all about the K-th forty of them, read when it is shown
    thumbs/        small copies of pictures, named by content, loaded as they come into view

At most `MOST` items are shown: the first `EACH` of every reason in every category, in an order of chance, then others
in that order. Whatever an item says enters the page as text, never as markup; a policy in the page lets no script run
but its own, and loads nothing from the network.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from data.build.items import Item
from data.progress import Progress
from unify_agent.files import digest, write_bytes, write_text
from unify_agent.interleave.segments import Unusable
from unify_agent.interleave.transforms import open_picture
from unify_agent.judging import PicturePolicy
from unify_agent.page import escape, page, tag, write_script

MOST, EACH, PART, NEAR = 5000, 20, 40, 20
THUMB = PicturePolicy(longest=200, format="jpeg", quality=80)
POLICY = "default-src 'none'; img-src 'self' file:; script-src 'self' file:; style-src 'self' 'unsafe-inline' file:"
_HERE = Path(__file__).parent / "sheet"
_FILTERS = ("state", "category", "language", "form", "why")


def write(out: Path, items: Callable[[], Iterable[Item]], near: Mapping[str, Any], seed: int) -> Path:
    """Writes the page of what `items()` yields, which is gone through twice. `near`: near.json.

    Returns the path of index.html.
    """
    chosen, total = _chosen(items(), seed)
    groups: dict[str, list[Sequence[str]]] = {}
    for group in (group for part in ("prompts", "pictures") for group in near.get(part, {}).get("groups", [])):
        for name in group:
            groups.setdefault(name, []).append(group)
    rows: list[list[Any]] = []
    values: dict[str, list[str]] = {name: [] for name in _FILTERS}
    parts = out / "parts"
    shutil.rmtree(parts, ignore_errors=True)
    used: set[str] = set()
    with ThreadPoolExecutor(4) as pool, Progress("contact sheet", len(chosen), "items") as progress:
        for number, some in enumerate(_in_parts(item for item in items() if item.id in chosen)):
            thumbs = _thumbs(out, some, pool)
            used |= set(thumbs.values())
            write_script(parts / f"{number}.js", f"PARTS[{number}]", [_told(each, thumbs, groups) for each in some])
            rows += [[each.id, each.name, each.id in groups, *_places(each, values)] for each in some]
            progress.advance(len(some))
    for old in (out / "thumbs").glob("*.jpg"):
        if f"thumbs/{old.name}" not in used:
            old.unlink()
    write_script(out / "items.js", "SHEET", {"filters": values, "part": PART, "rows": rows})
    for name in ("sheet.js", "sheet.css"):
        write_bytes(out / name, (_HERE / name).read_bytes())
    write_text(out / "index.html", _page(len(rows), total))
    return out / "index.html"


def _page(shown: int, total: int) -> str:
    told = (
        f"{total:,} items"
        if shown == total
        else f"{shown:,} of {total:,} items, some of every reason in every category"
    )
    body = (
        '<link rel="stylesheet" href="sheet.css">'
        + (_HERE / "sheet.html").read_text(encoding="utf-8")
        + '<script src="items.js"></script><script src="sheet.js"></script>'
    )
    return page("Contact sheet", tag("p", escape(told)), body, POLICY)


def _chosen(items: Iterable[Item], seed: int) -> tuple[set[str], int]:
    """The ids of the items that are shown, and how many there are."""
    ranked = sorted((digest(f"{seed} {item.id}")[:16], item.id, item.state, item.why, item.category) for item in items)
    if len(ranked) <= MOST:
        return {name for _, name, *_ in ranked}, len(ranked)
    seen: Counter[tuple[str, ...]] = Counter()
    first: list[str] = []
    rest: list[str] = []
    for _, name, *kind in ranked:
        seen[tuple(kind)] += 1
        (first if seen[tuple(kind)] <= EACH else rest).append(name)
    return {*first[:MOST], *rest[: max(0, MOST - len(first))]}, len(ranked)


def _in_parts(items: Iterable[Item]) -> Iterator[list[Item]]:
    some: list[Item] = []
    for item in items:
        some.append(item)
        if len(some) == PART:
            yield some
            some = []
    if some:
        yield some


def _places(item: Item, values: dict[str, list[str]]) -> list[int]:
    """What an item is filtered by, as places in the lists of `values`, which grow."""
    places = []
    for name in _FILTERS:
        value = getattr(item, name)
        if value not in values[name]:
            values[name].append(value)
        places.append(values[name].index(value))
    return places


def _told(item: Item, thumbs: Mapping[Path, str], near: Mapping[str, Sequence[Sequence[str]]]) -> dict[str, Any]:
    """All that a card shows."""
    pictures = [
        [thumbs.get(path, ""), f"reference {k}", _lines(origin)] for k, (path, origin) in enumerate(item.references, 1)
    ]
    pictures += [
        [thumbs.get(trial.picture, ""), f"trial {trial.number}: {'accepted' if trial.accepted else 'refused'}",
         "\n".join([trial.reason] * bool(trial.reason) + [f"{name} {value:g}" for name, value in trial.scores.items()])]
        for trial in item.trials
    ]  # fmt: skip
    if item.picture is not None and not item.trials:
        pictures.append([thumbs.get(item.picture, ""), "accepted", ""])
    pictures += [[thumbs.get(path, ""), f"seed {k}", ""] for k, path in enumerate(item.seeds, 1)]
    where = (item.id, item.name, item.category, item.language, item.form, item.difficulty)
    return {
        "id": item.id, "title": item.prompt or item.name or item.id, "where": " · ".join(filter(None, where)),
        "state": item.state, "why": item.why, "detail": item.detail, "recaption": item.recaption, "pictures": pictures,
        "near": _others(item.id, near.get(item.id, ())),
    }  # fmt: skip


def _others(name: str, groups: Iterable[Sequence[str]]) -> list[str]:
    """The first of those that an item is in a group with."""
    others = dict.fromkeys(each for group in groups for each in group[: NEAR + 1] if each != name)
    return list(others)[:NEAR]


def _lines(origin: Mapping[str, str]) -> str:
    return "\n".join(f"{key}: {value[:300]}" for key, value in origin.items())


def _thumbs(out: Path, items: Iterable[Item], pool: ThreadPoolExecutor) -> dict[Path, str]:
    """Picture -> its small copy below the page; pictures that are gone or do not decode have none."""
    paths = {path for item in items for path in (*item.seeds, *(trial.picture for trial in item.trials))}
    paths |= {path for item in items for path, _ in item.references}
    paths |= {item.picture for item in items if item.picture is not None}
    ordered = sorted(paths)
    return dict(zip(ordered, pool.map(lambda path: _thumb(out, path), ordered), strict=True))


def _thumb(out: Path, path: Path) -> str:
    try:
        name = f"thumbs/{digest(path)[:20]}.jpg"
        if not (out / name).is_file():
            write_bytes(out / name, THUMB.encode(open_picture(path)))
    except (Unusable, OSError):
        return ""
    return name
