"""PW-Agent: golden cases of the scores, what each role is told, check-lists that stay frozen, the gate."""

import json
import threading

import eval_tools as tools
import pytest
from chat_server import ChatServer, pictures, schema_name, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.benchmarks.base import Item, Unresolved
from eval.pwagent.checklists import Checklist, Checklists, made
from eval.pwagent.roles import Bonus, Expectations, Inconsistency, Perception, Questions
from eval.pwagent.scoring import Fact, NoStateFacts, Options, score
from eval.run import Run
from unify_agent.errors import UserError


def facts(*rows):
    """(kind letter, importance, satisfied[, confidence[, expectation]]) -> facts with ids 1, 2, ..."""
    made = []
    for number, row in enumerate(rows, 1):
        kind, importance, satisfied, confidence, expectation = (*row, *(1.0, number)[len(row) - 3 :])
        name = {"E": "Existence", "S": "State"}[kind]
        made.append(Fact(str(number), expectation, name, importance, satisfied, confidence))
    return made


def test_all_satisfied_is_ten_ten_and_the_whole_foundation():
    scores = score(facts(("E", 3, True), ("S", 3, True), ("S", 1, True)))
    assert (scores.s1, scores.s2, scores.s3, scores.flags) == (10, 10, 6, ())
    assert scores.pw == pytest.approx(0.25 * 10 + 0.5 * 10 + 0.25 * 6)


def test_one_vital_failure_sets_its_layer_to_one():
    scores = score(facts(("E", 3, False), ("E", 1, False), ("S", 3, True)))
    assert (scores.s1, scores.flags) == (1.0, ("veto_existence",))
    scores = score(facts(("E", 3, True), ("S", 3, False), ("S", 1, True)))
    assert (scores.s2, scores.flags) == (1.0, ("veto_state",))


def test_four_medium_failures_cost_more_than_a_vital_one_and_are_marked():
    scores = score(facts(*[("E", 2, False)] * 4, ("S", 1, True)))
    assert (scores.s1, scores.flags) == (0.0, ("below_veto",))
    assert score(facts(("E", 2, False), ("E", 1, False), ("S", 1, True))).s1 == 6.0


def test_confidence_below_one_lowers_only_what_is_satisfied():
    assert score(facts(("S", 3, True, 0.9), ("S", 1, True, 0.9))).s2 == pytest.approx(9.0)
    assert score(facts(("S", 2, True, 0.5), ("S", 2, False, 0.99))).s2 == pytest.approx(10 * 0.5 / 2)


def test_no_state_fact_is_no_score():
    with pytest.raises(NoStateFacts):
        score(facts(("E", 3, True)))


def test_bonuses_and_inconsistencies_count_only_with_facts_and_evidence():
    seen = facts(("S", 3, True, 1.0, 1), ("S", 2, True, 1.0, 2), ("S", 1, False, 1.0, 2))
    bonuses = [Bonus(fact="1", evidence="crisp"), Bonus(fact="1", evidence="again"), Bonus(fact="3", evidence="x"),
               Bonus(fact="9", evidence="x"), Bonus(fact="2", evidence=" ")]  # fmt: skip
    against = [Inconsistency(facts=["1", "2"], evidence="two suns"), Inconsistency(facts=["1", "1"], evidence="x"),
               Inconsistency(facts=["2", "1"], evidence="two suns once more")]  # fmt: skip
    scores = score(seen, bonuses, against)
    assert scores.s3 == pytest.approx(6 * 5 / 6 + 1 - 2) and len(scores.void) == 6
    many = facts(*[("S", 1, True)] * 8)
    assert score(many, [Bonus(fact=str(n), evidence="x") for n in range(1, 9)]).s3 == 10  # 6 and at most 4
    vital = facts(("S", 3, False, 1.0, 1), ("S", 2, True, 1.0, 1), ("S", 2, True, 1.0, 2))
    assert "a vital State fact" in score(vital, [Bonus(fact="2", evidence="x")]).void[0]


def test_facts_can_be_summed_by_expectation():
    seen = facts(("E", 2, True, 1.0, 1), ("E", 2, False, 0.8, 1), ("S", 2, True, 0.6, 1), ("S", 2, True, 1.0, 1),
                 ("S", 1, True, 1.0, 2))  # fmt: skip
    assert score(seen).s1 == 7 and score(seen).s2 == pytest.approx(10 * (2 * 0.6 + 2 + 1) / 5)
    least = score(seen, options=Options(fact_unit="expectation"))
    assert least.s1 == 7 and least.s2 == pytest.approx(10 * (2 * 0.6 + 1) / 3)
    mean = score(seen, options=Options(fact_unit="expectation", confidence="mean"))
    assert mean.s2 == pytest.approx(10 * (2 * 0.8 + 1) / 3)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ES"), st.integers(1, 3), st.booleans(), st.floats(0, 1), st.integers(1, 4)),
                min_size=1, max_size=12), st.sampled_from(["question", "expectation"]))  # fmt: skip
