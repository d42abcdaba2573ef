"""The entities of a list, each whole and told apart from all others, or refused by name.

A row that is refused is told with its file, its line and its id; the others go on. What a row says is taken as it is:
nothing is guessed from the beginning or a part of an id or a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data.build.contracts import CATEGORIES, Dropped, Entity
from data.build.lookalike import Looks
from data.build.names import guess_language, normalised, safe_id
from data.build.table import Row, read_table
from unify_agent.errors import UserError, nearest
from unify_agent.interleave.segments import Unusable

LOOKS = "looks.jsonl"
"""Below the run folder: how the pictures of the list look, so that a run that continues need not open them."""
LONGEST_NAME = 200
ALIASES = {
    "animals": "animal", "plant": "animal", "cultural": "art", "relic": "art", "toys": "toy", "celebration": "festival",
    "comics": "comic", "games": "game", "myth": "mythology", "celebrities": "celebrity", "landmarks": "landmark",
    "mascots": "mascot", "foods": "food", "anime": "animation",
}  # fmt: skip
"""Other words for the twelve, as eval/benchmarks/factip.py takes them."""
_CHINESE = {
    "动画": "animation", "动漫": "animation", "漫画": "comic", "名人": "celebrity", "人物": "celebrity", "游戏": "game",
    "吉祥物": "mascot", "神话": "mythology", "美食": "food", "食物": "food", "艺术": "art", "文物": "art",
    "玩具": "toy", "动物": "animal", "植物": "animal", "地标": "landmark", "景点": "landmark", "节日": "festival",
    "庆典": "festival",
}  # fmt: skip
_KNOWN = tuple(name for group in CATEGORIES.values() for name in group)


@dataclass(frozen=True)
class Listed:
    """A list as it was read. `looks`: the packed look of each seed. `refused`: (file and line, why): an id might be
    another row's."""

    entities: tuple[Entity, ...]
    looks: Mapping[Path, bytes]
    refused: tuple[tuple[str, Dropped], ...]


def read_list(path: Path, looks: Looks) -> Listed:
    """All rows of a file. Raises UserError for a file that cannot be used."""
    reader = _Reader(path)
    kept: list[Entity] = []
    places: dict[str, str] = {}
    for row in read_table(path):
        entity = reader.take(row)
        if entity is not None:
            kept.append(entity)
            places[entity.id] = row.where
    found = looks.of(seed for entity in kept for seed in entity.seeds)
    whole = []
    for entity in kept:
        faults = [(seed, fault) for seed in entity.seeds if isinstance(fault := found[seed], Unusable)]
        if faults:
            seed, fault = faults[0]
            told = f"the picture {seed} is {_said(fault)}; give another, or leave it out"
            reader.refuse(places[entity.id], entity.given_id, "a seed that cannot be used", told)
        else:
            whole.append(entity)
    good = {seed: look for seed, look in found.items() if isinstance(look, bytes)}
    if not whole:
        first = f", the first of them: {reader.refused[0][1].detail}" if reader.refused else ""
        raise UserError(f"{path}: no row can be used{first}")
    return Listed(tuple(whole), good, tuple(reader.refused))


def _said(fault: Unusable) -> str:
    words = {"no such file": "not there", "not a picture": "no picture", "picture does not decode": "broken off"}
    return words.get(fault.reason, str(fault))


class _Reader:
    """Makes entities of rows, one after another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.resolve().parent
        self.refused: list[tuple[str, Dropped]] = []
        self._ids: dict[str, str] = {}
        self._safe: set[str] = set()
        self._names: dict[tuple[str, str], str] = {}

    def refuse(self, where: str, given: str, reason: str, told: str) -> None:
        place = f"{self.path.parent / where}"
        self.refused.append((where, Dropped("entities", reason, f"{place}: id {given!r}: {told}")))

    def take(self, row: Row) -> Entity | None:
        try:
            return self._made(row)
        except _Refusal as fault:
            self.refuse(row.where, row.id, *fault.args)
            return None

    def _made(self, row: Row) -> Entity:
        if row.fault:
            raise _Refusal("a row that cannot be read", row.fault)
        if not row.id:
            raise _Refusal("no id", "its id is empty; give one that no other row has")
        if row.id in self._ids:
            raise _Refusal("an id that is taken", f"{self._ids[row.id]} has this id; give it another")
        names = self._named(row)
        category = category_of(row.category)
        if category is None:
            hint = nearest(row.category.lower(), _KNOWN) if row.category else f"; known: {', '.join(_KNOWN)}"
            raise _Refusal("no known category", f"the category {row.category!r} is not known{hint}")
        for seed in row.seeds:
            if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", seed):
                raise _Refusal(
                    "a seed that is an address",
                    f"{seed[:80]!r}: download it and give its path, so that all machines see the same picture",
                )
        for language, name in names.items():
            self._names[language, normalised(name)] = row.where
        self._ids[row.id] = row.where
        safe = safe_id(row.id, self._safe)
        self._safe.add(safe.casefold())
        seeds = tuple(dict.fromkeys(self.folder / seed for seed in row.seeds))
        return Entity(safe, names, category, row.country, row.remark, seeds, given_id=row.id)

    def _named(self, row: Row) -> dict[str, str]:
        names = dict(row.names or {})
        if row.name and row.name not in names.values():
            names.setdefault(guess_language(row.name), row.name)
        if not names:
            raise _Refusal("no name", "it has no name in any language; give one")
        for language, name in names.items():
            if not any(c.isalnum() for c in name):
                raise _Refusal("no name", f"the name {name!r} ({language}) holds no letter or digit")
            if len(name) > LONGEST_NAME:
                raise _Refusal(
                    "no name", f"the name {name[:30]!r}... ({language}) has more than {LONGEST_NAME} letters"
                )
            if before := self._names.get((language, normalised(name))):
                raise _Refusal(
                    "a name that is taken",
                    f"{before} has the name {name!r} ({language}) too; join the rows, or make the names differ",
                )
        return names


class _Refusal(Exception):
    """(reason, what is told)."""


def category_of(text: str) -> str | None:
    """The category that a word stands for ("Cultural Relic/Art", "animal_plant", "美食"); None for none."""
    for word in re.split(r"[\s/_&-]+", text.lower()):
        meant = _CHINESE.get(word) or ALIASES.get(word, word)
        if meant in _KNOWN:
            return meant
    return None
