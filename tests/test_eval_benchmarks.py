"""Benchmarks read the official files as they are, tell editions apart, and compute their scores themselves."""

import json
import subprocess
import sys
from pathlib import Path

import eval_tools as tools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.benchmarks import BENCHMARKS, benchmark
from eval.benchmarks.base import Item
from eval.benchmarks.factip import GROUPS, FactIPVerdict, category_of, recomputed
from eval.benchmarks.factual import CompositionVerdict, ConceptVerdict, InstantiationVerdict
from eval.benchmarks.wise import LEGACY, VERIFIED, WiseVerdict
from eval.benchmarks.wise import category_of as wise_category
from eval.scoring import Result
from eval.totals import totals, weights
from unify_agent.errors import UserError
from unify_agent.judging import Picture


class Scripted:
    """Answers each question from a list and keeps what was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def __call__(self, role, messages, schema, max_tokens=1024):
        self.asked.append((role, messages))
        return self.answers.pop(0)

    def picture(self, path):
        return Picture(str(path))

    def aside(self):
        return self


MADE = Picture("made")


def test_scoring_imports_no_torch():
    modules = "eval.check, eval.score, eval.rescore, eval.report, eval.compare"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    root = Path(__file__).resolve().parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_factip_reads_the_release_and_finds_both_true_pictures(tmp_path):
    dataset = benchmark("factip").load(tools.factip(tmp_path))
    first = dataset.items[0]
    assert (first.id, first.category, first.group) == ("Animation/i0", "animation", "Character")
    assert first.prompt.startswith("画") and [p.name for p in first.references] == ["seed1.png", "seed2.jpg"]
    assert dataset.items[3].category == "art" and dataset.variant == "part" and "neither" in dataset.notes[0]


def test_factip_and_its_mini_are_told_apart_by_their_size(tmp_path):
    content = {str(n): {"image_prompt": "p", "source_category": "Food"} for n in range(500)}
    (tmp_path / "test.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="--bench factip-mini"):
        benchmark("factip").load(tmp_path)
    (tmp_path / "test_mini.json").write_text(json.dumps(content))
    assert benchmark("factip-mini").load(tmp_path).variant == "factip-mini"


@pytest.mark.parametrize(("name", "category"), [
    ("Cultural Relic/Art", "art"), ("Animal_Plant", "animal"), ("Festival/Celebration", "festival"), ("Toy", "toy"),
    ("Something", "Something"),
])  # fmt: skip
def test_factip_categories_have_one_name_each(name, category):
    assert category_of(name) == category


def test_the_counts_of_the_paper_add_up():
    assert [sum(members.values()) for members in GROUPS.values()] == [1500, 615, 347]


def verdict(clarity=9, content=4, aesthetics=8, relevance=3, overall=4):
    return FactIPVerdict(
        clarity=clarity, content_quality=content, aesthetics=aesthetics, text_relevance_ip=relevance,
        overall_score=overall, rationale="a; b",
    )  # fmt: skip


def test_factip_is_recomputed_and_a_judge_that_cannot_add_is_noticed(tmp_path):
    item = benchmark("factip").load(tools.factip(tmp_path)).items[0]
    assert recomputed(verdict())["score"] == pytest.approx(10 * (0.45 + 0.4 + 0.8 + 2.25))  # 39.0
    asked = Scripted(verdict(overall=4), verdict(overall=5))
    assert benchmark("factip").judge(item, MADE, asked).differs == ()
    assert benchmark("factip").judge(item, MADE, asked).differs == ("overall_score",)
    shown = asked.asked[0][1][1].parts
    assert [p.digest for p in shown if isinstance(p, Picture)] == [*map(str, item.references), "made"]


def test_wise_takes_the_category_from_the_id(tmp_path):
    dataset = benchmark("wise").load(tools.wise(tmp_path))
    assert {item.id: item.category for item in dataset.items}["530"] == "Time" and dataset.variant == "wise-legacy"
    assert [wise_category(n, LEGACY) for n in (400, 401, 567, 568, 1000)] == [
        "Cultural", "Time", "Time", "Space", "Chemistry",
    ]  # fmt: skip
    assert [wise_category(n, VERIFIED) for n in (520, 521)] == ["Time", "Space"]


def test_one_edition_of_wise_is_refused_where_the_other_is_asked_for(tmp_path):
    old, new = tools.wise(tmp_path / "old"), tools.wise(tmp_path / "new", tools.VERIFIED_IDS)
    with pytest.raises(UserError, match="--bench wise with"):
        benchmark("wise-verified").load(old)
    with pytest.raises(UserError, match="--bench wise-verified"):
        benchmark("wise").load(new)
    assert benchmark("wise-verified").load(new).variant == "wise-verified"
    mixed = tools.wise(tmp_path / "mixed", {530: "time", 690: "Biology"})
    with pytest.raises(UserError, match="1 ids are those of the other edition beside 1"):
        benchmark("wise").load(mixed)


@pytest.mark.parametrize(("record", "message"), [
    ({"prompt_id": 0}, "1 to 1000"), ({"Category": "Chemistry"}, "not its own"), ({"Category": "Magic"}, "Magic"),
    ({"Explanation": ""}, "Explanation"),
])  # fmt: skip
def test_a_wrong_wise_record_is_named(tmp_path, record, message):
    (tmp_path / "final_data.json").write_text(json.dumps([tools.wise_record(1, "Cultural knowledge") | record]))
    with pytest.raises(UserError, match=message):
        benchmark("wise").load(tmp_path)


def test_wiscore_is_halved_and_weighed(tmp_path):
    item = benchmark("wise").load(tools.wise(tmp_path)).items[0]
    seen = WiseVerdict(consistency=2, realism=1, aesthetic_quality=0, reason="r")
    assert benchmark("wise").judge(item, MADE, Scripted(seen)).scores["score"] == pytest.approx(0.8)


CATEGORY_MEANS = {"Cultural": 0.82, "Time": 0.75, "Space": 0.74, "Biology": 0.72, "Physics": 0.73, "Chemistry": 0.70}


def whole_wise(name):
    """Results of 1,000 items whose category means are those of the paper's own row."""
    bench = benchmark(name)
    items = [Item(str(n), "p", wise_category(n, LEGACY)) for n in range(1, 1001)]
    zeros = {"consistency": 0.0, "realism": 0.0, "aesthetics": 0.0}
    results = [Result(i.id, "ok", {"score": CATEGORY_MEANS[i.category]} | zeros) for i in items]
    return next(t for t in totals(bench, items, results) if t.level == "total" and t.measure == "score")


