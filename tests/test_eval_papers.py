"""The papers' tables: what follows from their formulas and what does not, and the page that says so."""

from pathlib import Path

import pytest

from eval.benchmarks import BENCHMARKS
from eval.papers import beside, printed
from eval.papers.arithmetic import OURS, REORDERED, claims, fitted, page, scenes

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
