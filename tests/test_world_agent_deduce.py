"""The deduction track: a deterministic engine, type-strict F1, and questions that must be answered."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction

import pytest
from chat_server import ChatServer, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from world_agent_tools import FAMILY, tiny_family

from eval.world_agent.chat import ChatPlayer
from eval.world_agent.deduce.baselines import PREDICTORS, baseline
from eval.world_agent.deduce.brief import brief
from eval.world_agent.deduce.episode import (
    Episode,
    replay_episode,
    score_episode,
)
from eval.world_agent.deduce.family import known_families, load_family
from eval.world_agent.deduce.questions import Problem, Refused, Walk, read_answer
from eval.world_agent.deduce.readouts import asked_of, field_f1, path_f1, readout_values
from eval.world_agent.deduce.simulation import Simulation, changes, timeline
from eval.world_agent.deduce.validate import check_family, check_naming, freeze, rehearse
from eval.world_agent.talk import Reply
from unify_agent.errors import UserError
from unify_agent.judging import ChatClient, Endpoint


@pytest.fixture
def family(tmp_path):
    return tiny_family(tmp_path)


# -- the engine


def test_actors_act_first_then_the_player_then_all_processes_on_one_state(tmp_path):
    text = FAMILY.replace("processes:", "  tub.mark: {start: 0, about: how high the water stood}\nprocesses:", 1)
    marking = "  marking: {about: The water leaves a mark., do: [tub.mark = tub.water]}\n"
    text = text.replace("  soaking:", marking + "  soaking:")
    world = Simulation.begin(tiny_family(tmp_path, text), 2)  # nine in the tub
    world.step("bail")
    # the cat drinks one, the keeper bails five, one hole and two of rain drip; rotting read the same hole
    assert world.state["tub.water"] == 9 - 1 - 5 + 1 + 2 and world.state["roof.hole"] == 2
    assert world.state["tub.mark"] == 9 - 1 - 5, "as it stood before any process, after actor and player"
    assert world.fired[0] == {"cat.drinks", "dripping", "rotting", "marking"}


def test_processes_commit_in_priority_order_and_numbers_stay_in_bounds(tmp_path):
    text = FAMILY.replace(
        "actors:",
        """  empties: {about: It empties., priority: 20, do: [tub.water = 50]}
  fills: {about: It fills., priority: 30, do: [tub.water -= 4]}