def test_the_two_ways_to_average_wise_give_the_paper_s_and_the_release_s_figure():
    assert whole_wise("wise").value == pytest.approx(0.767, abs=5e-4)
    assert whole_wise("wise-bagel2025").value == pytest.approx(0.743, abs=5e-4)


def test_a_weighted_total_needs_every_category():
    items = [Item("1", "p", "Cultural"), Item("2", "p", "Time")]
    assert weights(items, benchmark("wise").mean) is None
    assert weights(items, "categories") == {"1": 0.5, "2": 0.5}


def test_kitten_keeps_its_two_grades_apart_until_the_end(tmp_path):
    bench = benchmark("kitten")
    items = bench.load(tools.kitten(tmp_path)).items
    grades = [(5, 1), (3, 3), (4, 2), (1, 5)]
    results = [Result(i.id, "ok", {"score": (t + e) / 2, "text": t, "entity": e})
               for i, (t, e) in zip(items, grades, strict=True)]  # fmt: skip
    found = {(t.level, t.measure): t.value for t in totals(bench, items, results) if t.level == "total"}
    assert found["total", "text"] == pytest.approx((4 + 4 + 1) / 3)  # mean over domains, not over items
    assert found["total", "entity"] == pytest.approx((2 + 2 + 5) / 3)
    assert found["total", "score"] == pytest.approx((found["total", "text"] + found["total", "entity"]) / 2)


