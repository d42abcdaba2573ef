"""Verdicts are checked against the log; what was frozen stays; scores come from saved records alone."""

from __future__ import annotations

from fractions import Fraction

import pytest
from world_agent_tools import fire, tiny_case, verdicts_of

from eval.world_agent.judging import ReferenceJudge
from eval.world_agent.policies import POLICIES, follow
from eval.world_agent.rehearse import judged, rehearse
from eval.world_agent.scoring import decimal, score
from eval.world_agent.world import Capability


@pytest.fixture
def case(tmp_path):
    return tiny_case(tmp_path)


def played(case, *rounds, tier="easy"):
    """An engine after rounds of batches."""
    engine = case.engine(tier)
    for batches in (*rounds, *[[]] * (len(case.rounds) - len(rounds))):
        for batch in batches:
            engine.trigger(batch)
        engine.end_round()
    return engine


def items(result):
    return {item["id"]: item for round_ in result["rounds"] for item in round_["items"]}


ONE = [[fire("ann", "walk", to="hall")], [fire("ann", "light", what="lamp", lit=True), fire(None, "dim", by=-1)]]
TWO = [[fire("ann", "wave", whom="bob")]]
THREE = [[fire("ann", "walk", to="den")], [fire("bob", "wave", whom="ann")]]


def test_the_reference_course_scores_one(case):
    result = judged(case, played(case, ONE, TWO, THREE))
    assert result["total"]["completion"] == result["total"]["relation"] == "1.0000"
    assert result["total"]["components"]["A"] == {"passed": 1, "of": 1, "share": "1.0000"}, "easy: use alone"
    assert result["derailed"] == [] and result["crash"] is False


def test_a_late_repair_does_not_mend_a_frozen_round(case):
    late = judged(case, played(case, ONE[:1], [*ONE[1:], *TWO], THREE))
    found = items(late)
    assert not found["e2"]["passed"] and not found["e3"]["passed"]
    assert found["e4"]["passed"] and not found["r3"]["passed"], "the relation's cause is absent for good"


def test_a_failed_relation_does_not_lower_completion(case):
    result = judged(case, played(case, ONE[::-1], TWO, THREE))
    assert result["total"]["completion"] == "1.0000"
    assert not items(result)["r1"]["passed"] and result["total"]["relation"] != "1.0000"


def test_an_absent_end_fails_the_relation_while_completion_counts_the_event_alone(case):
    found = items(judged(case, played(case, ONE, [], THREE)))
    assert not found["r3"]["passed"] and found["r3"]["reason"] == "absent: e4"
    assert found["e2"]["passed"]


def test_a_matching_final_state_alone_binds_nothing(case):
    engine = played(case, ONE, TWO, [[fire("ann", "wave", whom="bob")]])
    world = case.world("easy")
    assert world.entities["ann"].holder == "den", "as e5 wants it, but nobody walked there in this world"
    assert not items(judged(case, engine))["e5"]["passed"]


VERDICT = {"bound": True, "trigger_ids": [], "reason": "so it seems"}


@pytest.mark.parametrize(
    ("cited", "word"),
    [
        ([], "names no trigger"),
        (["t1.1"], "no accepted trigger of rounds 1 to 1"),
        (["t99.1"], "no accepted trigger"),
        (["t7.1"], "no accepted trigger of rounds 1 to 1"),
        (["t2.1"], "brings lamp.lit = True"),
        (["t3.2"], "brings lamp.lit = True"),
    ],
)
def test_a_judge_that_cites_what_does_not_count_is_refused(case, cited, word):
    """t1 is a rejected batch, t7 a later round's, t2 another trigger, t3.2 the dimming of the lamp."""
    engine = played(case, [[fire("ann", "walk", to="moon")], *ONE], TWO, THREE)
    assert not engine.log[0]["accepted"] and engine.log[6]["kind"] == "trigger" and engine.log[6]["round"] == 3
    verdicts = verdicts_of(case, engine, ReferenceJudge(case, engine.log))
    verdicts["e1"] = {**VERDICT, "bound": False}
    verdicts["e3"] = {**VERDICT, "bound": False}
    verdicts["e2"] = {**VERDICT, "trigger_ids": cited}
    found = items(score(case, "easy", engine.log, engine.snapshots, verdicts))["e2"]
    assert not found["passed"] and found["reason"].startswith("refused") and word in found["reason"]


