"""From items to totals. A total is a number only when every item is resolved; else it is the interval between the
worst and the best that the unresolved and missing ones could be.

Every total is linear in the items' scores, so it is a set of weights: 1 / n, 1 / (categories x n of the category), or
the benchmark's share of the category / n of the category. Where the main score is made of the means of other measures
(`Benchmark.composed`), that holds for each of them. The 95 % intervals resample items.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from eval.benchmarks.base import Benchmark, Item, Measure, mean_of
from eval.scoring import Result

DRAWS = 2000
Level = Literal["category", "group", "total"]


@dataclass(frozen=True)
class Total:
    """One cell of a table. `value` is None while something is unresolved; it lies within `low` and `high` then.

    n: items, resolved: of them ok. ci_low, ci_high: 95 % interval over items, None for fewer than two.
    """

    level: Level
    name: str
    measure: str
    value: float | None
    low: float
    high: float
    n: int
    resolved: int
    ci_low: float | None = None
    ci_high: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {key: round(value, 6) if isinstance(value, float) else value for key, value in asdict(self).items()}


def weights(items: Sequence[Item], mean: str | Mapping[str, float]) -> dict[str, float] | None:
    """Item -> its weight in the mean over all of them. None where a category that the mean needs has no item."""
    sizes = Counter(item.category for item in items)
    if mean == "items":
        return {item.id: 1 / len(items) for item in items}
    if mean == "categories":
        return {item.id: 1 / (len(sizes) * sizes[item.category]) for item in items}
    assert isinstance(mean, Mapping)
    if set(sizes) != set(mean):
        return None
    return {item.id: mean[item.category] / sizes[item.category] for item in items}


def totals(benchmark: Benchmark, items: Sequence[Item], results: Sequence[Result]) -> list[Total]:
    """Every level of every measure: categories, groups where there are any, the total."""
    by_id = {result.id: result for result in results}
    made: list[Total] = []
    for level, name, members, mean in _levels(benchmark, items):
        if benchmark.composed and level != "category":
            made += composed(benchmark, level, name, members, by_id)
        else:
            made += _linear(benchmark, level, name, members, mean, by_id)
    return made


def _linear(
    benchmark: Benchmark, level: Level, name: str, items: Sequence[Item], mean: str | Mapping[str, float],
    results: Mapping[str, Result],
) -> list[Total]:  # fmt: skip
    made = []
    for measure in benchmark.measures:
        some = [item for item in items if benchmark.applies(item, measure.name) and _has(results[item.id], measure)]
        weighed = weights(some, mean) if some else None
        if weighed is not None:
            made.append(_total(level, name, measure, some, weighed, results, mean != "items"))
    return made


def _has(result: Result, measure: Measure) -> bool:
    """Whether the item has the measure, as far as it is known: what it was judged not to have is in no mean."""
    return result.status != "ok" or measure.name in result.scores


def composed(
    benchmark: Benchmark, level: Level, name: str, items: Sequence[Item], results: Mapping[str, Result]
) -> list[Total]:
    """The totals of a group, or of all groups, whose main score is made of the means of other measures."""
    groups: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        groups[item.group].append(item)
    if level == "total" and set(groups) != set(benchmark.composed_of):
        return []
    main = benchmark.measures[0]
    parts = [
        {t.measure: t for t in _linear(benchmark, level, name, some, "items", results)} for some in groups.values()
    ]

    def mean(bound: str, measure: str) -> float:
        return mean_of([getattr(part[measure], bound) if measure in part else benchmark.absent for part in parts])

    made = []
    complete = all(results[item.id].status == "ok" for item in items)
    for measure in benchmark.measures:
        weighed = benchmark.composed if measure is main else {measure.name: 1.0}
        low, high = (sum(w * mean(bound, m) for m, w in weighed.items()) for bound in ("low", "high"))
        n, resolved = (sum(getattr(p[measure.name], key) for p in parts if measure.name in p)
                       for key in ("n", "resolved"))  # fmt: skip
        ci = _composed_interval(benchmark, weighed, list(groups.values()), results) if complete else (None, None)
        if n:
            made.append(Total(level, name, measure.name, low if complete else None, low, high, n, resolved, *ci))
    return made


def _composed_interval(
    benchmark: Benchmark, weighed: Mapping[str, float], groups: Sequence[Sequence[Item]], results: Mapping[str, Result]
) -> tuple[float, float] | tuple[None, None]:
    """95 % bootstrap interval over items, resampled within their groups; the seed is fixed."""
    if min(len(some) for some in groups) < 2:
        return None, None
    random = np.random.Generator(np.random.Philox(0))
    sums = np.zeros(DRAWS)
    for some in groups:
        drawn = random.integers(len(some), size=(DRAWS, len(some)))
        for measure, weight in weighed.items():
            scores = np.array([results[item.id].scores.get(measure, np.nan) for item in some])[drawn]
            there = ~np.isnan(scores)
            means = np.where(there, scores, 0).sum(1) / np.maximum(there.sum(1), 1)
            sums += weight * np.where(there.any(1), means, benchmark.absent)
    low, high = np.quantile(sums / len(groups), [0.025, 0.975])
    return float(low), float(high)


def _levels(
    benchmark: Benchmark, items: Sequence[Item]
) -> list[tuple[Level, str, list[Item], str | Mapping[str, float]]]:
    categories: dict[str, list[Item]] = defaultdict(list)
    groups: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        categories[item.category].append(item)
        if item.group and item.group != item.category:
            groups[item.group].append(item)
    levels: list[tuple[Level, str, list[Item], str | Mapping[str, float]]] = [
        ("category", name, some, "items") for name, some in categories.items()
    ]
    levels += [("group", name, some, benchmark.group_mean) for name, some in groups.items()]
    if benchmark.overall:
        levels.append(("total", "Total", list(items), benchmark.mean))
    if benchmark.macro:
        levels.append(("total", "Mean of categories", list(items), "categories"))
    return levels


def _total(
    level: Level,
    name: str,
    measure: Measure,
    items: Sequence[Item],
    weighed: Mapping[str, float],
    results: Mapping[str, Result],
    stratified: bool,
) -> Total:
    low = high = 0.0
    values = {}
    for item in items:
        result = results[item.id]
        if result.status == "ok":
            values[item.id] = result.scores[measure.name]
        low += weighed[item.id] * values.get(item.id, measure.low)
        high += weighed[item.id] * values.get(item.id, measure.high)
    complete = len(values) == len(items)
    ci = interval(items, values, weighed, stratified) if complete else (None, None)
    return Total(level, name, measure.name, low if complete else None, low, high, len(items), len(values), *ci)


def interval(
    items: Sequence[Item],
    values: Mapping[str, float],
    weighed: Mapping[str, float],
    stratified: bool,
    draws: int = DRAWS,
) -> tuple[float, float] | tuple[None, None]:
    """95 % bootstrap interval of a weighted mean over resampled items; the seed is fixed.

    `stratified`: items are resampled within their categories, as a mean over categories needs. (None, None) where a
    single item would have to stand for its variation.
    """
    random = np.random.Generator(np.random.Philox(0))
    strata: dict[str, list[float]] = defaultdict(list)
    for item in items:
        stratum = item.category if stratified else ""
        strata[stratum].append(len(items) * weighed[item.id] * values[item.id])
    if min(len(some) for some in strata.values()) < 2:
        return None, None
    sums = np.zeros(draws)
    for some in strata.values():
        sums += np.asarray(some)[random.integers(len(some), size=(draws, len(some)))].sum(1)
    low, high = np.quantile(sums / len(items), [0.025, 0.975])
    return float(low), float(high)


def noise(benchmark: Benchmark, items: Sequence[Item], results: Sequence[Result]) -> dict[str, Any] | None:
    """How much the judge differs from itself over repeats of the main score; None without repeats.

    agreement: share of items with the same score each time; item_sd: mean standard deviation of an item; total_sd: the
    standard deviation that this leaves in the total.
    """
    name = benchmark.measures[0].name
    repeated = {r.id: [scores[name] for scores in r.repeats] for r in results if r.status == "ok" and r.repeats}
    if not repeated:
        return None
    deviations = {item_id: float(np.std(scores, ddof=1)) for item_id, scores in repeated.items()}
    count = len(next(iter(repeated.values())))
    weighed = weights(items, benchmark.mean) if benchmark.overall and not benchmark.composed else None
    variance = None
    if weighed is not None and len(repeated) == len(items):
        variance = sum(weighed[item_id] ** 2 * sd**2 / count for item_id, sd in deviations.items())
    return {
        "repeats": count,
        "agreement": round(sum(len(set(s)) == 1 for s in repeated.values()) / len(repeated), 6),
        "item_sd": round(sum(deviations.values()) / len(deviations), 6),
        "total_sd": None if variance is None else round(variance**0.5, 6),
    }
