"""Field-level F1 and what else is read off an episode (facts/benchmarks.md 3.7). Exact fractions throughout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from eval.world_agent.expressions import Scalar, same

READOUTS = ("segment", "interval", "lookahead", "counterfactual", "rules")
"""The five readouts: fixed segments of M1, intervals of M2, 48 units ahead, another action's outcome, fired rules."""


def f1(hits: int, predicted: int, wanted: int) -> Fraction:
    """2PR / (P + R); 1 when both sets are empty, 0 when one is."""
    if predicted + wanted == 0:
        return Fraction(1)
    return Fraction(2 * hits, predicted + wanted)


def field_f1(predicted: Mapping[str, Scalar], wanted: Mapping[str, Scalar]) -> Fraction:
    """F1 of changes: the same path and an equal value, type-strict (1, true and '1' are three values)."""
    hits = sum(path in wanted and same(value, wanted[path]) for path, value in predicted.items())
    return f1(hits, len(predicted), len(wanted))


def path_f1(predicted: Mapping[str, Scalar], wanted: Mapping[str, Scalar]) -> Fraction:
    """F1 of the paths alone: where, apart from what."""
    return f1(len(predicted.keys() & wanted.keys()), len(predicted), len(wanted))


def set_f1(predicted: Iterable[str], wanted: Iterable[str]) -> Fraction:
    """F1 of two sets of ids."""
    a, b = set(predicted), set(wanted)
    return f1(len(a & b), len(a), len(b))
