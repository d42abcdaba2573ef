"""Whatever is sent, said or written: no batch, answer or file breaks an invariant or ends in a traceback."""

from __future__ import annotations

import ast
import contextlib
import json
from pathlib import Path

import pytest
from chat_server import ChatServer, Reply
from hypothesis import given, settings
from hypothesis import strategies as st
from world_agent_tools import CASE, FAMILY, fire, tiny_case, tiny_engine, tiny_family, verdicts_of

from eval.world_agent import maintain as maintenance
from eval.world_agent.chat import ChatPlayer
from eval.world_agent.deduce import episode as deduction
from eval.world_agent.deduce.baselines import baseline
from eval.world_agent.deduce.episode import Episode, score_episode
from eval.world_agent.deduce.questions import Problem, Walk, read_answer
from eval.world_agent.engine import Engine, replay
from eval.world_agent.judging import ReferenceJudge
from eval.world_agent.maintain import Game, maintain, replay_run
from eval.world_agent.scoring import score
from eval.world_agent.talk import calls_in
from eval.world_agent.tools import Tools
from eval.world_agent.world import Capability, FieldSpec, Refusal, Tile, World, Write
from unify_agent.errors import UserError
from unify_agent.judging import ChatClient, Endpoint, FunctionCall

ROOT = Path(__file__).resolve().parents[1]

# -- fuzzing

IDS = ["ann", "bob", "lamp", "den", "hall", "walk", "light", "dim", "wave", "person", "self", "nobody", ""]
WORDS = st.sampled_from(["capability", "actor", "args", "batch", "to", "what", "lit", "by", "whom", "write"])
PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(IDS)
    | st.sampled_from([10**18, -(10**30), 2**63, 1.0, -0.0, "\u0000", "\u202e", "é" * 40, "\U0001f600", "'x'"])
)  # fmt: skip
ANY = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(), inner))
NEAR = st.fixed_dictionaries(
    {"capability": st.sampled_from(["walk", "light", "dim", "wave"]) | ANY},
    optional={
        "actor": st.sampled_from(["ann", "bob", "lamp"]) | ANY,
        "args": st.dictionaries(st.sampled_from(["to", "what", "lit", "by", "whom"]), PLAIN, max_size=3) | ANY,
        "more": ANY,
    },
)
GOOD = st.sampled_from(
    [{"capability": "walk", "actor": who, "args": {"to": to}} for who in ("ann", "bob") for to in ("den", "hall")]
    + [{"capability": "dim", "args": {"by": by}} for by in (-1, 1)]
    + [{"capability": "wave", "actor": "ann", "args": {"whom": "bob"}}]
)
BATCHES = st.lists(GOOD, min_size=1, max_size=3) | st.lists(GOOD | NEAR | ANY, max_size=4) | ANY
DEEP = st.integers(1, 5000).map(lambda n: '{"batch": ' + "[" * n + "]" * n + "}")


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return tiny_case(tmp_path_factory.mktemp("case"))


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return tiny_family(tmp_path_factory.mktemp("family"))


@settings(max_examples=200, deadline=None)
@given(st.lists(BATCHES.map(lambda batch: json.dumps({"batch": batch})) | DEEP | st.text(max_size=30), max_size=8))
def test_no_json_that_stands_where_a_batch_should_breaks_an_invariant(case, texts):
    """Atomicity, acyclic holders, one write a trigger, Step only on acceptance, replay equal to the run."""
    engine = case.engine("easy")
    tools = Tools(case, engine)
    for text in texts:
        before, step, rows = engine.world.hash(), engine.world.step, len(engine.log)
        answer = json.loads(tools.call(FunctionCall("c", "trigger", text)))
        accepted = answer.get("accepted") is True
        assert engine.world.step == step + accepted and engine.world.cycle() is None
        assert accepted or (engine.world.hash() == before and "\n" not in answer["error"])
        for row in engine.log[rows:]:
            writes = [item["write"]["path"] for item in row["batch"] if item["write"]]
            assert row["accepted"] is accepted and len(set(writes)) == len(writes) <= len(row["batch"])
            assert row["state_hash"] == engine.world.hash()
    again = replay(case.engine("easy"), json.loads(json.dumps(engine.log)))
    assert again.log == engine.log and again.world.hash() == engine.world.hash()