actors:""",
    )
    world = Simulation.begin(tiny_family(tmp_path, text), 0)
    world.step()
    assert world.state["tub.water"] == 40, "set to 50, less 4, and 40 at most"


def test_a_branch_goes_its_own_way(family):
    world = Simulation.begin(family, 0).run(4)
    before = world.hash()
    branch = world.branch().run(9, "patch with=tin")
    assert world.hash() == before and branch.t == 9 and branch.hash() == world.branch().run(9, "patch with=tin").hash()
    assert branch.hash() != world.branch().run(9).hash()


def test_the_zero_intervention_replay_equals_the_frozen_timeline(family, tmp_path):
    freeze(family)
    again = tiny_family(tmp_path)
    assert again.timeline == timeline(again) and again.digest != family.digest
    drier = tiny_family(tmp_path, FAMILY.replace("roof.hole += 1", "roof.hole += 2"))
    assert any("not the frozen timeline" in each for each in check_family(drier))


def test_hidden_fields_are_neither_shown_nor_asked_for(family):
    world = Simulation.begin(family, 0)
    assert "sky.load" in world.state and "sky.load" not in world.seen()
    assert "sky.load" not in brief(family, "m2", "naming") and "sky.load (not shown)" in brief(family, "m2", "open")


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([name for name in known_families() if "." not in name]), st.integers(0, 4))
def test_any_course_of_actions_is_deterministic_and_stays_in_bounds(data, name, fold):
    family = FAMILIES.setdefault(name, load_family(name))
    first, second = Simulation.begin(family, fold), Simulation.begin(family, fold)
    for _ in range(12):
        possible = [None, *(action for action in family.actions if not first.refusal(action))]
        action = data.draw(st.sampled_from(possible))
        first.step(action)
        second.step(action)
        assert first.hash() == second.hash() and first.fired == second.fired
        for path, value in first.state.items():
            spec = family.file.fields[path]
            assert type(value) is type(spec.start)
            assert spec.low is None or spec.low <= value <= spec.high


FAMILIES = {}


# -- F1


@pytest.mark.parametrize(
    ("predicted", "wanted", "f1", "paths"),
    [
        ({}, {}, 1, 1),
        ({"a": 1}, {}, 0, 0),
        ({}, {"a": 1}, 0, 0),
        ({"a": 1}, {"a": 1}, 1, 1),
        ({"a": 1}, {"a": True}, 0, 1),
        ({"a": "1"}, {"a": 1}, 0, 1),
        ({"a": 0}, {"a": False}, 0, 1),
        ({"a": 1.0}, {"a": 1}, 0, 1),
        ({"a": True}, {"a": 1}, 0, 1),
        ({"a": 1, "b": 2}, {"a": 1}, Fraction(2, 3), Fraction(2, 3)),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}, Fraction(2, 5), Fraction(4, 5)),
    ],
)
def test_a_field_counts_with_the_same_path_and_an_equal_value_of_the_same_type(predicted, wanted, f1, paths):
    assert field_f1(predicted, wanted) == f1 and path_f1(predicted, wanted) == paths


def test_changes_are_what_differs_at_the_end():
    assert changes({"a": 1, "b": 2, "c": True}, {"a": 1, "b": 3, "c": 1}) == {"b": 3, "c": 1}


# -- answers


def question(family, mode="m2", fold=0):
    return Walk(family, mode, fold).question()


WHOLE = {
    "action": "wait", "changes": {"tub.water": 9}, "fired": {"dripping": 3},
    "lookahead": {"changes": {"tub.water": 40}}, "counterfactual": {"changes": {"roof.hole": 1}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"changes": None}, 'no "changes" object'),
        ({"changes": {}}, 'add "nothing_changes": true'),
        ({"changes": {"tub.watr": 3}}, "did you mean 'tub.water'"),
        ({"changes": {"sky.load": 3}}, "no field 'sky.load'"),
        ({"changes": {"tub.water": 3.0}}, "a whole number"),
        ({"changes": {"tub.water": [3]}}, "a whole number"),
        ({"fired": None}, '"fired" is asked for'),
        ({"fired": ["dripping"]}, "how many times each fires"),
        ({"fired": {"dripping": 0}}, "at least 1"),
        ({"fired": {"dripping": True}}, "at least 1"),
        ({"action": {"action": "patch", "args": ["tin"]}}, "object of names and values"),
        ({"fired": {"drip": 1}}, "did you mean 'dripping'"),
        ({"lookahead": None}, '"lookahead" is asked for'),
        ({"lookahead": {"changes": {}}}, '"lookahead" is empty'),
        ({"counterfactual": {}}, '"counterfactual" is asked for'),
        ({"action": None}, '"action" is asked for'),
        ({"action": "bale"}, "did you mean 'bail'"),
        ({"action": "bail"}, "not possible now"),
    ],
)
def test_an_answer_that_leaves_something_out_is_sent_back(family, change, word):
    assert read_answer(json.dumps(WHOLE), question(family)).lookahead == {"tub.water": 40}
    with pytest.raises(Problem, match=re.escape(word)):
        read_answer(json.dumps(WHOLE | change), question(family))


def test_nothing_changes_must_be_said_and_of_a_path_given_twice_the_last_counts(family):
    said = json.dumps(WHOLE | {"changes": {}, "nothing_changes": True})
    assert read_answer(said, question(family)).changes == {}
    twice = json.dumps(WHOLE).replace('"tub.water": 9', '"tub.water": 9, "tub.water": 8')
    assert read_answer("I think:\n" + twice, question(family)).changes == {"tub.water": 8}
    with_args = json.dumps(WHOLE | {"action": {"action": "patch", "args": {"with": "tin"}}})
    assert read_answer(with_args, question(family)).action == "patch with=tin"


# -- episodes


def episode(family, folder, name="oracle", mode="m2", condition="open", fold=0, **options):
    player = baseline(name, family, fold)
    return Episode(folder, family, mode, condition, fold, player, **options)


class Says:
    """A player that gives these answers in turn, the last one for ever."""

    identity = {"player": "says"}  # noqa: RUF012

    def __init__(self, *answers):
        self.answers = list(answers)

    def reply(self, turn):
        self.messages = turn.messages
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return Reply(answer if isinstance(answer, str) else json.dumps(answer))


@pytest.mark.parametrize("mode", ["m1", "m2"])
def test_the_oracle_scores_one_in_every_readout(family, tmp_path, mode):
    episode(family, tmp_path / "run", mode=mode).play()
    result = score_episode(tmp_path / "run")
    assert {each["f1"] for each in result["readouts"].values()} == {"1.0000"}
    wanted = {"segment", "rules"} if mode == "m1" else {"interval", "lookahead", "counterfactual", "rules"}
    assert set(result["readouts"]) == wanted
    assert len(replay_episode(tmp_path / "run")) == (2 if mode == "m1" else 4)


def test_an_unanswered_question_is_an_error_and_not_a_zero(family, tmp_path):
    Episode(tmp_path / "run", family, "m2", "open", 0, Says(WHOLE, "I would rather not say.")).play()
    result = score_episode(tmp_path / "run")
    assert result["unanswered"] == 3 and result["questions"][1]["f1"] == "unanswered"
    interval = result["readouts"]["interval"]
    assert interval["f1"] is None and interval["answered"] == 1 and interval["unanswered"] == 3
    assert interval["f1_of_answered"] is not None
    assert result["readouts"]["lookahead"]["f1"] is not None, "it was asked once, and answered"
    assert len((tmp_path / "run" / "answers.jsonl").read_text().splitlines()) == 1 + 3 * 3


def test_an_impossible_action_costs_no_time_and_is_counted(family, tmp_path):
    player = Says(WHOLE | {"action": "bail"}, WHOLE)
    Episode(tmp_path / "run", family, "m2", "naming", 0, player).play()
    result = score_episode(tmp_path / "run")
    assert result["rejected"] == 1 and result["unanswered"] == 0
    first = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[0])
    assert first["action"] is None and first["t1"] == 3
    assert any("not possible now" in message.parts[0] for message in player.messages)
    with pytest.raises(Refused):
        read_answer(json.dumps(WHOLE | {"action": "bail"}), question(family))


def test_a_look_ahead_reaches_48_units_and_another_action_branches_from_the_saved_state(tmp_path):
    """What is scored against is what the engine does, from the state of the question, whatever the player did."""
    text = FAMILY.replace("processes:", "  clock.count: {start: 0, about: strokes of the clock}\nprocesses:", 1)
    text = text.replace("  soaking:", "  striking: {about: The clock strikes., do: [clock.count += 1]}\n  soaking:")
    family = tiny_family(tmp_path, text)
    episode(family, tmp_path / "run").play()
    asked, event = replay_episode(tmp_path / "run")[0]
    assert asked.deep and event["action"] == "patch with=wax" and asked.alternative is None
    alone = Simulation.begin(family, 0)
    ahead = changes(alone.seen(), alone.branch().run(48, "patch with=wax").seen())
    other = changes(alone.seen(), alone.branch().run(3).seen())
    said = read_answer(baseline("oracle", family, 0).answer(asked).text, asked)
    assert (said.lookahead, said.counterfactual) == (ahead, other) and other != said.changes
    assert ahead["clock.count"] == 48 and other["clock.count"] == 3
    for part, truth in (("lookahead", ahead), ("counterfactual", other)):
        for path in truth:
            wrong = replace(said, **{part: {**truth, path: "x"}})
            assert readout_values(asked, event, wrong)[part][0] == 1 - Fraction(1, len(truth))
    assert readout_values(asked, event, said)["interval"][0] == 1


def test_predictions_do_not_change_the_world(family, tmp_path):
    for name, folder in (("oracle", "a"), ("noisy", "b"), ("nothing", "c")):
        episode(family, tmp_path / folder, name).play()
    hashes = [[event["state_hash"] for _, event in replay_episode(tmp_path / folder)] for folder in "abc"]
    assert hashes[0] == hashes[1] == hashes[2]


def test_m1_gives_no_feedback(family, tmp_path):
    player = Says({"changes": {"tub.water": 30}, "fired": {"dripping": 3}})
    Episode(tmp_path / "run", family, "m1", "naming", 0, player).play()
    told = "\n".join(str(part) for message in player.messages if message.role == "user" for part in message.parts)
    assert told.count('"tub.water"') == 1, "the start, and nothing of what came after"


@pytest.mark.parametrize("keep", [0, 60, 900])
def test_an_episode_that_was_stopped_goes_on_to_the_same_end(family, tmp_path, keep):
    episode(family, tmp_path / "run", "noisy").play()
    score_episode(tmp_path / "run")
    whole = {file.name: file.read_bytes() for file in (tmp_path / "run").glob("*.json*")}
    for name in ("answers.jsonl", "events.jsonl"):
        file = tmp_path / "run" / name
        file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UserError, match="finish it first"):
        score_episode(tmp_path / "run")
    episode(family, tmp_path / "run", "noisy").play()
    score_episode(tmp_path / "run")
    assert {file.name: file.read_bytes() for file in (tmp_path / "run").glob("*.json*")} == whole


def test_a_changed_record_or_family_is_noticed(family, tmp_path):
    episode(family, tmp_path / "run").play()
    file = tmp_path / "run" / "events.jsonl"
    good = file.read_text()
    changed = {'"action": "bail"': '"action": null', '"tub.water": ': '"tub.water": 1', '"dripping"': '"rotting"'}
    for old, new in changed.items():
        assert old in good
        file.write_text(good.replace(old, new, 1))
        with pytest.raises(UserError, match="replays differently"):
            replay_episode(tmp_path / "run")
    file.write_text(good)
    with pytest.raises(UserError, match="other fold"):
        episode(family, tmp_path / "run", fold=1).play()
    story = tmp_path / "run" / "case" / "drip.yaml"
    story.write_text(story.read_text() + "# changed\n")
    with pytest.raises(UserError, match="was changed after it was played"):
        score_episode(tmp_path / "run")


def test_a_served_model_predicts_over_http(family, tmp_path):
    player = baseline("oracle", family, 0)
    walk = Walk(family, "m2", 0)

    def answer(body):
        assert "tools" not in body and "The drip" in texts(body)
        asked = walk.question()
        reply = player.answer(asked).text
        walk.advance(read_answer(reply, asked).action)
        return "My prediction:\n" + reply

    with ChatServer(answer, served=["seer"], plan=["500"]) as server:
        chat = ChatClient(Endpoint.parse(server.url, "seer"), backoff=0.0)
        Episode(tmp_path / "run", family, "m2", "open", 0, ChatPlayer(chat, "text")).play()
    result = score_episode(tmp_path / "run")
    assert result["readouts"]["interval"]["f1"] == "1.0000" and result["cost"]["tokens_in"] > 0


# -- families


def test_there_are_four_families_with_five_folds_and_two_languages():
    names = list(known_families())
    assert len([name for name in names if "." not in name]) >= 4
    assert len([name for name in names if name.endswith(".zh")]) >= 2
    for name in names:
        family = load_family(name)
        assert len({json.dumps(family.start(fold), sort_keys=True) for fold in range(5)}) == 5
        assert family.file.horizon >= 96 and family.file.interval == 6


@pytest.mark.parametrize("name", [name for name in known_families() if "." not in name])
def test_our_family_is_sound(name):
    """Frozen timeline, oracle 1.0, players without rules below one half, naming hides every number."""
    assert check_family(load_family(name)) == []


@pytest.mark.parametrize("name", [name for name in known_families() if "." in name])
def test_a_translated_family_hides_as_much_and_runs_the_same(name):
    family, base = load_family(name), load_family(name.partition(".")[0])
    assert check_naming(family) == [] and timeline(family) == base.timeline
    told = brief(family, "m2", "naming")
    assert re.search("[\u4e00-\u9fff]", told) and base.file.intro not in told


def test_noise_costs_the_oracle_what_it_spoils():
    family = load_family("quay")
    value = rehearse(family, "m2", "noisy", range(2))["interval"]
    assert Fraction(6, 10) < value < Fraction(9, 10)


def test_the_validator_finds_an_unsound_family(tmp_path):
    leaks = tiny_family(tmp_path, FAMILY.replace("about: The hole grows.", "about: The hole grows by 1."))
    assert any("holds a number" in each for each in check_naming(leaks))
    text = FAMILY.replace("  soaking:", "  never: {about: Never., when: t < 0, do: [tub.water += 1]}\n  soaking:")
    found = check_family(tiny_family(tmp_path, text))
    assert "rule 'never' never fires" in found
    assert "the zero-intervention replay is not the frozen timeline (freeze it with --freeze)" in found


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("horizon: 12", "horizon: 13", "no multiple"),
        ("tub.water += roof.hole", "tub.watr += roof.hole", "is not 'field = value'"),
        ("+= roof.hole", "+= roof.hull", "no field 'roof.hull', did you mean 'roof.hole'"),
        ("roof.hole += 1", "roof.hole += 1.5", "only names"),
        ("every: 4", "every: 0", "greater than or equal to 1"),
        ("plan: [patch with=wax", "plan: [patch with=glue", "no action 'patch with=glue'"),
        ("{roof.hole: 2}", "{roof.hole: big}", "no value of a field"),
        ("folds: [{}, ", "folds: [", "4 folds; a family has 5"),
        ("goal: cat.mood", "gaol: cat.mood", "unknown key 'task.gaol', did you mean 'goal'"),
    ],
)
def test_a_broken_family_is_told_in_one_line_that_names_the_file(tmp_path, old, new, word):
    assert old in FAMILY
    with pytest.raises(UserError) as told:
        tiny_family(tmp_path, FAMILY.replace(old, new, 1))
    assert word in str(told.value) and "drip.yaml" in str(told.value) and "\n" not in str(told.value)


def test_every_baseline_answers_every_question(family):
    for name in PREDICTORS:
        for mode in ("m1", "m2"):
            player, walk = baseline(name, family, 3), Walk(family, mode, 3)
            while not walk.over:
                asked = walk.question()
                said = read_answer(player.answer(asked).text, asked)
                assert ("lookahead" in asked_of(asked)) is (said.lookahead is not None)
                walk.advance(said.action)
    with pytest.raises(UserError, match="did you mean 'oracle'"):
        baseline("orakle", family, 0)


