"""Each proof of `validate` really proves: a case, a family or a scorer that is spoilt in one place is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from world_agent_tools import FAMILY, tiny_case, tiny_family

from eval.world_agent import scoring, validate
from eval.world_agent.cases import known_cases, load
from eval.world_agent.deduce.family import known_families, load_family
from eval.world_agent.deduce.validate import check_family, check_naming, freeze
from eval.world_agent.engine import TIERS
from eval.world_agent.policies import builder, everything, idle, oracle, sloppy
from eval.world_agent.rehearse import judged, rehearse
from eval.world_agent.validate import LIMITS, check_case, check_order, check_probes
from unify_agent.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
OURS = [name for name in known_cases() if "." not in name]


def copied(folder: Path, name: str, old: str, new: str) -> Path:
    """A case of ours with one place changed."""
    text = known_cases()[name].read_text(encoding="utf-8")
    assert old in text
    path = folder / f"{name}.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "old", "new", "word"),
    [
        ("mill", "r8: CA e9 e10", "r8: CA e10 e9", "the oracle fails r8"),
        ("mill", "TM e9 duration 2 2", "TM e9 duration 3 3", "the oracle fails r7"),
        ("mill", "r4: CC e5 e6 same", "r4: CC e4 e6 same", "the oracle fails r4"),
        ("mill", "jory walk to=green}", "jory walk to=bridge}", "the oracle fails e3"),
        ("mill", "u1: e9 v1", "u1: e8 v1", "the oracle fails u1"),
        ("mill", "sorrel.level += by", "sorrel.level += by * 3", "is rejected"),
        ("mill", "pell walk to=mill", "jory walk to=mill", "both write jory.holder"),
        ("mill", 'never: "* walk to=bridge"', 'never: "sluice walk to=bridge"', "nobody can break 'p1'"),
        ("mill", 'never: "* hand what=key"', 'never: "* hand what=key to=nobody"', "nobody can break 'p2'"),
        ("mill", 'p2: {after: e10, until: e11, never: "* hand what=key"}',
         'p2: {after: e10, until: e16, never: "* walk to=green"}', "the oracle fails p2"),
        ("mill", "size: small", "size: medium", "too few for size medium"),
    ],
)  # fmt: skip
def test_a_case_of_ours_that_is_spoilt_in_one_place_is_refused(tmp_path, name, old, new, word):
    assert any(word in each for each in check_case(load(copied(tmp_path, name, old, new))))


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("[e10: the Sorrel falls by three]", "the Sorrel falls by three", "'e10' traces to nothing"),
        ("[v1: Gates are things\n      that a person can turn]", "Gates turn", "'v1' traces to nothing"),
        ("[r1: Seeing it]", "[r1: Seeing it] [r99: and more]", "mark 'r99' belongs to no requirement"),
    ],
)
def test_a_requirement_that_nothing_tells_is_refused(tmp_path, old, new, word):
    with pytest.raises(UserError, match=word):
        load(copied(tmp_path, "mill", old, new))


def test_the_order_proof_notices_a_scorer_that_is_too_mild_or_too_hard(tmp_path, monkeypatch):
    case = tiny_case(tmp_path)
    assert check_order(case) == []
    with monkeypatch.context() as patch:
        patch.setattr(scoring, "settle", lambda relation, intervals: True)
        assert any("[] fail" in each for each in check_order(case))
    whole = scoring.settle
    with monkeypatch.context() as patch:
        patch.setattr(scoring, "settle", lambda each, intervals: each.kind != "CC" and whole(each, intervals))
        assert check_order(case) != []


def test_the_probe_proof_notices_a_scorer_that_forgives(tmp_path, monkeypatch):
    case = tiny_case(tmp_path)
    assert check_probes(case) == []
    monkeypatch.setattr(validate.judged.__globals__["ReferenceJudge"], "verdict", forgiving)
    assert check_probes(case) == ["round 3: nobody can break 'p1', or breaking it costs nothing"]


def forgiving(self, question):
    """A judge that sees no violation."""
    plain = {"bound": bool(self.bound.get(question.item)), "reason": ""}
    plain["trigger_ids"] = [done.id for done in self.bound.get(question.item, [])]
    return plain if question.kind == "event" else {"antecedent_holds": True, "violated": False, "evidence": []}


def test_an_oracle_that_is_not_perfect_in_some_tier_and_an_idler_that_is_not_nothing_are_told(tmp_path, monkeypatch):
    monkeypatch.setitem(LIMITS, "small", (1, 1))
    case = tiny_case(tmp_path)
    monkeypatch.setattr(validate, "oracle", lambda case, tier: (sloppy if tier == "hard" else oracle)(case, tier))
    found = check_case(case)
    assert any(each.startswith("tier hard: the oracle fails") for each in found)
    assert not any(each.startswith(("tier easy: the oracle", "tier extreme: the oracle")) for each in found)
    monkeypatch.setattr(validate, "idle", oracle)
    assert "tier easy: an idle player completes 1.0000" in check_case(case)
    monkeypatch.setattr(validate, "sloppy", oracle)
    assert "tier extreme: a sloppy player loses nothing" in check_case(case)


# -- families


def test_a_frozen_timeline_that_was_edited_is_refused(tmp_path):
    for suffix in (".yaml", ".timeline.json"):
        source = known_families()["quay"].with_name(f"quay{suffix}")
        (tmp_path / source.name).write_bytes(source.read_bytes())
    file = tmp_path / "quay.timeline.json"
    timeline = json.loads(file.read_text())
    path = next(iter(timeline[3][2]))
    timeline[3][2][path] = 1
    file.write_text(json.dumps(timeline))
    assert any("not the frozen timeline" in each for each in check_family(load_family(tmp_path / "quay.yaml")))


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("about: The roof drips into the tub.", "about: tub.water += roof.hole + sky.load", "the formula"),
        ("about: A full tub wets the cat.", "about: A tub over 20 wets the cat.", "holds a number"),
        ("about: water in the tub", "about: water in the tub of 40", "holds a number"),
        ("about: the tub has room", "about: the tub is below 30", "holds a number"),
        ("intro: A tub under", "intro: A tub of 40 under", "holds a number"),
        ("about: the cat}", "about: the cat under a sky.load}", "the hidden field 'sky.load' shows"),
    ],
)
def test_a_family_whose_words_give_away_what_naming_hides_is_refused(tmp_path, old, new, word):
    assert old in FAMILY and check_naming(tiny_family(tmp_path)) == []
    assert any(word in each for each in check_naming(tiny_family(tmp_path, FAMILY.replace(old, new, 1))))


def test_a_family_that_a_player_without_rules_can_predict_is_refused(tmp_path):
    """Water that rises by the same amount in every unit: the last change once more is the answer."""
    text = FAMILY.replace("t % 2 == 0 and tub.water > 4", "t > 99").replace("every: 4, ", "when: t > 99, ")
    text = re.sub("plan: .*", "plan: [wait]", text)
    family = tiny_family(tmp_path, text)
    freeze(family)
    found = check_family(tiny_family(tmp_path, text))
    assert any("'repeat', which knows no rule, scores" in each and "interval" in each for each in found)


def test_an_action_that_is_never_possible_is_told(tmp_path):
    family = tiny_family(tmp_path, FAMILY.replace("when: tub.water >= 5", "when: tub.water > 99"))
    assert "action 'bail' is never possible" in check_family(family)


# -- no cheap way to a good score


@pytest.mark.parametrize("name", OURS)
def test_doing_nothing_building_everything_and_trying_everything_score_little(name):
    case = load(name)
    for tier in TIERS:
        for make, most in ((idle, "0.0000"), (builder, "0.0600")):
            total = judged(case, rehearse(case, tier, make(case, tier)))["total"]
            assert total["completion"] <= most and total["relation"] == "0.0000"
    careless = judged(case, rehearse(case, "easy", sloppy(case, "easy")))["total"]
    frantic = judged(case, rehearse(case, "easy", everything(case, "easy")))["total"]
    assert frantic["completion"] < "0.4000" < careless["completion"] < "0.9000"
    assert frantic["relation"] < "0.1500" and careless["relation"] < "0.5000"


# -- the acceptance list


def test_the_guide_names_a_test_for_each_point_of_the_acceptance_list():
    guide = (ROOT / "docs" / "world_agent.md").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+)`", guide.partition("## What is proved")[2])
    written = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").glob("test_world_agent_*.py"))
    assert len(named) >= 14 and [name for name in named if f"def {name}(" not in written] == []