ANSWERS = st.fixed_dictionaries(
    {}, optional={
        "changes": st.dictionaries(st.sampled_from(["tub.water", "cat.mood", "x"]), PLAIN) | ANY,
        "fired": st.dictionaries(st.sampled_from(["dripping", "rotting", "x"]), PLAIN) | ANY,
        "action": st.sampled_from(["wait", "bail", "patch with=tin"]) | ANY
        | st.fixed_dictionaries({"action": st.just("patch"), "args": ANY}),
        "lookahead": st.fixed_dictionaries({"changes": ANY}) | ANY, "counterfactual": ANY, "nothing_changes": ANY,
    },
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(ANSWERS.map(json.dumps) | st.text(max_size=40), st.sampled_from(["m1", "m2"]))
def test_no_answer_does_anything_but_predict_or_name_its_problem(family, text, mode):
    question = Walk(family, mode, 0).question()
    said = None
    with contextlib.suppress(Problem):
        said = read_answer(text, question)
    if said is not None:
        assert {type(value) for value in said.changes.values()} <= {int, bool, str}
        assert not question.world.refusal(said.action)


# -- what servers send


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        ("x" * 1_000_000, "1000000 characters"),
        ("{" * 1_000_000, "1000000 characters"),
        ('{"a":' * 150_000, "750000 characters"),
        ('{"a":' * 15_000, ""),
        ('{"calls": ' + "[" * 40_000, ""),
        ("\ud83d \u0000 {}", ""),
        (Reply(tool_calls=[("trigger", '{"batch": "' + "x" * 1_000_000 + '"}')]), "1000013 characters"),
        (Reply(tool_calls=[("trigger", {"batch": [{"capability": "y" * 90_000}]})]), "no capability"),
        (Reply(tool_calls=[("x" * 100_000, {})]), "no tool"),
        (Reply(tool_calls=[("end_rond", {})] * 100), "at most 32 calls a turn"),
    ],
)
def test_a_monstrous_reply_costs_its_turn_and_names_the_reason(case, tmp_path, reply, word):
    with ChatServer(lambda body: reply, served=["m"]) as server:
        player = ChatPlayer(ChatClient(Endpoint.parse(server.url, "m"), backoff=0.0, attempts=1))
        game = Game(tmp_path / "run", case, "easy", player, 2)
        result, left = maintain(game, lambda case, engine: ReferenceJudge(case, engine.log))
        told = "\n".join(str(message.get("content")) for message in server.bodies[1]["messages"][2:])
        assert len(json.dumps(server.bodies[-1])) < 400_000
    assert left == 0 and result["crash"] is True and result["total"]["completion"] == "0.0000"
    assert word in told and "Turns left in this round: 1" in told
    assert replay_run(tmp_path / "run").over


def test_a_monstrous_prediction_leaves_its_question_unanswered(tmp_path):
    with ChatServer(lambda body: "{" * 1_000_000, served=["m"]) as server:
        player = ChatPlayer(ChatClient(Endpoint.parse(server.url, "m"), backoff=0.0, attempts=1), "text")
        Episode(tmp_path / "run", tiny_family(tmp_path), "m2", "open", 0, player, attempts=2).play()
    result = score_episode(tmp_path / "run")
    assert result["unanswered"] == 4 and result["readouts"]["interval"]["f1"] is None


def test_an_accepted_batch_is_told_as_accepted_however_long_the_telling(case):
    engine = Engine(World({"den": Tile("den")}), "extreme", 1)
    engine.define_type("wall", {"text": FieldSpec(kind="str")})
    for number in range(60):
        engine.create_entity(f"wall_{number}", "wall", "den", {})
    write = Write(target="self", field="text", value="words")
    paint = Capability(owner_type="wall", params={"words": FieldSpec(kind="str")}, write=write)
    engine.define_capability("paint", paint)
    batch = [{"capability": "paint", "actor": f"wall_{n}", "args": {"words": "w" * 400}} for n in range(60)]
    answer = json.loads(Tools(case, engine).call(FunctionCall("c", "trigger", json.dumps({"batch": batch}))))
    assert answer["accepted"] is True and answer["step"] == 1 and "error" not in answer


def test_calls_are_found_in_any_text_without_a_fault():
    nested = '{"tool": "a", "arguments": ' + "[" * 900 + "]" * 900 + "}"
    for text in ('{"tool": ' * 20_000, '{"calls": [' * 9_000, nested):
        assert len(calls_in(text)) <= 1


# -- the engine


