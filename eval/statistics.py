"""Two models on the same items: differences with intervals, paired tests, what flipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from eval.benchmarks.base import Item, Measure
from eval.totals import interval


@dataclass(frozen=True)
class Paired:
    """B less A over `n` items. p values are two-sided and not corrected for the number of rows that are looked at.

    wilcoxon: signed ranks of the differences; mcnemar: exact, of which items pass (reach the mark that is asked for).
    """

    n: int
    a: float
    b: float
    difference: float
    low: float | None
    high: float | None
    wilcoxon: float | None
    mcnemar: float | None
    gained: int
    lost: int

    def as_dict(self) -> dict[str, Any]:
        return {key: round(value, 6) if isinstance(value, float) else value for key, value in asdict(self).items()}


def paired(
    items: Sequence[Item],
    a: Mapping[str, float],
    b: Mapping[str, float],
    weighed: Mapping[str, float],
    stratified: bool,
    at: float,
) -> Paired:
    """Compares the scores of `items`, all of which both have. `weighed`: each item's weight, of sum 1.

    `stratified`: the mean is one over categories. `at`: the score from which an item passes.
    """
    difference = {item.id: b[item.id] - a[item.id] for item in items}
    low, high = interval(items, difference, weighed, stratified)
    gained = sum(a[i] < at <= b[i] for i in difference)
    lost = sum(b[i] < at <= a[i] for i in difference)
    mean_a, mean_b = (sum(weighed[i] * scores[i] for i in difference) for scores in (a, b))
    return Paired(
        len(items), mean_a, mean_b, mean_b - mean_a, low, high, wilcoxon(list(difference.values())),
        mcnemar(gained, lost), gained, lost,
    )  # fmt: skip


def wilcoxon(differences: Sequence[float]) -> float | None:
    """p of the signed-rank test, zeros dropped, ties averaged; None when nothing differs."""
    from scipy.stats import wilcoxon as test

    some = [d for d in np.round(differences, 9) if d != 0]
    return float(test(some).pvalue) if some else None


def mcnemar(gained: int, lost: int) -> float | None:
    """p of the exact test on items that pass for one model only; None when there are none."""
    from scipy.stats import binomtest

    return float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else None


def middle(measure: Measure) -> float:
    """Where an item passes unless another mark is given: the middle of the scale, reached by a binary 1."""
    return (measure.low + measure.high) / 2