def test_the_worst_that_an_open_item_can_be_is_the_least_of_its_scale(tmp_path):
    bench = benchmark("kitten")
    items = bench.load(tools.kitten(tmp_path)).items
    grades = {"score": 5.0, "text": 5.0, "entity": 5.0}
    results = [Result(i.id, "ok", grades) if i.id != "q3" else Result(i.id, "unresolved") for i in items]
    found = next(t for t in totals(bench, items, results) if t.level == "total" and t.measure == "score")
    assert (found.value, found.low, found.high) == (None, pytest.approx((5 + 5 + 1) / 3), pytest.approx(5))


def test_kitten_is_read_by_domain_under_other_names_and_with_pictures_in_folders(tmp_path):
    record = {"prompt_id": 7, "entity_name": "Robin DR400", "wikidata_id": "Q1", "text": "a DR400 over snow", "more": 1}
    (tmp_path / "aircraft.json").write_text(json.dumps([record]))
    tools.lines(tmp_path / "flower.jsonl", [record | {"prompt_id": 8, "entity_name": "Fuchsia"}])
    tools.picture(tmp_path / "evaluation/aircraft/Robin DR400/b.jpg")
    tools.picture(tmp_path / "evaluation/aircraft/Robin DR400/a.png")
    tools.picture(tmp_path / "evaluation/Q1/c.png")
    tools.picture(tmp_path / "support/flower/Fuchsia/d.png")
    first, second = benchmark("kitten").load(tmp_path).items
    assert (first.id, first.category, first.prompt, first.extra["qid"]) == ("7", "Aircraft", "a DR400 over snow", "Q1")
    assert [p.name for p in first.references] == ["a.png", "b.jpg"] and first.support == ()
    assert [p.name for p in (*second.references, *second.support)] == ["c.png", "d.png"]


@pytest.mark.parametrize(("record", "message"), [
    ({"id": 1, "domain": "sport", "entity": "e", "caption": "p"},
     r"record 1: has no prompt \(or text\); its fields are id, domain, entity, caption"),
    ({"id": 1, "domain": "sport", "entity": "e", "prompt": "p"}, "names no eval_refs, and there is no folder"),
    ({"id": 1, "domain": "sport", "entity": "e", "prompt": "p", "eval_refs": "x"}, "record 1: eval_refs"),
])  # fmt: skip
def test_a_kitten_record_in_another_form_is_refused_with_what_it_holds(record, message, tmp_path):
    tools.lines(tmp_path / "kitten.jsonl", [record])
    with pytest.raises(UserError, match=message):
        benchmark("kitten").load(tmp_path)


def test_a_folder_without_kitten_s_files_says_which_are_looked_for(tmp_path):
    (tmp_path / "data.json").write_text("[]")
    with pytest.raises(UserError, match=r"neither kitten\.jsonl nor a file for a domain"):
        benchmark("kitten").load(tmp_path)


def test_factual_levels_and_places_follow_from_the_files(tmp_path):
    dataset = benchmark("t2i-factual").load(tools.factual(tmp_path))
    by_id = {item.id: item for item in dataset.items}
    assert set(by_id) == {
        "SKCM/animal_image/0", "SKCM/animal_image/1", "SKCM/plant_image/0", "SKCI/action_image/0", "MKCC/size_image/0",
    }  # fmt: skip
    item = by_id["SKCM/animal_image/0"]
    assert item.references[0].relative_to(tmp_path).as_posix() == "reference_image/animal/red_owl.JPG"
    assert item.references[0].is_file() and by_id["MKCC/size_image/0"].group == "MKCC"


def test_the_rows_with_background_text_are_a_data_set_of_their_own(tmp_path):
    root = tools.factual(tmp_path)
    row = json.loads((root / "SKCM/animal.jsonl").read_text().splitlines()[0]) | {"sentence_text_knowledge": "a bird"}
    tools.lines(root / "text_injection/SKCM/animal.jsonl", [row])
    assert len(benchmark("t2i-factual").load(root).items) == 5
    given = benchmark("t2i-factual").load(root / "text_injection", root / "reference_image")
    assert given.items[0].extra["knowledge"] == "a bird" and given.items[0].references[0].is_file()


def concept(shape=1, color=1, texture=1, feature=0, total=3):
    return ConceptVerdict(reason="r", shape=shape, color=color, texture=texture, feature=feature, total=total)