def test_a_target_that_is_no_thing_is_refused():
    world = World({"den": Tile("den", fields={"lit": False})})
    free = {"what": FieldSpec(kind="str"), "new": FieldSpec(kind="bool")}
    world.add_capability("set", Capability(params=free, write=Write(target="what", field="lit", value="new")))
    engine = Engine(world, "easy", 1)
    (error,) = engine.trigger([fire(None, "set", what="dem", new=True)])["errors"]
    assert "'dem' is no entity or tile, did you mean 'den'" in error
    assert engine.trigger([fire(None, "set", what="den", new=True)])["accepted"]
    assert world.tiles["den"].fields == {"lit": True}
    assert not engine.trigger([fire(None, "set", what="den", new=1)])["accepted"], "a tile's field keeps its kind"


@pytest.mark.parametrize("value", [1.5, None, [1], 10**13])
def test_a_field_of_a_tile_holds_what_fields_may_hold(value):
    with pytest.raises(Refusal, match="tile 'den', field 'wet'"):
        World({"den": Tile("den", fields={"wet": value})})


def test_a_round_accepts_so_many_triggers_and_no_more():
    engine = tiny_engine()
    engine.limits = [3, 1, 9]
    assert engine.trigger([fire("ann", "nod"), fire("bob", "nod")])["accepted"]
    before = engine.world.hash()
    (error,) = engine.trigger([fire("ann", "nod"), fire("bob", "nod")])["errors"]
    assert error == "this round accepts 1 more triggers, not 2" and engine.world.hash() == before
    assert not engine.trigger([fire("ann", "fly")])["accepted"] and engine.left == 1, "a rejected one costs nothing"
    assert engine.trigger([fire("ann", "nod")])["accepted"] and engine.left == 0
    engine.end_round()
    assert engine.left == 1
    again = tiny_engine()
    again.limits = [3, 1, 9]
    assert replay(again, engine.log).log == engine.log


def test_neither_engine_knows_a_float():
    files = [ROOT / "eval" / "world_agent" / name for name in {*maintenance.ENGINE, *deduction.ENGINE}]
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))):
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))
        called = node.func if isinstance(node, ast.Call) else None
        assert not (isinstance(called, ast.Name) and called.id in ("float", "round"))


# -- bindings


def bound(case, tier, engine, item, *triggers):
    verdicts = verdicts_of(case, engine, ReferenceJudge(case, engine.log))
    verdicts[item] = {"bound": True, "trigger_ids": list(triggers), "reason": "so it seems"}
    rounds = score(case, tier, engine.log, engine.snapshots, verdicts)["rounds"]
    return next(each for round_ in rounds for each in round_["items"] if each["id"] == item)


def test_an_act_that_writes_nothing_is_bound_to_the_same_act_of_the_same_people(case):
    """Easy: the given capability with everybody in it; hard: everybody in it; extreme: any accepted trigger."""
    for tier, passes in (("easy", [True, False, False]), ("hard", [True, False, True]), ("extreme", [True] * 3)):
        engine = case.engine("easy")
        engine.end_round()
        engine.trigger([fire("ann", "wave", whom="bob")])
        engine.trigger([fire("bob", "wave", whom="bob")])
        engine.trigger([fire("ann", "light", what="lamp", lit=True)])
        for row in engine.log:  # a stranger's capability with both of them in it
            for item in row["batch"]:
                if item.get("capability") == "light":
                    item["args"] = {"whom": "bob"}
        engine.end_round()
        engine.end_round()
        found = [bound(case, tier, engine, "e4", name)["passed"] for name in ("t2.1", "t3.1", "t4.1")]
        assert found == passes, tier


def test_an_act_does_not_take_the_trigger_that_a_change_needs(tmp_path):
    """Hard: any trigger with Ann in it would do for her waving, only one for her walk."""
    text = CASE.replace("{e5: ann walk to=den}", "{e5: ann wave whom=ann}, {e5: ann walk to=den}")
    case = tiny_case(tmp_path, text.replace("duration 1 1", "duration 2 2"))
    engine = case.engine("easy")
    engine.trigger([fire("ann", "walk", to="hall")])
    engine.end_round()
    engine.end_round()
    engine.trigger([fire("ann", "walk", to="den")])
    engine.trigger([fire("ann", "wave", whom="ann")])
    engine.end_round()
    assert bound(case, "hard", engine, "e5", "t4.1", "t5.1")["passed"]
    assert not bound(case, "hard", engine, "e5", "t4.1")["passed"]