def test_one_trigger_realises_one_event(case):
    engine = played(case, ONE, TWO, THREE)
    verdicts = verdicts_of(case, engine, ReferenceJudge(case, engine.log))
    verdicts["e6"] = {**VERDICT, "trigger_ids": verdicts["e5"]["trigger_ids"]}
    assert "already realises e5" in items(score(case, "easy", engine.log, engine.snapshots, verdicts))["e6"]["reason"]


def test_a_write_that_changes_nothing_realises_no_change(case):
    engine = played(case, [*ONE, ONE[1][:1]], TWO, THREE)
    verdicts = verdicts_of(case, engine, ReferenceJudge(case, engine.log))
    verdicts["e2"] = {**VERDICT, "trigger_ids": ["t3.1"]}
    assert not items(score(case, "easy", engine.log, engine.snapshots, verdicts))["e2"]["passed"]


def test_a_broken_prohibition_counts_and_one_never_in_force_does_not(case):
    broken = judged(case, played(case, ONE, [*TWO, [fire("bob", "walk", to="hall")]], THREE))
    assert items(broken)["p1"]["passed"] is False and "broken by" in items(broken)["p1"]["reason"]
    assert "p1" not in items(judged(case, played(case, [], TWO, THREE)))
    assert items(judged(case, played(case, ONE, TWO, THREE)))["p1"]["passed"] is True


@pytest.mark.parametrize("cited", [[], ["t77.1"], ["t1.1"], ["t2.1"]])
def test_a_violation_without_valid_evidence_is_not_believed(case, cited):
    """No trigger, none that exists, one from before the prohibition, the very one that brought it into force."""
    engine = played(case, ONE, TWO, THREE)
    verdicts = verdicts_of(case, engine, ReferenceJudge(case, engine.log))
    verdicts["p1"] = {"antecedent_holds": True, "violated": True, "evidence": cited, "reason": ""}
    assert items(score(case, "easy", engine.log, engine.snapshots, verdicts))["p1"]["passed"] is True


def test_an_open_question_leaves_no_total_and_no_zero(case):
    engine = played(case, ONE, TWO, THREE)
    verdicts = verdicts_of(case, engine, ReferenceJudge(case, engine.log))
    del verdicts["e4"]
    result = score(case, "easy", engine.log, engine.snapshots, verdicts)
    assert result["total"] is None
    assert result["unresolved"] == ["e4", "u1", "r3"], "and what depends on it"
    assert result["rounds"][1]["completion"] is None and result["rounds"][0]["completion"] == "1.0000"
    verdicts = verdicts_of(case, engine, ReferenceJudge(case, engine.log))
    del verdicts["e3"]
    first = score(case, "easy", engine.log, engine.snapshots, verdicts)["rounds"][0]
    assert first["completion"] is None and first["relation"] is None, "what is answered beside it makes no mean"


def test_structure_must_be_built_and_used_where_it_is_not_given(case):
    engine = case.engine("hard")
    plan = [each.plan for each in case.rounds]
    whole = rehearse(case, "hard", follow(case, "hard", plan, "x"))
    assert items(judged(case, whole))["v1"]["passed"] and items(judged(case, whole))["u1"]["passed"]
    for name in ("walk", "light", "dim"):
        engine.define_capability(name, case.full.capabilities[name])
    for batch in ONE:
        engine.trigger(batch)
    engine.end_round()
    engine.define_capability("wave", Capability.model_validate(case.full.capabilities["wave"].model_dump()))
    for batches in (TWO, THREE):
        for batch in batches:
            engine.trigger(batch)
        engine.end_round()
    found = items(judged(case, engine))
    assert not found["v1"]["passed"], "it had to be there at the end of round 1"
    assert found["e4"]["passed"] and not found["u1"]["passed"], "what was never there cannot have been used"


def test_the_tiers_of_scripted_players_stand_in_the_right_order(case):
    totals = {
        name: Fraction(judged(case, rehearse(case, "easy", make(case, "easy")))["total"]["completion"])
        for name, make in POLICIES.items()
    }
    assert totals["oracle"] == 1 > totals["sloppy"] > totals["idle"] == totals["adversarial"] == 0


def test_a_run_that_falls_silent_derails_to_the_end(case):
    result = judged(case, played(case, ONE))
    assert result["derailed"] == [2, 3] and result["crash"] is True
    assert judged(case, played(case, ONE, [], THREE))["crash"] is False


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, None), (Fraction(0), "0.0000"), (Fraction(1), "1.0000"), (Fraction(2, 3), "0.6667"),
     (Fraction(1, 20000), "0.0001"), (Fraction(1, 20001), "0.0000")],
)  # fmt: skip
def test_shares_are_written_with_four_decimals_half_up(value, text):
    assert decimal(value) == text