def test_factual_totals_are_recomputed_and_sums_compared(tmp_path):
    bench = benchmark("t2i-factual")
    item = next(i for i in bench.load(tools.factual(tmp_path)).items if i.group == "MKCC")
    whole = {"seamless": 1, "complete": 1, "authentic": 0, "prompt": 1, "reason": "r"}
    marks = bench.judge(item, MADE, Scripted(
        concept(), concept(total=4), InstantiationVerdict(reason="r", present=True, score=1),
        CompositionVerdict(present=True, total=3, **whole),
    ))  # fmt: skip
    assert marks.scores == pytest.approx(
        {"score": (0.75 + 1 + 0.75) / 3, "concept": 0.75, "instantiation": 1, "composition": 0.75}
    )
    assert marks.differs == ("concept 2",)
    absent = bench.judge(item, MADE, Scripted(
        concept(), concept(), InstantiationVerdict(reason="r", present=False, score=1),
        CompositionVerdict(present=False, total=0, **whole),
    ))  # fmt: skip
    assert (absent.scores["instantiation"], absent.scores["composition"]) == (0, 0)
    assert absent.differs == ("instantiation",)


def test_a_factual_level_is_the_mean_over_its_files_and_there_is_no_total(tmp_path):
    bench = benchmark("t2i-factual")
    items = bench.load(tools.factual(tmp_path)).items
    scores = {"SKCM/animal_image/0": 1.0, "SKCM/animal_image/1": 0.0, "SKCM/plant_image/0": 1.0}
    results = [Result(i.id, "ok", {"score": s, "concept": s, "instantiation": s, "composition": s})
               for i in items for s in [scores.get(i.id, 1.0)]]  # fmt: skip
    made = totals(bench, items, results)
    skcm = next(t for t in made if t.name == "SKCM" and t.measure == "score")
    assert skcm.value == pytest.approx(0.75) and not any(t.level == "total" for t in made)
    assert not any(t.name == "SKCM" and t.measure in ("instantiation", "composition") for t in made)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_takes_prompts_of_the_user_s_own(name, tmp_path):
    tools.picture(tmp_path / "pictures/true.png")
    record = {
        "id": "mine", "prompt": "my prompt", "category": "Time" if name.startswith("wise") else "things",
        "group": {"t2i-factual": "SKCM", "knowgen": "Pop Culture & News"}.get(name, ""),
        "references": ["pictures/true.png"],
        "extra": {"explanation": "it must be so", "concepts": ["thing"], "entity": "thing", "checklist": ["a thing"]},
    }  # fmt: skip
    tools.lines(tmp_path / "manifest.jsonl", [record])
    dataset = benchmark(name).load(tmp_path)
    assert dataset.variant == "own" and dataset.items[0].references[0].is_file()
    assert benchmark(name).places(dataset.items[0])[0] == "mine"
    tools.lines(tmp_path / "manifest.jsonl", [record | {"promt": "x"}])
    with pytest.raises(UserError, match=r"manifest.jsonl:1: promt"):
        benchmark(name).load(tmp_path)


@pytest.mark.parametrize(("name", "message"), [
    ("factip", "give references"), ("kitten", "extra.entity"), ("wise", "extra.explanation"), ("t2i-factual", "SKCM"),
    ("knowgen", "Pop Culture"), ("mindbench", "extra.checklist"),
])  # fmt: skip
def test_an_own_prompt_without_what_the_protocol_needs_is_refused(name, message, tmp_path):
    tools.lines(tmp_path / "manifest.jsonl", [{"id": "mine", "prompt": "p"}])
    with pytest.raises(UserError, match=f"manifest.jsonl: mine: .*{message}"):
        benchmark(name).load(tmp_path)


@pytest.mark.parametrize(("task", "concepts", "level"), [
    ("momerization", 1, "SKCM"), ("attribute variation", 1, "SKCI"), ("background_variation", 1, "SKCI"),
    ("differentiating", 2, "MKCC"), ("", 1, "SKCM"),
])  # fmt: skip
def test_without_a_folder_the_level_follows_from_the_task(task, concepts, level, tmp_path):
    names = [f"c{n}" for n in range(concepts)]
    row = {"concept": names, "sentence": "s", "reference_image": [f"animal/{n}.png" for n in names], "task": task}
    path = tools.lines(tmp_path / "rows.jsonl", [row])
    assert benchmark("t2i-factual").load(path).items[0].group == level


