"""Statistics of the report: two-sided Wilcoxon signed-rank on paired runs, Pearson's r over cells (facts 3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from eval.statistics import wilcoxon

Cells = Mapping[Any, float]
"""A value for each cell (a case in a tier, a family in a mode, ...)."""


class Paired(NamedTuple):
    """A paired comparison: cells in both, mean difference first minus second, two-sided p (None: nothing differs)."""

    n: int
    difference: float
    p: float | None


def paired(first: Cells, second: Cells) -> Paired | None:
    """Wilcoxon's signed-rank test over the cells that both have; None without any."""
    shared = sorted(first.keys() & second.keys(), key=str)
    if not shared:
        return None
    differences = [first[cell] - second[cell] for cell in shared]
    return Paired(len(shared), sum(differences) / len(differences), wilcoxon(differences))


def pearson(first: Cells, second: Cells) -> tuple[int, float, float] | None:
    """Cells in both, r and its two-sided p; None with fewer than three cells or where a side is constant."""
    from scipy.stats import pearsonr

    shared = sorted(first.keys() & second.keys(), key=str)
    a, b = [first[cell] for cell in shared], [second[cell] for cell in shared]
    if len(shared) < 3 or len(set(a)) == 1 or len(set(b)) == 1:
        return None
    result = pearsonr(a, b)
    return len(shared), float(result.statistic), float(result.pvalue)


def average(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return sum(values) / len(values) if values else None
