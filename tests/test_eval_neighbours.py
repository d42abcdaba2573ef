"""KnowGen and Mind-Bench: the releases' files as they are, their formulas, and nothing filled in or dropped."""

import json

import eval_tools as tools
import pytest
from chat_server import ChatServer, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.benchmarks import benchmark
from eval.benchmarks.base import Item
from eval.benchmarks.knowgen import GROUPS, KnowGenVerdict
from eval.benchmarks.mindbench import verdict_on
from eval.pictures import survey
from eval.run import Run
from eval.scoring import Result
from eval.totals import totals
from unify_agent.errors import UserError

SCIENCE, POP = GROUPS


def test_knowgen_reads_the_release_s_results_and_knows_its_two_groups(tmp_path):
    dataset = benchmark("knowgen").load(tools.knowgen(tmp_path))
    assert [(i.id, i.category, i.group) for i in dataset.items] == [
        ("0", "astronomy", SCIENCE), ("1", "biology", SCIENCE), ("2", "anime", POP), ("3", "news", POP),
    ]  # fmt: skip
    assert dataset.items[0].references == (tmp_path / "gt/0.png",) and list(map(len, GROUPS.values())) == [15, 9]


def test_where_a_model_s_pictures_lie_is_no_part_of_knowgen_s_data(tmp_path):
    one = benchmark("knowgen").load(tools.knowgen(tmp_path))
    rows = json.loads((tmp_path / "results.json").read_text())
    for row in rows:
        row |= {"output_path": f"/elsewhere/other/{row['id']}_b.png"}
    rows[3] |= {"success": False}
    (tmp_path / "results.json").write_text(json.dumps(rows))
    bench = benchmark("knowgen")
    other = bench.load(tmp_path)
    assert other.sha256 == one.sha256
    for number in range(4):
        tools.picture(tmp_path / f"images/{number}_b.png")
    found = survey(bench, other, tmp_path / "images")
    assert [each.problem for each in found.found] == ["", "", "", "missing"]  # it failed: missing, never dropped


def test_a_knowgen_category_of_neither_group_is_refused(tmp_path):
    tools.knowgen(tmp_path)
    path = tmp_path / "results.json"
    path.write_text(path.read_text().replace("Astronomy", "astrology"))
    with pytest.raises(UserError, match="0: 'astrology' is a category of neither"):
        benchmark("knowgen").load(tmp_path)


@pytest.mark.parametrize("value", [0.7, True, -1, "much"])
def test_a_knowgen_grade_between_the_steps_is_none(value):
    good = {"rationale": "r", "faithfulness": 1, "visual_correctness": "0.5", "text_accuracy": 0,
            "text_accuracy_na": False, "aesthetics": 1}  # fmt: skip
    assert KnowGenVerdict.model_validate(good).visual_correctness == 0.5
    with pytest.raises(ValueError):
        KnowGenVerdict.model_validate(good | {"faithfulness": value})


def knowgen_totals(grades):
    """Totals of (group, scores or None) an item."""
    bench = benchmark("knowgen")
    items = [Item(str(n), "p", GROUPS[group][0], group) for n, (group, _) in enumerate(grades)]
    results = [Result(i.id, "unresolved") if s is None else Result(i.id, "ok", {"score": 0.0} | s)
               for i, (_, s) in zip(items, grades, strict=True)]  # fmt: skip
    made = totals(bench, items, results)
    return {(t.name, t.measure): t for t in made if t.level != "category"}


def test_a_knowgen_group_leaves_items_without_text_out_of_its_text_and_the_total_weighs_groups_alike():
    one = {"faithfulness": 1.0, "visual": 0.5, "aesthetics": 0.0}
    found = knowgen_totals([
        (SCIENCE, one | {"text": 1.0}), (SCIENCE, one), (SCIENCE, one | {"text": 0.0}), (POP, one),
    ])  # fmt: skip
    assert found[SCIENCE, "text"].value == pytest.approx(0.5) and found[SCIENCE, "text"].n == 2
    assert found[SCIENCE, "score"].value == pytest.approx(0.1 + 0.2 + 0.4 * 0.5)
    assert (POP, "text") not in found and found[POP, "score"].value == pytest.approx(0.1 + 0.2 + 0.4 * 0.5)
    found = knowgen_totals([(SCIENCE, one | {"text": 1.0})] * 3 + [(POP, one | {"text": 0.0})])
    assert found["Total", "score"].value == pytest.approx((0.7 + 0.3) / 2)
    assert found["Total", "text"].value == pytest.approx(0.5) and found["Total", "score"].ci_low is None
    found = knowgen_totals([(SCIENCE, one | {"text": 1.0})] * 3)
    assert not any(name == "Total" for name, _ in found)  # a group is missing: no total


