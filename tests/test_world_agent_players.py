"""Whatever a player says or names: tools answer in one line, invariants hold, judging goes by meaning, not by ids."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world_agent_tools import CASE, tiny_case, verdicts_of

from eval.world_agent.binding import trigger_of
from eval.world_agent.cases import load
from eval.world_agent.deduce.family import load_family
from eval.world_agent.deduce.validate import check_family, freeze
from eval.world_agent.engine import Engine, replay
from eval.world_agent.judging import ReferenceJudge
from eval.world_agent.maintain import words
from eval.world_agent.policies import Scripted, oracle
from eval.world_agent.rehearse import judged, rehearse
from eval.world_agent.scoring import score
from eval.world_agent.talk import Turn
from eval.world_agent.tools import TOOLS, Tools
from eval.world_agent.validate import LIMITS, check_case
from eval.world_agent.world import Capability, FieldSpec, Tile, World
from unify_agent.judging import FunctionCall
from unify_agent.judging.structured import objects_in

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return tiny_case(tmp_path_factory.mktemp("case"))


def renamed(case, tier):
    """The oracle of a case with names of its own for everything but the map."""
    ids = [*case.full.types, *case.full.entities, *case.full.capabilities]
    pattern = re.compile(r"\b(" + "|".join(sorted(ids, key=len, reverse=True)) + r")\b")
    plain = oracle(case, tier)

    def script(number):
        turns, turn = [], 1
        while (reply := plain.reply(Turn(number, turn, []))).calls:
            turns.append([(call.name, pattern.sub(r"my_\1", call.text)) for call in reply.calls])
            turn += 1
        return turns

    return Scripted("renamed", script)


@pytest.mark.parametrize("name", ["puppets", "freighter"])
def test_a_player_with_names_of_its_own_is_judged_by_what_it_did(name):
    """Tier extreme: the judge that goes by ids finds nothing, one that goes by meaning finds everything."""
    case = load(name)
    plain, own = (rehearse(case, "extreme", player) for player in (oracle(case, "extreme"), renamed(case, "extreme")))
    assert not set(own.world.entities) & set(plain.world.entities)
    assert all(row["accepted"] for row in own.log)
    assert judged(case, own)["total"]["completion"] == "0.0000"
    verdicts = verdicts_of(case, plain, ReferenceJudge(case, plain.log))
    for verdict in verdicts.values():
        if verdict.get("id"):
            verdict["id"] = "my_" + verdict["id"]
    result = score(case, "extreme", own.log, own.snapshots, verdicts)
    assert result["total"]["completion"] == result["total"]["relation"] == "1.0000"


def test_an_event_told_before_it_is_due_may_happen_in_between(tmp_path):
    text = CASE.replace("use: {u1: e4 v1}", "use: {u1: e4 v1}\n    since: {e4: 1}")
    for since, passed in ((text, True), (CASE, False)):
        case = tiny_case(tmp_path, since)
        engine = case.engine("easy")
        for steps in [*case.rounds[0].plan, *case.rounds[1].plan]:
            engine.trigger([trigger_of(step) for step in steps])
        for _ in range(3):
            engine.end_round()
        items = {item["id"]: item for item in judged(case, engine)["rounds"][1]["items"]}
        assert items["e4"]["passed"] is passed


def test_the_example_of_the_guide_is_a_sound_case(tmp_path, monkeypatch):
    guide = (ROOT / "docs" / "world_agent.md").read_text(encoding="utf-8")
    example = re.search(r"```yaml\n(.*?)```", guide, re.DOTALL).group(1)
    path = tmp_path / "lamp.yaml"
    path.write_text(example, encoding="utf-8")
    monkeypatch.setitem(LIMITS, "small", (1, 1))
    assert [each for each in check_case(load(path)) if "sloppy" not in each] == []


def test_the_family_of_the_guide_is_sound(tmp_path):
    guide = (ROOT / "docs" / "world_agent.md").read_text(encoding="utf-8")
    path = tmp_path / "pond.yaml"
    path.write_text(re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)[1], encoding="utf-8")
    freeze(load_family(path))
    assert check_family(load_family(path)) == []


KEYS = st.sampled_from(
    ["id", "fields", "type", "holder", "name", "owner_type", "params", "guard", "write", "target", "field", "op",
     "value", "kind", "values", "batch", "capability", "actor", "args", "part", "ids", "round", "last", "to", "x"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=6)
    | st.sampled_from([10**400, "ann", "bob", "den", "lamp", "walk", "person", "self", "'x'", "ann.mood", "entities"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
ARGUMENTS = st.dictionaries(KEYS, JSON, max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([*TOOLS, "hack"]), ARGUMENTS | st.text(max_size=20)), max_size=8))
def test_no_call_does_anything_but_answer(case, calls):
    engine = case.engine("extreme")
    tools = Tools(case, engine)
    for name, arguments in calls:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        before, rows = engine.world.hash(), len(engine.log)
        answer = json.loads(tools.call(FunctionCall("c", name, text)))
        assert isinstance(answer, dict)
        if "error" in answer:
            assert "\n" not in answer["error"] and engine.world.hash() == before
        if name.startswith(("read", "query")) or name == "hack":
            assert engine.world.hash() == before and len(engine.log) == rows
    saved = json.loads(json.dumps(engine.log))
    again = replay(case.engine("extreme"), saved)
    assert again.log == engine.log and again.world.hash() == engine.world.hash()


@pytest.mark.parametrize(
    "text",
    ['{"last": ' + "1" * 5000 + "}", '{"part": "\\ud800"}', '{"\\ud800": 1}', "[" * 100_000, "NaN", '{"last": NaN}',
     '{"last": 1e400}', '{"part": "overview"', "null", "[]", '"text"'],
)  # fmt: skip
def test_arguments_that_are_no_arguments_are_answered_in_one_line(case, text):
    tools = Tools(case, case.engine("easy"))
    for name in ("query_log", "query_state"):
        answer = tools.call(FunctionCall("c", name, text))
        answer.encode()
        assert "\n" not in json.loads(answer)["error"] and len(answer) < 500


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_examples_that_players_are_shown_are_capabilities(language):
    for tier in ("hard", "extreme"):
        engine = Engine(World({"den": Tile("the den")}), "extreme", 1)
        engine.define_type("gate", {"state": FieldSpec(kind="enum", values=["shut", "open"])})
        engine.define_type("person", {})
        shown = list(objects_in(words(language)[tier]))
        assert len(shown) == 2
        for example in shown:
            assert engine.define_capability(example.pop("id"), Capability.model_validate(example))["accepted"]
