"""A run: one model's pictures, one data set, one judge, in one folder.

    run.json        what is judged and by whom; the same command continues a run, another one is refused
    items.jsonl     the items with their pictures and the SHA-256 of all of them
    calls.jsonl     every call as it happens (unify_agent.judging)
    checklists.jsonl  PicWorld: the questions that were asked
    results.jsonl   what became of each item, with what the judge said
    report.json, report.md, report.csv   totals
    usage.json      what it cost, failed attempts included

All paths in it are relative to the folder. What is in results and reports follows from items and calls alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from eval.benchmarks import benchmark
from eval.benchmarks.base import Benchmark, Item, sha256_of
from eval.pictures import Found, Survey
from eval.scoring import Result
from unify_agent.errors import UserError
from unify_agent.files import digest, read_json, write_json, write_text
from unify_agent.judging import PicturePolicy

RUN, ITEMS, CALLS, RESULTS = "run.json", "items.jsonl", "calls.jsonl", "results.jsonl"
CHECKLISTS, REPORT, USAGE = "checklists.jsonl", "report.json", "usage.json"


_RESULT = TypeAdapter(Result)


@dataclass(frozen=True)
class Run:
    """A run folder and its `run.json`."""

    folder: Path
    facts: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> Run:
        """A run that was started. Raises UserError when the folder holds none."""
        if not (folder / RUN).is_file():
            raise UserError(f"{folder}: holds no run; `python -m eval score` makes one")
        facts = read_json(folder / RUN, "run")
        if not isinstance(facts, dict) or "benchmark" not in facts:
            raise UserError(f"{folder / RUN}: not the description of a run")
        return cls(folder, facts)

    @classmethod
    def start(cls, folder: Path, facts: dict[str, Any]) -> Run:
        """A new run, or the one in the folder when it is the same. Raises UserError naming what differs."""
        pinned(folder / RUN, facts, "a run")
        return cls(folder, facts)

    @classmethod
    def refuse_another(cls, folder: Path, facts: dict[str, Any]) -> None:
        """Raises UserError when the folder holds another run. `facts` lack only what the judge will say of itself."""
        if (folder / RUN).is_file():
            served = (cls.open(folder).facts.get("judge") or {}).get("served")
            pinned(folder / RUN, facts | {"judge": facts["judge"] | {"served": served}}, "a run")

    def benchmark(self) -> Benchmark:
        """The benchmark with the run's options. Raises UserError when its questions have changed since."""
        made = benchmark(self.facts["benchmark"], self.facts["options"])
        if made.template_sha256 != self.facts["template_sha256"]:
            raise UserError(f"{self.folder}: was judged with other questions than this version asks; score it anew")
        return made

    @property
    def policy(self) -> PicturePolicy:
        """How pictures were sent."""
        return PicturePolicy(**self.facts["judge"]["pictures"])

    def write_items(self, items: Sequence[Item], survey: Survey, digests: dict[Path, str]) -> None:
        """Writes items.jsonl."""
        found = {each.id: each for each in survey.found}
        rows = []
        for item in items:
            each = found[item.id]
            rows.append({
                "id": item.id, "prompt": item.prompt, "category": item.category, "group": item.group,
                "references": [[self._relative(p), digests.get(p, "")] for p in item.references],
                "extra": dict(item.extra), "place": item.place,
                "picture": None if each.path is None else self._relative(each.path), "sha256": each.sha256,
                "trajectory": None if each.trajectory is None else self._relative(each.trajectory),
                "problem": each.problem, "detail": each.detail,
            })  # fmt: skip
        write_text(self.folder / ITEMS, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def items(self) -> tuple[list[Item], dict[str, Found], dict[Path, str]]:
        """The items, their pictures, and the digests of references, as they were when they were judged.

        Raises UserError when they are not those that the run was started with.
        """
        items: list[Item] = []
        found: dict[str, Found] = {}
        digests: dict[Path, str] = {}
        for row in self._lines(ITEMS):
            paths = [self.folder / name for name, _ in row["references"]]
            digests |= {path: sha for path, (_, sha) in zip(paths, row["references"], strict=True)}
            items.append(Item(row["id"], row["prompt"], row["category"], row["group"], tuple(paths), (), row["place"],
                              row["extra"]))  # fmt: skip
            picture, trajectory = (row[name] and self.folder / row[name] for name in ("picture", "trajectory"))
            found[row["id"]] = Found(row["id"], picture, row["sha256"], trajectory, row["problem"], row["detail"])
        if sha256_of(items) != self.facts["data"]["chosen_sha256"]:
            raise UserError(f"{self.folder / ITEMS}: holds other prompts than {RUN} beside it tells of; its scores "
                            "belong to neither")  # fmt: skip
        return items, found, digests

    def write_results(self, results: Sequence[Result]) -> None:
        """Writes results.jsonl."""
        lines = (json.dumps(result.as_dict(), ensure_ascii=False) + "\n" for result in results)
        write_text(self.folder / RESULTS, "".join(lines))

    def results(self) -> list[Result]:
        """What became of each item. Raises UserError when the run was never brought to its end."""
        return [_RESULT.validate_python(row) for row in self._lines(RESULTS)]

    def report(self) -> dict[str, Any]:
        """The totals."""
        return read_json(self.folder / REPORT, "report of a run")

    def _relative(self, path: Path) -> str:
        return Path(os.path.relpath(path.resolve(), self.folder.resolve())).as_posix()

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        if not path.is_file():
            raise UserError(f"{path}: is not there: the run did not come to its end; run the same `score` again")
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def pinned(path: Path, facts: dict[str, Any], what: str) -> None:
    """Writes the description of a folder's content, once. Raises UserError when it holds `what` of another kind."""
    if not path.is_file():
        write_json(path, facts)
        return
    old = read_json(path, "description")
    if differing := sorted(differences(old if isinstance(old, dict) else {}, facts)):
        key = differing[0]
        raise UserError(f"{path.parent}: holds {what} with another {key} ({_at(old, key)!r}, now {_at(facts, key)!r}); "
                        "choose another --out")  # fmt: skip


def differences(old: dict[str, Any], new: dict[str, Any], within: str = "") -> list[str]:
    """The keys, dotted, whose values differ."""
    keys = []
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            keys += differences(a, b, f"{within}{key}.")
        elif a != b:
            keys.append(f"{within}{key}")
    return keys


def _at(facts: dict[str, Any], key: str) -> Any:
    value: Any = facts
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def chosen(items: Sequence[Item], limit: int | None, ids: Sequence[str] | None, seed: int = 0) -> list[Item]:
    """A part of the items in their order: those named, or `limit` of them spread over the categories by their size.

    Which ones depends on seed and id alone. Raises UserError for an id that is not there.
    """
    if ids is not None:
        known = {item.id for item in items}
        if missing := [each for each in ids if each not in known]:
            raise UserError(f"--ids: the data set has no {', '.join(missing[:5])}")
        return [item for item in items if item.id in set(ids)]
    if limit is None or limit >= len(items):
        return list(items)
    if limit < 1:
        raise UserError(f"--limit {limit}: at least 1")
    by_chance = sorted(items, key=lambda item: digest(str(seed), item.id))
    ranked: dict[str, int] = {}
    places: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for item in by_chance:
        sizes[item.category] = sizes.get(item.category, 0) + 1
    for item in by_chance:
        places[item.category] = places.get(item.category, 0) + 1
        ranked[item.id] = places[item.category]
    # the k-th of n stands at (k - 1/2) / n of its category: taking the first ones keeps all shares
    order = sorted(by_chance, key=lambda item: ((ranked[item.id] - 0.5) / sizes[item.category], item.category))
    kept = {item.id for item in order[:limit]}
    return [item for item in items if item.id in kept]


def digests_of(items: Sequence[Item]) -> dict[Path, str]:
    """SHA-256 of every reference that there is."""
    return {path: digest(path) for item in items for path in item.references if path.is_file()}
