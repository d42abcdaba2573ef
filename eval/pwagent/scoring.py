"""From facts to scores: a pure function, with every ambiguity of the paper as an option (facts/benchmarks.md 2.2).

S1 (equation 3) over Existence facts that failed, penalties 5, 3, 1 by importance: 1.0 when a vital one failed, which
wins over the sum as the equation's order has it (so S1 is not monotone: four failed mediums give 0), else
max(0, 10 - sum), else 10.
S2 (equation 4) over all State facts: 1.0 when a vital one is not satisfied, else 10 sum(rho s I) / sum(rho), where s is
the confidence of a satisfied answer; so a perfect picture seen with confidence 0.9 scores 9.0. Without a State fact
there is nothing to divide by: `NoStateFacts`, never 10 and never another weighting.
S3 (equation 5), whose values are only in a figure: foundation 6 rho / sum(rho) for each satisfied State fact, bonus +1
each for a satisfied fact that the judger cites with evidence (4 at most, none on an expectation whose vital State fact
failed), inconsistency -2 for each pair of known facts; within 0 and 10.
PW = 0.25 S1 + 0.5 S2 + 0.25 S3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from eval.pwagent.roles import Bonus, Inconsistency, Kind

PENALTY = {3: 5.0, 2: 3.0, 1: 1.0}
WEIGHTS = (0.25, 0.5, 0.25)


class NoStateFacts(Exception):
    """A check-list without a State fact: S2 is not defined."""


@dataclass(frozen=True)
class Options:
    """How the paper is read. The defaults are its words, or the reading that facts/benchmarks.md argues for.

    fact_unit: what equations 3 and 4 sum over: each question, or each expectation with one Existence and one State
    sub-fact that holds when all of its questions do. confidence: of such a sub-fact, the least or the mean of its
    answers. gate: a failed Existence question fails the State questions of its expectation unasked.
    """

    fact_unit: Literal["question", "expectation"] = "question"
    confidence: Literal["min", "mean"] = "min"
    gate: Literal["on", "off"] = "on"
    foundation: float = 6.0
    bonus: float = 1.0
    bonus_cap: float = 4.0
    inconsistency: float = 2.0


@dataclass(frozen=True)
class Fact:
    """A question with its answer. `gated`: not asked, because an Existence question of its expectation failed."""

    id: str
    expectation: int
    kind: Kind
    importance: int
    satisfied: bool
    confidence: float
    gated: bool = False


@dataclass(frozen=True)
class Scores:
    """Three layers and their sum, with the vetoes that set a layer to 1.0, and what was not counted of S3's items."""

    s1: float
    s2: float
    s3: float
    pw: float
    flags: tuple[str, ...] = ()
    void: tuple[str, ...] = ()


def merged(facts: Sequence[Fact], options: Options) -> list[Fact]:
    """The facts that equations 3 and 4 sum over."""
    if options.fact_unit == "question":
        return list(facts)
    made = []
    for expectation in dict.fromkeys(fact.expectation for fact in facts):
        for kind in ("Existence", "State"):
            some = [f for f in facts if f.expectation == expectation and f.kind == kind]
            if some:
                sure = [f.confidence for f in some]
                confidence = min(sure) if options.confidence == "min" else sum(sure) / len(sure)
                satisfied = all(f.satisfied for f in some)
                made.append(replace(some[0], satisfied=satisfied, confidence=confidence))
    return made


def layer_1(facts: Sequence[Fact]) -> tuple[float, bool]:
    """(S1, whether a vital fact vetoed it)."""
    failed = [f for f in facts if f.kind == "Existence" and not f.satisfied]
    if any(f.importance == 3 for f in failed):
        return 1.0, True
    return max(0.0, 10.0 - sum(PENALTY[f.importance] for f in failed)), False


def layer_2(facts: Sequence[Fact]) -> tuple[float, bool]:
    """(S2, whether a vital fact vetoed it). Raises NoStateFacts."""
    states = [f for f in facts if f.kind == "State"]
    if not states:
        raise NoStateFacts
    if any(f.importance == 3 and not f.satisfied for f in states):
        return 1.0, True
    reached = sum(f.importance * f.confidence for f in states if f.satisfied)
    return 10.0 * reached / sum(f.importance for f in states), False


def layer_3(
    units: Sequence[Fact],
    facts: Sequence[Fact],
    bonuses: Sequence[Bonus],
    inconsistencies: Sequence[Inconsistency],
    options: Options,
) -> tuple[float, tuple[str, ...]]:
    """(S3, the items that do not count and why). The foundation is that of `units`; items cite the ids of `facts`."""
    known = {f.id: f for f in facts}
    states = [f for f in units if f.kind == "State"]
    failed = {f.expectation for f in states if f.importance == 3 and not f.satisfied}
    weight = sum(f.importance for f in states)
    total = sum(options.foundation * f.importance / weight for f in states if f.satisfied)
    earned, void, cited = 0.0, [], set()
    for bonus in bonuses:
        fact = known.get(bonus.fact)
        if fact is None or not fact.satisfied or not bonus.evidence.strip() or bonus.fact in cited:
            void.append(f"bonus on {bonus.fact}: no satisfied fact with evidence that was not cited before")
        elif fact.expectation in failed:
            void.append(f"bonus on {bonus.fact}: a vital State fact of its expectation failed")
        else:
            cited.add(bonus.fact)
            earned += options.bonus
    total += min(options.bonus_cap, earned)
    pairs = set()
    for each in inconsistencies:
        pair = frozenset(each.facts)
        if len(pair) == 2 and pair <= known.keys() and each.evidence.strip() and pair not in pairs:
            pairs.add(pair)
            total -= options.inconsistency
        else:
            void.append(f"inconsistency of {' and '.join(each.facts)}: not two known facts with evidence that were not "
                        "cited before")  # fmt: skip
    return min(10.0, max(0.0, total)), tuple(void)


def score(
    facts: Sequence[Fact],
    bonuses: Sequence[Bonus] = (),
    inconsistencies: Sequence[Inconsistency] = (),
    options: Options | None = None,
) -> Scores:
    """All scores of one picture. Raises NoStateFacts."""
    options = options or Options()
    units = merged(facts, options)
    s1, veto1 = layer_1(units)
    s2, veto2 = layer_2(units)
    s3, void = layer_3(units, facts, bonuses, inconsistencies, options)
    flags = []
    if veto1:
        flags.append("veto_existence")
    if veto2:
        flags.append("veto_state")
    if s1 < 1.0:
        flags.append("below_veto")  # several mediums cost more than one vital fact: equation 3 is not monotone
    pw = WEIGHTS[0] * s1 + WEIGHTS[1] * s2 + WEIGHTS[2] * s3
    return Scores(s1, s2, s3, pw, tuple(flags), void)