def test_two_changes_of_one_event_need_two_triggers(tmp_path):
    text = CASE.replace('e3: "- dim by=-1"}]', 'e3: "- dim by=-1"}, {e3: "- dim by=-1"}]')
    case = tiny_case(tmp_path, text.replace("e2 e3 same", "e2 e3"))
    engine = case.engine("easy")
    engine.trigger([fire("ann", "walk", to="hall")])
    for _ in range(2):
        engine.trigger([fire(None, "dim", by=-1)])
    for _ in range(3):
        engine.end_round()
    assert bound(case, "easy", engine, "e3", "t2.1", "t3.1")["passed"]
    assert "brings lamp.level -1" in bound(case, "easy", engine, "e3", "t2.1")["reason"]
    assert not bound(case, "easy", engine, "e3", "t2.1", "t2.1")["passed"], "one trigger named twice is one"


# -- files


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("{e5: ann walk to=den}", "{e5: ann walk to=den, e5: ann walk to=den}", "the key 'e5' stands twice"),
        ("  lamp: {is: lamp", "  ann: {is: lamp", "the key 'ann' stands twice"),
        ("duration 1 1", "duration --1 1", "is not 'CA a b'"),
        ("duration 1 1", "duration 2 1", "is not 'CA a b'"),
        ("duration 1 1", "duration 1 1 1", "is not 'CA a b'"),
        ("CA e1 e2", '" "', "is not 'CA a b'"),
        ("hall, at: [1, 0]}", "hall, at: [1, 0], fields: {wet: 1.5}}", "tile 'hall', field 'wet'"),
        ("facts:", "facts: 2026-13-45\nfact:", "tiny.yaml"),
        ("at: [1, 0]", "at: [" + "9" * 5000 + ", 0]", "does not parse"),
        ("rounds:", "rounds: []\nround:", "tiny.yaml"),
        ("{e5: ann walk to=den}", "{e5: []}", "a batch of the plan without a trigger"),
        ("{e5: ann walk to=den}", "{}", "a batch of the plan without a trigger"),
    ],
)  # fmt: skip
def test_a_case_that_says_a_thing_twice_or_not_at_all_is_told_in_one_line(tmp_path, old, new, word):
    assert old in CASE
    with pytest.raises(UserError) as told:
        tiny_case(tmp_path, CASE.replace(old, new, 1))
    assert word in str(told.value) and "tiny.yaml" in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("segment: 6", "segment: 0", "greater than or equal to 1"),
        ("plan: [patch with=wax, bail, bail, bail]", "plan: []", "plan"),
        ("{start: 3, low: 0, high: 40", "{start: 50, low: 0, high: 40", "tub.water = 50 is no value of a field"),
        ("{start: dry, values: [dry, wet]", "{start: damp, values: [dry, wet]", "cat.mood = 'damp' is no value"),
        ("{tub.water: 9}", "{tub.water: -9}", "tub.water = -9 is no value of a field"),
        ("{start: dry, values", "{start: dry, low: 3, values", "belong to whole numbers"),
        ("  sky.load:", "  t:", "is the time"),
        ("with: [wax, tin]", "with: [wax, a tin]", "single words"),
    ],
)
def test_a_family_whose_numbers_make_no_sense_is_told_in_one_line(tmp_path, old, new, word):
    assert old in FAMILY
    with pytest.raises(UserError) as told:
        tiny_family(tmp_path, FAMILY.replace(old, new, 1))
    assert word in str(told.value) and "drip.yaml" in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("do: [roof.hole += 1]}", "do: [roof.hole += 6 // (roof.hole - 1)]}", "rotting, at time 0: .* divides by zero"),
        ("do: [roof.hole += 1]}", "do: [cat.mood = 'lost']}", "rotting, at time 0: cat.mood: 'lost' is none of"),
        ("do: [roof.hole += 1]}", "do: [cat.mood = 3]}", "rotting, at time 0: cat.mood: 3 for 'dry'"),
        ("when: tub.water > 20", "when: cat.mood > 20", "soaking, at time 0: 'dry' is no whole number"),
        ("keep: tub.water < 30", "keep: tub.water", "upkeep room, at time 1: 6 is neither true nor false"),
        ("goal: cat.mood == 'dry'", "goal: tub.water", "task, at time 12: .* is neither true nor false"),
    ],
)
def test_a_rule_that_breaks_while_it_runs_is_named_with_its_time(tmp_path, old, new, word):
    assert old in FAMILY
    family = tiny_family(tmp_path, FAMILY.replace(old, new, 1))

    def all_of_it():
        Episode(tmp_path / "run", family, "m1", "open", 0, baseline("nothing", family, 0)).play()
        score_episode(tmp_path / "run")

    with pytest.raises(UserError, match=word):
        all_of_it()