def test_scores_stay_on_the_scale_and_a_failure_never_helps_the_realism(rows, unit):
    rows.append(("S", 1, True, 1.0, 1))
    options = Options(fact_unit=unit)
    scores = score(facts(*rows), options=options)
    assert all(0 <= s <= 10 for s in (scores.s1, scores.s2, scores.s3, scores.pw))
    worse = [(k, i, False, c, e) if k == "S" and i < 3 else (k, i, s, c, e) for k, i, s, c, e in rows]
    assert score(facts(*worse), options=options).s3 <= scores.s3 + 1e-9


@pytest.mark.parametrize(("written", "read"), [
    (0.4, 0.4), (85, 0.85), ("85%", 0.85), ("0.3", 0.3), (-1, 0.0), (100, 1.0),
    (1.0001, 1.0), ("150%", 1.0), ("101%", 1.0),
])  # fmt: skip
def test_confidence_is_read_in_every_form(written, read):
    assert Perception(answer="a", verdict=True, confidence=written).confidence == pytest.approx(read)


@pytest.mark.parametrize("wrong", [None, "sure", True, float("nan"), float("inf"), "nan"])
def test_a_confidence_that_is_missing_is_no_answer(wrong):
    with pytest.raises(ValueError):
        Perception.model_validate({"answer": "a", "verdict": True} | ({"confidence": wrong} if wrong else {}))


class Roles:
    """The two roles that read the prompt, from lists; keeps what they were told."""

    def __init__(self, *kinds):
        self.kinds, self.told, self.lock = list(kinds), [], threading.Lock()

    def __call__(self, role, messages, schema, max_tokens=0):
        with self.lock:
            self.told.append((role, messages[-1].parts))
            if role == "extractor":
                entry = {"expectation": "ice is round", "rationale": "heat", "importance": 3, "kind": "State"}
                return Expectations.model_validate({"expectations": [entry]})
            asked = [{"type": kind, "text": f"{kind}?"} for kind in self.kinds.pop(0)]
            return Questions.model_validate({"questions": asked})


ITEM = Item("one", "a candle beside ice", "Thermodynamics")


def test_a_check_list_asks_for_existence_first_and_shows_each_role_only_its_part():
    ask = Roles(["State", "Existence"])
    found = made(ITEM, ask)
    assert [q.type for q in found.expectations[0].questions] == ["Existence", "State"]
    assert [name for name, *_ in found.numbered()] == ["1.1", "1.2"]
    told = dict(ask.told)
    assert "candle" in told["extractor"][0] and told["formulator"] == ("Expectation: ice is round",)


def test_without_a_state_question_it_is_asked_once_more_and_then_unresolved():
    ask = Roles(["Existence"], ["State"])
    assert made(ITEM, ask).has_state and [role for role, _ in ask.told] == ["extractor", "formulator"] * 2
    with pytest.raises(Unresolved, match="no_state_fact"):
        made(ITEM, Roles(["Existence"], ["Existence"], ["State"]))


def test_a_shared_check_list_without_a_state_question_leaves_the_item_unresolved(tmp_path):
    data = tools.picworld(tmp_path / "data", 1)
    images = tools.draw("picworld", data, tmp_path / "im")
    entry = {"expectation": "ice", "rationale": "r", "importance": 3, "kind": "Existence"}
    given = {"expectation": entry, "questions": [{"type": "Existence", "text": "Any ice?"}]}
    prompt = "a lit candle beside ice, view 0"
    shared = tools.lines(tmp_path / "l.jsonl", [{"id": "p0", "prompt": prompt, "expectations": [given]}])
    with ChatServer(tools.judge) as server:
        assert tools.score(server, "picworld", data, images, tmp_path / "run", "--checklists", shared) == 3
    assert Run.open(tmp_path / "run").report()["reasons"] == {"unresolved: no_state_fact": 1}


