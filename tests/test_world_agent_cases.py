"""Cases are data: every requirement traces to a mark, what is wrong is told in one line, and ours are sound."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from world_agent_tools import CASE, tiny_case

from eval.world_agent.cases import known_cases, load
from eval.world_agent.contracts import Relation, settle
from eval.world_agent.engine import TIERS
from eval.world_agent.validate import LIMITS, check_case, check_order
from unify_agent.errors import UserError

OURS = [name for name in known_cases() if "." not in name]
TRANSLATED = [name for name in known_cases() if "." in name]


def test_there_are_nine_cases_in_three_sizes_six_genres_and_two_languages():
    cases = [load(name) for name in OURS]
    assert len(cases) >= 9 and {case.size for case in cases} == {"small", "medium", "large"}
    assert len({case.genre for case in cases}) >= 6
    assert min(len(case.rounds) for case in cases) == 3
    assert any(len(case.rounds) >= 20 and case.events >= 150 for case in cases)
    assert len(TRANSLATED) >= 2 and all(load(name).language == "zh" for name in TRANSLATED)


@pytest.mark.parametrize("name", known_cases())
def test_our_case_is_sound(name):
    """The oracle scores 1.0 in all tiers, an idle player 0, and swapped causes cost what they should."""
    assert check_case(load(name)) == []


@pytest.mark.parametrize("name", TRANSLATED)
def test_a_translation_asks_for_the_same_in_other_words(name):
    case, base = load(name), load(name.partition(".")[0])
    for ours, theirs in zip(case.rounds, base.rounds, strict=True):
        assert (ours.relations, ours.plan, ours.use) == (theirs.relations, theirs.plan, theirs.use)
        assert [event.id for event in ours.events] == [event.id for event in theirs.events]
        assert ours.narrative != theirs.narrative and re.search("[\u4e00-\u9fff]", ours.narrative)
        assert not re.search("[A-Za-z]{2}", ours.narrative)
    assert case.digest != base.digest and case.full.entities.keys() == base.full.entities.keys()


@pytest.mark.parametrize("name", known_cases())
def test_no_player_sees_a_mark_and_every_requirement_has_one(name):
    case = load(name)
    marks = dict(case.marks)
    told = case.facts
    for round_ in case.rounds:
        told += " " + round_.narrative
        marks |= round_.marks
        assert "[" not in round_.narrative
        for group in (round_.events, round_.availability, round_.use, round_.probes, round_.relations):
            for item in group:
                mark = item.id if item.id in marks else item.id.rpartition("_")[0]
                assert marks[mark] in told, f"{item.id} stands in the text so far"


def test_a_tier_gives_what_it_should(tmp_path):
    case = tiny_case(tmp_path)
    given = {tier: case.world(tier) for tier in TIERS}
    assert given["easy"].capabilities and given["easy"].entities and given["easy"].types
    assert not given["hard"].capabilities and given["hard"].entities == given["easy"].entities
    extreme = given["extreme"]
    assert extreme.tiles and not extreme.types and not extreme.entities and not extreme.capabilities


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("title: Two rooms", "titel: Two rooms", "titel"),
        ("size: small", "size: tiny", "size 'tiny'"),
        ("id: tiny", "id: other", "name the file other.yaml"),
        ("[r2: while]", "while", "'r2' traces to nothing"),
        ("[e1: Ann walks into the hall]", "Ann walks", "'e1' traces to nothing"),
        ("[r1: There]", "[x9: There]", "traces to nothing"),
        ("moment.]", "moment.] [x9: More]", "mark 'x9' belongs to no requirement"),
        ("[r5: It", "[e1: It", "mark 'e1' was used before"),
        ("[r5: It takes one moment.]", "[r5: It takes", "a mark is broken"),
        ("CA e1 e2", "CA e1 e9", "is not 'CA a b'"),
        ("CA e1 e2", "CB e1 e2", "is not 'CA a b'"),
        ("duration 1 1", "duration 1", "is not 'CA a b'"),
        ("CA e2 e4", "CA e6 e4", "is not 'CA a b'"),
        ("u1: e4 v1", "u1: e4 v2", "is not 'EVENT NEED'"),
        ("capability wave", "capability waves", "of this case"),
        ("never: bob walk", "never: bob fly", "no capability 'fly'"),
        ("never: bob walk", "never: bob", "is not 'actor capability"),
        ("use: {u1", "since: {e9: 1}\n    use: {u1", "no event 'e9' in this round"),
        ("after: e2", "after: e22", "no event 'e22' so far"),
        ("at: den, name: Ann", "at: dem, name: Ann", "no entity or tile 'dem', did you mean 'den'"),
        ("is: lamp, at: hall", "is: lump, at: hall", "did you mean 'lamp'"),
        ("is: lamp, at: hall", "is: lamp, lit: 3, at: hall", "wanted kind bool"),
        ("at: den, name: Bob", "at: bob, name: Bob", "holds itself"),
        ("to: [hall]", "to: [hell]", "is no tile"),
        ("write: what.lit = lit", "write: what.lit", "is not 'target.field = value'"),
        ("0..9=5", "9..0", "above high"),
        ("calm|glad", "{kind: mood}", "Input should be"),
        ("[0, 0]", "[0]", "at"),
        ("rounds:", "rounds: [", "does not parse"),
    ],
)
def test_a_broken_case_is_told_in_one_line_that_names_the_file(tmp_path, old, new, word):
    assert old in CASE
    with pytest.raises(UserError) as told:
        tiny_case(tmp_path, CASE.replace(old, new, 1))
    assert word in str(told.value) and "tiny.yaml" in str(told.value) and "\n" not in str(told.value)


def test_the_validator_finds_an_unsound_case(tmp_path, monkeypatch):
    monkeypatch.setitem(LIMITS, "small", (1, 1))
    assert check_order(tiny_case(tmp_path)) == []
    late = tiny_case(tmp_path, CASE.replace("TM e5 duration 1 1", "TM e5 duration 2 3"))
    assert any("the oracle fails r5" in each for each in check_case(late))
    wrong = tiny_case(tmp_path, CASE.replace("ann walk to=hall}", "ann walk to=attic}"))
    assert any("reference course is rejected" in each for each in check_case(wrong))
    text = CASE.replace("r1: CA e1 e2,", "r1: TM e1 e2 before,").replace("CA e2 e4", "TM e2 e4 before")
    loose = tiny_case(tmp_path, text)
    assert check_order(loose) == ["no two causally linked batches can change places"]


def test_the_validator_wants_a_case_to_be_as_large_as_it_says(tmp_path):
    assert "too few for size small" in check_case(tiny_case(tmp_path))[0]


@pytest.mark.parametrize(
    ("test", "low", "high", "first", "second", "holds"),
    [
        ("before", None, None, (1, 2), (3, 3), True),
        ("before", None, None, (1, 3), (3, 4), False),
        ("before", None, None, (4, 4), (3, 3), False),
        ("lag", 1, 2, (1, 2), (4, 4), True),
        ("lag", 1, 2, (1, 2), (5, 5), False),
        ("lag", 1, 2, (1, 2), (2, 2), False),
        ("duration", 2, 3, (1, 3), None, True),
        ("duration", 2, 3, (1, 1), None, False),
        ("overlap", None, None, (1, 3), (3, 5), True),
        ("overlap", None, None, (1, 2), (3, 5), False),
        ("same", None, None, (2, 2), (2, 2), True),
        ("same", None, None, (2, 3), (2, 2), False),
    ],
)
def test_relations_follow_from_intervals(test, low, high, first, second, holds):
    relation = Relation("r", "TM", test, "a", "b" if second else None, low, high)
    assert settle(relation, {"a": first, **({"b": second} if second else {})}) is holds
    assert settle(relation, {}) is False, "an absent end fails"


def test_whatever_needs_no_model_of_ours_runs_without_torch(tmp_path):
    lines = [
        ["maintain", "--case", "bakery", "--tier", "hard", "--player", "oracle"],
        ["deduce", "--case", "quay", "--mode", "m2", "--condition", "open", "--fold", "0", "--player", "zero"],
    ]
    lines = [[*line, "--out", str(tmp_path)] for line in lines]
    lines += [["score", str(tmp_path)], ["replay", str(tmp_path)], ["validate", "mill"]]
    code = (
        "import sys\nfrom eval.__main__ import main\nsys.modules['torch'] = None\n"
        f"for line in {lines!r}:\n    sys.argv = ['eval', 'world-agent', *line]\n    assert main() == 0, line\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=known_cases()["mill"].parents[4]).returncode == 0