def test_an_id_that_occurs_twice_is_refused(tmp_path):
    tools.lines(tmp_path / "picworld.jsonl", [{"id": 1, "prompt": "a"}, {"id": "1", "prompt": "b"}])
    with pytest.raises(UserError, match="'1' occurs twice"):
        benchmark("picworld").load(tmp_path)


@pytest.mark.parametrize("wrong", ["../up", "/etc/x", "//etc/x", "a/../../b"])
def test_an_id_that_leads_out_of_the_folder_is_refused(wrong, tmp_path):
    tools.lines(tmp_path / "picworld.jsonl", [{"id": wrong, "prompt": "a"}])
    with pytest.raises(UserError, match="leads out"):
        benchmark("picworld").load(tmp_path)


def test_what_is_no_text_is_refused_before_it_is_sent(tmp_path):
    record = {"id": "a", "prompt": "b", "extra": {"note": "\ud800"}}
    (tmp_path / "manifest.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(UserError, match="surrogate"):
        benchmark("picworld").load(tmp_path)


def test_what_is_no_number_is_refused_before_it_is_hashed(tmp_path):
    (tmp_path / "manifest.jsonl").write_text('{"id": "a", "prompt": "b", "extra": {"year": NaN}}\n')
    with pytest.raises(UserError, match="'a' holds NaN or Infinity"):
        benchmark("picworld").load(tmp_path)


def test_picworld_has_the_mean_over_prompts_and_that_of_categories():
    bench = benchmark("picworld")
    items = [Item(name, "p", category) for name, category in (("a", "x"), ("b", "x"), ("c", "y"))]
    drawn = zip(items, (3.0, 6.0, 9.0), strict=True)
    results = [Result(item.id, "ok", dict.fromkeys(("score", "s1", "s2", "s3"), value)) for item, value in drawn]
    made = {t.name: t.value for t in totals(bench, items, results) if t.level == "total" and t.measure == "score"}
    assert made == pytest.approx({"Total": 6.0, "Mean of categories": 6.75})


def test_an_unknown_benchmark_or_option_is_answered_with_the_near_ones():
    with pytest.raises(UserError, match="did you mean 'kitten'"):
        benchmark("kiten")
    with pytest.raises(UserError, match="has no such option"):
        benchmark("wise", {"gate": "on"})
    with pytest.raises(UserError, match="on, off"):
        benchmark("picworld", {"gate": "open"})
    with pytest.raises(UserError, match="number"):
        benchmark("picworld", {"bonus": "much"})


def test_the_hash_of_a_data_set_follows_what_is_judged_and_not_where_it_lies(tmp_path):
    one, two = (benchmark("wise").load(tools.wise(tmp_path / name)).sha256 for name in "ab")
    assert one == two
    changed = tools.wise_record(701, "Biology") | {"Prompt": "new"}
    (tmp_path / "a/natural_science.json").write_text(json.dumps([changed]))
    assert benchmark("wise").load(tmp_path / "a").sha256 != two


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.floats(0, 100))), min_size=1, max_size=30))
def test_a_total_lies_within_its_interval_whatever_is_missing(drawn):
    items = [Item(str(n), "p", category) for n, (category, _) in enumerate(drawn)]
    parts = ("score", "clarity", "content", "aesthetics", "relevance")

    def run(fill):
        return totals(benchmark("factip"), items, [
            Result(str(n), "ok", dict.fromkeys(parts, fill if s is None else s)) if s is not None or fill is not None
            else Result(str(n), "unresolved")
            for n, (_, s) in enumerate(drawn)
        ])  # fmt: skip

    open_, filled = run(None), run(50.0)
    for a, b in zip(open_, filled, strict=True):
        assert a.low - 1e-9 <= b.value <= a.high + 1e-9
        assert (a.value is None) == (a.resolved < a.n)
        assert a.value is None or a.low == pytest.approx(a.value) == pytest.approx(a.high)
