"""The papers' tables: what follows from their formulas and what does not, and the page that says so."""

from pathlib import Path

import pytest

from eval.benchmarks import BENCHMARKS
from eval.papers import beside, printed
from eval.papers.arithmetic import (
    OURS,
    PICWORLD_COUNTS,
    PICWORLD_DOMAINS,
    REORDERED,
    claims,
    fitted,
    group_scores,
    page,
    scenes,
)

CLAIMS = {claim.title: claim for claim in claims()}
COLUMNS = {
    "factip_groups": (28, 13), "factip": (28, 13), "factip_ablation": (9, 10), "wise": (26, 7), "kitten": (10, 19),
    "t2i_factual": (10, 8), "picworld": (17, 10),
}  # fmt: skip


@pytest.mark.parametrize(("name", "shape"), COLUMNS.items())
def test_every_row_of_the_papers_is_there(name, shape):
    rows = printed(name)
    assert (len(rows), len(rows[1].values)) == shape and len({row.model for row in rows}) == len(rows)


@pytest.mark.parametrize(("title", "broken"), [
    ("Table 1, overall, six rows read group by group", {OURS}),
    ("Table 1, groups against Table 8", {f"{OURS}, scene"}),
    ("Table 8, overall, weights that fit", set()),
    ("Table 2, overall, weighted", {"BAGEL", "BAGEL+CoT"}),
    ("Table 3, text", set()),
    ("Table 3, entity", {"Bagel-CoT"}),
    ("Table 3, all", set()),
    ("Table 4, SKCI", set()),
    ("Table 4, MKCC", set()),
    ("Table 5, change of overall", set()),
    ("Table 5, columns", {f"{OURS}, clarity"}),
    ("PicWorld Table 1, score, counts that fit", {"FLUX.1-dev", "HiDream-l1-Full", "JanusPro-1B"}),
])  # fmt: skip
def test_all_rows_but_these_follow(title, broken):
    assert {row.model for row in CLAIMS[title].broken} == broken


@pytest.mark.parametrize("title", ["Table 5, overall", "PicWorld Table 1, score, as the text states it"])
def test_no_row_follows_from_what_the_text_states(title):
    assert len(CLAIMS[title].broken) == len(CLAIMS[title].rows)


def test_six_rows_are_printed_in_another_order():
    as_printed = {row.model for row in CLAIMS["Table 1, overall, weights that fit"].broken}
    assert as_printed - {OURS} <= set(REORDERED) and len(as_printed) >= 5


@pytest.mark.parametrize(("model", "read", "printed_so"), [
    ("Seeddream-5", 87.4, 91.3), ("Nano Banana-2", 91.8, 93.7),
])  # fmt: skip
def test_rows_that_fit_either_way_are_settled_by_table_8(model, read, printed_so):
    row = next(row for row in printed("factip_groups") if row.model == model)
    assert round(group_scores(row, True)["object"], 1) == read
    assert round(group_scores(row)["object"], 1) == printed_so


def test_weights_that_fit_are_not_those_of_the_text():
    assert CLAIMS["Table 1, overall, weights that fit"].formula.endswith("(69.3 %, 18.4 %, 12.4 %)")
    assert len(CLAIMS["Table 1, overall, as the text states it"].broken) == 21
    assert len(CLAIMS["Table 8, overall, as the text states it"].broken) == 28


def test_cells_that_picworld_prints_twice_and_figures_that_its_text_takes_from_another_column():
    rows = {row.model: row.values for row in printed("picworld")}
    seedream = next(name for name in rows if name.lower().startswith("seed"))
    dalle = next(name for name in rows if name.upper().startswith("DALL"))
    for column in ("culture", "reasoning"):
        assert rows["FLUX.1-dev"][column] == rows[seedream][column]
    assert rows["HiDream-l1-Full"]["light"] == rows[dalle]["light"]
    assert (rows[seedream]["reasoning"], rows[seedream]["score"]) == (6.13, 6.46)
    columns = list(PICWORLD_COUNTS)
    assert [sum(PICWORLD_COUNTS[c] for c in columns[k : k + 3]) for k in (0, 3, 6)] == [450, 200, 450]
    assert list(PICWORLD_DOMAINS.values()) == [550, 200, 350]


def test_bagel_cot_s_entity_score_is_a_point_below_its_columns():
    wrong = next(row for row in CLAIMS["Table 3, entity"].rows if row.model == "Bagel-CoT")
    assert (wrong.stated, round(wrong.computed, 2)) == (2.02, 3.02)


def test_the_headline_follows_from_neither_table():
    scene, landmark, festival = scenes()
    assert scene > max(landmark, festival)
    heads = [printed(name)[-1].values["overall"] for name in ("factip_groups", "factip")]
    assert heads == [73.2, 71.7]


def test_unweighted_wise_rows_are_the_two_of_bagel():
    unweighted = {row.model: row for row in CLAIMS["Table 2, overall, unweighted"].rows}
    assert unweighted["BAGEL"].follows and unweighted["BAGEL+CoT"].follows and not unweighted[OURS].follows


def test_fitted_weights_are_found_again():
    rows = [[1, 5, 2], [4, 1, 7], [9, 2, 3], [3, 3, 8]]
    truth = [0.5, 0.3, 0.2]
    assert fitted(rows, [sum(w * x for w, x in zip(truth, row, strict=True)) for row in rows]) == pytest.approx(truth)


def test_rows_beside_a_result_stand_in_the_places_of_our_reports():
    for name in {kind.paper for kind in BENCHMARKS.values() if kind.paper}:
        assert beside(name) and all(values for _, values in beside(name))
    ours = dict(beside("t2i_factual"))[OURS]
    assert ours["group", "SKCI", "score"] == pytest.approx(0.774)
    assert ours["group", "SKCM", "score"] == ours["group", "SKCM", "concept"] == pytest.approx(0.692)
    assert dict(beside("kitten"))[OURS]["category", "Aircraft", "entity"] == 3.59


def test_the_page_says_what_is_computed():
    assert (Path(__file__).parents[1] / "docs" / "papers.md").read_text(encoding="utf-8") == page()
