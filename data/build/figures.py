"""Figures of a build: what came of it by category, language, form and difficulty; rounds, lengths, trials; a plot."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.build.items import Item

PERCENTILES = (0, 10, 50, 90, 99, 100)
STATES = ("done", "dropped", "failed", "waiting", "held_out", "left_out")
COLOURS = dict(zip(STATES, ("#1f8a5b", "#c2453d", "#f2a33a", "#8b93a3", "#2f6fdb", "#b9c4d6"), strict=True))


def figures(items: Iterable[Item]) -> dict[str, Any]:
    """All figures, ready for JSON. Lengths are characters; rounds are turns of the agent, the last one with them."""
    tasks: list[_Row] = []
    lost: list[_Row] = []
    several = Counter[str]()
    for item in items:
        (tasks if item.language else lost).append(_Row.of(item))
        several[item.state] += 1
    done = [row for row in tasks if row.state == "done"]
    settled = [row for row in tasks if row.state in ("done", "dropped")]
    return {
        "tasks": len(tasks),
        "entities_without_a_task": len(lost),
        "states": {state: several[state] for state in STATES if several[state]},
        "accepted_of_settled": len(done) / len(settled) if settled else None,
        "reasons": _counted(row.why for row in (*tasks, *lost) if row.why),
        "category": _crossed(tasks + lost, lambda row: row.category),
        "language": _crossed(tasks, lambda row: row.language),
        "form": _crossed(tasks, lambda row: row.form),
        "difficulty": _crossed(tasks, lambda row: row.difficulty),
        "rounds": _counted(str(row.turns) for row in done),
        "references": _counted(str(row.references) for row in done),
        "trials": _counted(str(row.trials) for row in tasks if row.trials),
        "length": {
            "prompt": _spread([row.prompt for row in tasks if row.prompt]),
            "recaption": _spread([row.recaption for row in done]),
            "trajectory": _spread([row.letters for row in done]),
        },
    }


@dataclass(frozen=True, slots=True)
class _Row:
    """What counts of an item, small enough to be kept of all; of prompt, recaption, references, trials: how long."""

    category: str
    language: str
    form: str
    difficulty: str
    state: str
    why: str
    turns: int
    letters: int
    prompt: int
    recaption: int
    references: int
    trials: int

    @classmethod
    def of(cls, item: Item) -> _Row:
        return cls(
            item.category, item.language, item.form, item.difficulty, item.state, item.why, item.turns, item.letters,
            prompt=len(item.prompt), recaption=len(item.recaption),
            references=len(item.references), trials=len(item.trials),
        )  # fmt: skip


def _counted(values: Iterable[str]) -> dict[str, int]:
    """Most frequent first; numbers in their order."""
    counts = Counter(values)
    if all(key.isdecimal() for key in counts):
        return {key: counts[key] for key in sorted(counts, key=int)}
    return dict(counts.most_common())


def _crossed(rows: Sequence[_Row], key: Callable[[_Row], str]) -> dict[str, dict[str, int]]:
    """Value -> state -> number."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        found.setdefault(key(row) or "unknown", Counter())[row.state] += 1
    return {name: {state: found[name][state] for state in STATES if found[name][state]} for name in sorted(found)}


def _spread(values: Sequence[int]) -> dict[str, float]:
    if not values:
        return {}
    numbers = np.array(values)
    return {f"p{p}": int(np.percentile(numbers, p)) for p in PERCENTILES} | {"mean": round(float(numbers.mean()), 1)}


def plot(found: Mapping[str, Any], title: str) -> bytes:
    """The figures as a PNG of six panels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 8.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3).ravel()
    told = ", ".join(f"{number:,} {state.replace('_', ' ')}" for state, number in found["states"].items())
    figure.suptitle(f"{title}: {told or 'nothing yet'}", fontsize=14, fontweight="bold", parse_math=False)
    _stacked(axes[0], found["category"], "Category")
    _stacked(axes[1], {f"{k}": v for part in ("language", "form") for k, v in found[part].items()}, "Language, form")
    _stacked(axes[2], {reason: {"dropped": n} for reason, n in list(found["reasons"].items())[:12]}, "Why left out")
    _columns(axes[3], {name: found[name] for name in ("rounds", "references", "trials")}, "Rounds, references, trials")
    for place, name in ((axes[4], "prompt"), (axes[5], "trajectory")):
        _percentiles(place, found["length"][name], f"Length of a {name} in characters")
    handles = axes[0].get_legend_handles_labels()
    if handles[0]:
        axes[0].legend(frameon=False, fontsize=8)
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _stacked(axes: Any, rows: Mapping[str, Mapping[str, int]], title: str) -> None:
    names = list(rows)[::-1]
    left = np.zeros(len(names))
    for state in STATES:
        values = np.array([rows[name].get(state, 0) for name in names])
        if values.any():
            axes.barh(range(len(names)), values, left=left, color=COLOURS[state], label=state.replace("_", " "))
            left += values
    axes.set_yticks(
        range(len(names)), [name if len(name) < 40 else f"{name[:38]}…" for name in names], parse_math=False
    )
    axes.set_title(title, loc="left", fontsize=11)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _columns(axes: Any, groups: Mapping[str, Mapping[str, int]], title: str) -> None:
    for number, (name, values) in enumerate(groups.items()):
        places = [int(key) + 0.27 * (number - 1) for key in values]
        axes.bar(places, list(values.values()), 0.25, color=("#2f6fdb", "#f2a33a", "#8b93a3")[number], label=name)
    axes.legend(frameon=False, fontsize=9)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("number in a task", fontsize=9)


def _percentiles(axes: Any, spread: Mapping[str, float], title: str) -> None:
    names = [name for name in spread if name != "mean"]
    bars = axes.bar(range(len(names)), [spread[name] for name in names], color="#2f6fdb")
    axes.bar_label(bars, fmt="{:,.0f}", fontsize=8)
    axes.set_xticks(range(len(names)), names)
    axes.set_title(title, loc="left", fontsize=11)
