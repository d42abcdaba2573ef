"""The maintenance engine: batches are atomic, read one pre-state, and every row replays to the same hash."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world_agent_tools import fire, tiny_engine, tiny_world

from eval.world_agent.engine import Engine, Trigger, replay
from eval.world_agent.expressions import LARGEST, Expression, ExpressionError, same
from eval.world_agent.world import Capability, FieldSpec, Refusal, Write
from unify_agent.errors import UserError


def test_a_rejected_batch_changes_nothing_and_costs_no_step():
    engine = tiny_engine()
    before = engine.world.hash()
    row = engine.trigger([fire("ann", "go", to="hall"), fire("bob", "go", to="nowhere")])
    assert not row["accepted"] and row["step_after"] is None and "nowhere" in row["errors"][0]
    assert row["state_hash"] == before == engine.world.hash()
    assert engine.world.step == 0 and engine.world.entities["ann"].holder == "den"
    assert all(item["write"] is None for item in row["batch"])


def test_an_accepted_batch_costs_one_step_whatever_its_size():
    engine = tiny_engine()
    assert engine.trigger([fire("ann", "nod"), fire("bob", "nod")])["step_after"] == 1
    assert engine.trigger([fire("ann", "nod")])["step_after"] == 2


def test_concurrent_triggers_read_the_state_before_the_batch():
    engine = tiny_engine()
    row = engine.trigger([fire("ann", "sit_like", whom="bob"), fire("bob", "sit_like", whom="ann")])
    assert row["accepted"]
    assert [engine.world.entities[who].fields["seat"] for who in ("ann", "bob")] == ["right", "left"]


def test_a_swap_needs_both_halves_in_one_batch():
    engine = tiny_engine()
    engine.trigger([fire("ann", "sit_like", whom="bob")])
    engine.trigger([fire("bob", "sit_like", whom="ann")])
    assert [engine.world.entities[who].fields["seat"] for who in ("ann", "bob")] == ["right", "right"]


def test_two_writes_to_one_field_are_a_conflict_even_when_they_agree():
    row = tiny_engine().trigger([fire("ann", "earn", by=1), fire("ann", "earn", by=1)])
    assert not row["accepted"] and "both write ann.coins" in row["errors"][0]


@pytest.mark.parametrize(
    "moves", [[("box", "box")], [("box", "bag"), ("bag", "box")], [("box", "ann"), ("ann", "box")]]
)
def test_nothing_holds_itself_directly_or_through_others(moves):
    engine = tiny_engine()
    before = engine.world.hash()
    row = engine.trigger([fire("bob", "pack", what=what, to=to) for what, to in moves])
    assert not row["accepted"] and "hold itself" in row["errors"][0]
    assert engine.world.hash() == before


def test_a_guard_is_checked_before_the_batch_and_a_bound_after_the_sum():
    engine = tiny_engine()
    assert not engine.trigger([fire("ann", "earn", by=5), fire("bob", "pay", to="ann", by=5)])["accepted"]
    assert "outside 0..9" in engine.trigger([fire("ann", "earn", by=6)])["errors"][0]


@pytest.mark.parametrize(
    ("trigger", "word"),
    [
        (fire("ann", "goo", to="hall"), "did you mean 'go'"),
        (fire("anne", "nod"), "did you mean 'ann'"),
        (fire("box", "nod"), "not a person"),
        (fire(None, "nod"), "no entity"),
        (fire("ann", "go"), "parameter 'to' is missing"),
        (fire("ann", "go", too="hall"), "did you mean 'to'"),
        (fire("ann", "earn", by=True), "wanted kind int"),
        (fire("ann", "earn", by="1"), "wanted kind int"),
        (fire("ann", "sit_like", whom="box"), "no person"),
        (fire("bob", "pay", to="ann", by=9), "guard does not hold"),
    ],
)
def test_a_wrong_trigger_is_told_in_one_line(trigger, word):
    (error,) = tiny_engine().trigger([trigger])["errors"]
    assert word in error and "\n" not in error


def test_a_tier_closes_what_it_gives():
    assert "not open in tier easy" in tiny_engine("easy").define_capability("hop", Capability())["errors"][0]
    hard = tiny_engine("hard")
    assert hard.define_capability("hop", Capability())["accepted"]
    assert not hard.define_type("bird", {})["accepted"]
    extreme = tiny_engine("extreme")
    assert extreme.define_type("bird", {"sings": FieldSpec(kind="bool")})["accepted"]
    assert extreme.create_entity("wren", "bird", "den", {"sings": True})["accepted"]
    assert extreme.world.step == 0, "building costs no Step"


@pytest.mark.parametrize(
    ("capability", "word"),
    [
        (Capability(owner_type="persn"), "did you mean 'person'"),
        (Capability(guard="self.seat == 'left'"), "unknown name 'self'"),
        (Capability(guard="9 ** 9"), "only names"),
        (Capability(guard="__import__('os')"), "only names"),
        (Capability(write=Write(target="moon", field="x", value=1)), "'moon' is no"),
        (Capability(write=Write(target="ann", field="seat", value="left")), "needs quotes"),
        (Capability(write=Write(target="ann", field="holder", value="'den'")), "go together"),
        (Capability(params={"x": FieldSpec(kind="enum")}), "enum needs it"),
    ],
)
def test_a_capability_that_makes_no_sense_is_refused(capability, word):
    with pytest.raises(Refusal, match="capability") as told:
        tiny_world().add_capability("new", capability)
    assert word in str(told.value)


def test_an_end_freezes_a_snapshot_and_later_rounds_do_not_touch_it():
    engine = tiny_engine()
    engine.end_round()
    frozen = copy.deepcopy(engine.snapshots[0])
    engine.trigger([fire("ann", "earn", by=1)])
    engine.end_round()
    assert engine.snapshots[0] == frozen and engine.snapshots[1].state_hash != frozen.state_hash


def test_after_the_last_round_nothing_is_accepted():
    engine = tiny_engine(rounds=1)
    engine.end_round()
    assert engine.over
    assert not engine.trigger([fire("ann", "nod")])["accepted"]
    assert not engine.end_round()["accepted"] and len(engine.snapshots) == 1


def test_a_replay_notices_every_change_of_the_record():
    engine = tiny_engine()
    engine.trigger([fire("ann", "go", to="hall")])
    engine.trigger([fire("ann", "go", to="moon")])
    engine.end_round()
    assert replay(tiny_engine(), engine.log).snapshots == engine.snapshots
    for change in ({"state_hash": "0" * 64}, {"accepted": False}, {"round": 2}, {"step_after": 7}):
        log = copy.deepcopy(engine.log)
        log[0] |= change
        with pytest.raises(UserError, match=r"row 1 .* replays differently"):
            replay(tiny_engine(), log)


@pytest.mark.parametrize(
    "change", [{"kind": "magic"}, {"batch": [3]}, {"batch": None}, {"kind": "define_type", "batch": []},
               {"batch": [{"capability": 3}]}, {"kind": "create_entity"}]
)  # fmt: skip
def test_a_row_that_no_engine_wrote_is_told_in_one_line(change):
    engine = tiny_engine()
    engine.trigger([fire("ann", "go", to="hall")])
    with pytest.raises(UserError, match="log: row 1 is no row of such a log"):
        replay(tiny_engine(), [engine.log[0] | change])


# -- fuzzing

NAMES = st.sampled_from(["ann", "bob", "box", "bag", "den", "hall", "moon", "self", ""])
VALUES = NAMES | st.integers(-12, 12) | st.booleans() | st.none()
TRIGGERS = st.builds(
    Trigger,
    capability=st.sampled_from(["go", "pack", "sit_like", "earn", "pay", "nod", "fly"]),
    actor=st.none() | NAMES,
    args=st.dictionaries(st.sampled_from(["to", "what", "whom", "by", "x"]), VALUES, max_size=3),
)
LIKELY = st.one_of(
    st.builds(lambda a, t: fire(a, "go", to=t), st.sampled_from(["ann", "bob"]), NAMES),
    st.builds(lambda a, w, t: fire(a, "pack", what=w, to=t), st.sampled_from(["ann", "bob"]), NAMES, NAMES),
    st.builds(lambda a, w: fire(a, "sit_like", whom=w), *[st.sampled_from(["ann", "bob"])] * 2),
    st.builds(lambda a, n: fire(a, "earn", by=n), st.sampled_from(["ann", "bob"]), st.integers(-9, 9)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(LIKELY | TRIGGERS, max_size=4) | st.none(), max_size=12))
def test_no_batch_breaks_an_invariant(batches):
    engine = Engine(tiny_world(), "easy", 3)
    for batch in batches:
        before, step, state = engine.world.hash(), engine.world.step, engine.world.as_dict()
        row = engine.end_round() if batch is None else engine.trigger(batch)
        assert engine.world.cycle() is None
        assert row["state_hash"] == engine.world.hash()
        if row["kind"] == "end_round" or not row["accepted"]:
            assert engine.world.hash() == before and engine.world.step == step and engine.world.as_dict() == state
            continue
        assert engine.world.step == step + 1
        writes = [item["write"] for item in row["batch"] if item["write"]]
        assert len({write["path"] for write in writes}) == len(writes), "one write for each field"
        assert len(row["batch"]) == len(batch), "at most one write a trigger"
        for write in writes:
            owner, field = write["path"].split(".")
            was = state["entities"][owner]
            assert same(write["old"], was["holder"] if field == "holder" else was["fields"][field])
            assert same(write["new"], engine.world.read(owner, field))
    again = replay(tiny_engine(), engine.log)
    assert again.log == engine.log and again.snapshots == engine.snapshots


# -- expressions

LOOK = {"a": 7, "b": -3, "yes": True, "no": False, "word": "on", "nothing": None}


def value_of(text: str):
    return Expression(text).evaluate(lambda path: LOOK[path[0]])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a + b * 2", 1), ("a // b", -3), ("a % 4", 3), ("-a", -7), ("min(a, 2, b)", -3), ("abs(b)", 3),
        ("a > 3 and not no", True), ("yes == 1", False), ("word == 'on'", True), ("nothing == null", True),
        ("a if yes else b", 7), ("(2 if word == 'off' else 5) * 2", 10), ("yes == true", True), ("a != 7", False),
    ],
)  # fmt: skip
def test_expressions_compute_with_whole_numbers_and_keep_types_apart(text, value):
    assert same(value_of(text), value)


@pytest.mark.parametrize(
    "text",
    ["", "a +", "1.5", "a ** 2", "a / 2", "f(a)", "a.b[0]", "[1]", "lambda: 1", "a < b < 3", "a := 1", "(" * 300,
     "a" * 600, "min(a)", "'x' 'y' f''", "abs(1, 2)", "yes + 1", "word < 'z'", "a // 0", "a and yes", "not a",
     "999999999 * 999999999"],
)  # fmt: skip
def test_what_is_no_expression_is_told_in_one_line(text):
    with pytest.raises(ExpressionError) as told:
        value_of(text)
    assert "\n" not in str(told.value)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab()+-*/%<>=! 'andornotifelse,.0123456789", max_size=40))
def test_no_text_does_anything_but_give_a_value_or_an_expression_error(text):
    try:
        value = Expression(text).evaluate(lambda path: LOOK.get(path[0], 0))
    except ExpressionError:
        return
    assert value is None or type(value) in (bool, int, str)
    assert type(value) is not int or abs(value) <= LARGEST