def test_a_run_that_was_given_up_keeps_the_shared_check_lists_that_it_asked_by(tmp_path):
    data = tools.picworld(tmp_path / "data", 2)
    images = tools.draw("picworld", data, tmp_path / "im")
    shared = tmp_path / "l.jsonl"
    with ChatServer(tools.judge) as server:
        tools.score(server, "picworld", data, images, tmp_path / "other", "--checklists", shared)
    with ChatServer(tools.judge, fault=lambda body, number: "401" if number > 3 else None) as server:
        with pytest.raises(UserError, match="run the same command again"):
            tools.score(server, "picworld", data, images, tmp_path / "run", "--checklists", shared, "--concurrency", 1)
    assert tools.command("rescore", tmp_path / "run") == 3
    kinds = [result.kind for result in Run.open(tmp_path / "run").results()]
    assert kinds[0] in ("", "auth") and kinds[1] in ("auth", "not_asked")
    copied, given = (
        {line["id"]: line for line in map(json.loads, path.read_text().splitlines())}
        for path in (tmp_path / "run/checklists.jsonl", shared)
    )
    assert copied == given and len(given) == 2


def test_a_check_list_is_frozen_and_another_process_s_counts(tmp_path):
    path = tmp_path / "lists.jsonl"
    first, second = Checklists(path), Checklists(path)
    frozen = first.of(ITEM, Roles(["State"]))
    assert second.of(ITEM, Roles(["Existence", "State"])) == frozen  # made meanwhile by the other: that one counts
    assert first.of(ITEM, Roles()) == frozen and len(path.read_text().splitlines()) == 1
    with pytest.raises(UserError, match="another prompt"):
        first.of(Item("one", "another prompt", "x"), Roles())
    path.write_text(path.read_text() + '{"id": "torn')
    again = Checklists(path)
    assert again.of(ITEM, Roles()) == frozen
    again.of(Item("two", "p", "x"), Roles(["State"]))
    assert [Checklist.model_validate_json(line).id for line in path.read_text().splitlines()] == ["one", "two"]


def world(body):
    """A judge that sees no ice: its Existence questions fail."""
    if schema_name(body) == "Perception":
        return {"answer": "none", "verdict": "ice" not in texts(body).split("Text inside")[-1], "confidence": 1}
    return tools.judge(body)


@pytest.mark.parametrize(("gate", "asked"), [("on", 1), ("off", 2)])
def test_the_gate_fails_the_states_of_what_is_absent_unasked(gate, asked, tmp_path):
    data = tools.picworld(tmp_path / "data", 1)
    images = tools.draw("picworld", data, tmp_path / "im")
    with ChatServer(world) as server:
        tools.score(server, "picworld", data, images, tmp_path / "run", "--option", f"gate={gate}")
    questions = [body for body in server.bodies if schema_name(body) == "Perception"]
    assert len(questions) == asked  # both expectations lead to the same questions, which are asked once
    assert all(len(pictures(body)) == 1 for body in questions)
    assert not any("candle" in texts(body) for body in questions)  # the perceptor knows neither prompt nor importance
    result = Run.open(tmp_path / "run").results()[0]
    shown = [fact["gated"] for fact in result.evidence["facts"]]
    assert shown == ([False, True] * 2 if gate == "on" else [False] * 4)
    assert result.scores["s1"] == 1.0 and "veto_existence" in result.flags


def test_models_share_their_check_lists_and_the_direct_judge_is_compared(tmp_path, capsys):
    data = tools.picworld(tmp_path / "data")
    shared = tmp_path / "lists.jsonl"
    with ChatServer(tools.judge) as server:
        for name in ("a", "b"):
            images = tools.draw("picworld", data, tmp_path / name, seed=name)
            code = tools.score(server, "picworld", data, images, tmp_path / f"run_{name}", "--checklists", shared,
                               "--option", "direct=on")  # fmt: skip
            assert code == 0
    assert sum(schema_name(body) == "Expectations" for body in server.bodies) == 3
    reports = [Run.open(tmp_path / f"run_{name}").report() for name in ("a", "b")]
    assert reports[0]["kept"] == reports[1]["kept"]
    spread = reports[0]["spread"]
    assert spread["PW-Agent"]["n"] == 3 and sum(spread["direct judge"]["histogram"]) == 3
    assert reports[0]["arithmetic_differs"] == 3  # that judge's layers are chance
    assert "Spread of scores" in capsys.readouterr().out
    tools.command("report", tmp_path / "run_a", tmp_path / "run_b")
    assert (tmp_path / "run_a/page/index.html").read_text().count("by the score of the direct judge") == 2
    trail = [step["role"] for step in Run.open(tmp_path / "run_a").results()[0].trail]
    assert trail[0] == "perceptor 1.1" and trail[-2:] == ["judger", "direct"]
    lists = (tmp_path / "run_a/checklists.jsonl").read_text()
    assert len(lists.splitlines()) == 3 and json.loads(lists.splitlines()[0])["id"] == "p0"