GRADE = st.sampled_from((0.0, 0.5, 1.0))
SCORES = st.fixed_dictionaries(
    {"faithfulness": GRADE, "visual": GRADE, "aesthetics": GRADE}, optional={"text": GRADE}
)  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.sampled_from((SCIENCE, POP)), SCORES, st.booleans()), min_size=1, max_size=12))
def test_a_knowgen_total_lies_within_the_interval_that_open_items_leave(drawn):
    known = knowgen_totals([(group, scores) for group, scores, _ in drawn])
    open_ = knowgen_totals([(group, scores if there else None) for group, scores, there in drawn])
    for (name, measure), total in known.items():
        if measure == "score":
            part = open_[name, measure]
            assert part.low - 1e-9 <= total.value <= part.high + 1e-9
            assert (part.value is None) == (part.resolved < part.n)
            if total.ci_low is not None:
                assert 0 <= total.ci_low <= total.ci_high <= 1


def test_mindbench_reads_the_release_and_finds_pictures_by_first_and_last_part(tmp_path):
    bench = benchmark("mindbench")
    dataset = bench.load(tools.mindbench(tmp_path))
    first, second = dataset.items
    assert (first.id, first.category, first.references) == ("2_43", "2_Weather", ())
    assert second.prompt == "the coach of today" and second.references == (tmp_path / "refs/a.jpg",)
    tools.picture(tmp_path / "im/2_Weather_43.png")
    tools.picture(tmp_path / "im/10_Event/10_7.jpg")
    assert not survey(bench, dataset, tmp_path / "im").problems


@pytest.mark.parametrize(("answers", "score"), [([True, True], 1.0), ([True, False], 0.0)])
def test_a_mindbench_item_counts_only_when_all_demands_are_met(answers, score, tmp_path):
    bench = benchmark("mindbench")
    item = bench.load(tools.mindbench(tmp_path)).items[0]

    def ask(role, messages, schema, max_tokens=1024):
        return schema.model_validate({"reason": "r"} | {f"item_{k}": a for k, a in enumerate(answers, 1)})

    marks = bench.judge(item, None, ask)
    assert marks.scores == {"score": score, "share": sum(answers) / 2}
    assert marks.detail == {"not met": [] if score else ["rain"]}


def test_a_list_of_verdicts_that_is_too_short_is_asked_for_again_and_never_filled(tmp_path):
    data = tools.mindbench(tmp_path / "data")
    images = tools.draw("mindbench", data, tmp_path / "images")

    def answer(body):
        told = {"reason": "r", "item_1": True}
        return told | {"item_2": True} if "An earlier reply" in texts(body) and "item_2" in texts(body) else told

    with ChatServer(answer) as server:
        assert tools.score(server, "mindbench", data, images, tmp_path / "run") == 0
    assert server.calls == 3 and [r.scores["score"] for r in Run.open(tmp_path / "run").results()] == [1.0, 1.0]
    with pytest.raises(ValueError, match="item_2"):
        verdict_on(2).model_validate({"reason": "r", "item_1": True})


def test_knowgen_is_compared_by_items_since_its_total_is_no_mean_of_them(tmp_path):
    data = tools.knowgen(tmp_path / "data")
    with ChatServer(tools.judge) as server:
        for name in "ab":
            images = tools.draw("knowgen", data, tmp_path / name, seed=name)
            tools.score(server, "knowgen", data, images, tmp_path / f"run_{name}")
    tools.command("compare", tmp_path / "run_a", tmp_path / "run_b", "--out", tmp_path)
    rows = json.loads((tmp_path / "compare.json").read_text())["rows"]
    assert "Mean of items" in rows and "Total" not in rows
