"""Field-level F1 and what else is read off an episode (facts/benchmarks.md 3.7). Exact fractions throughout."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from eval.world_agent.deduce.questions import AHEAD, Prediction, Question
from eval.world_agent.deduce.simulation import changes, truth
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


def readout_values(
    question: Question, event: Mapping[str, Any], said: Prediction
) -> dict[str, tuple[Fraction, Fraction]]:
    """Each readout of a question: F1, and F1 of the paths alone (of rules: of which fired, however often)."""
    start = question.world.seen()
    wanted = changes(start, event["seen"])
    main = "segment" if question.mode == "m1" else "interval"
    found: dict[str, tuple[Fraction, Fraction]] = {
        main: (field_f1(said.changes, wanted), path_f1(said.changes, wanted)),
        "rules": (field_f1(said.fired, event["fired"]), path_f1(said.fired, event["fired"])),
    }
    if question.deep:
        ahead = truth(question.world, question.t0 + AHEAD, said.action)
        other = truth(question.world, question.t1, question.alternative)
        assert said.lookahead is not None and said.counterfactual is not None
        found["lookahead"] = field_f1(said.lookahead, ahead), path_f1(said.lookahead, ahead)
        found["counterfactual"] = field_f1(said.counterfactual, other), path_f1(said.counterfactual, other)
    return found


def asked_of(question: Question) -> list[str]:
    """The readouts that a question asks for."""
    main = ["segment" if question.mode == "m1" else "interval", "rules"]
    return main + (["lookahead", "counterfactual"] if question.deep else [])
