"""The report's figures, and the page that replays a run on its map (in headless Chromium, where there is one)."""

from __future__ import annotations

import json
import shutil

import pytest
from world_agent_tools import CASE, tiny_case, tiny_family

from eval.world_agent.deduce.baselines import baseline
from eval.world_agent.deduce.episode import Episode, score_episode
from eval.world_agent.figures import decline, deduce_figures, maintain_figures
from eval.world_agent.judging import ReferenceJudge
from eval.world_agent.maintain import Game, maintain
from eval.world_agent.policies import Scripted, policy
from eval.world_agent.replay_page import write_page
from eval.world_agent.report import read_scores, write_report
from eval.world_agent.statistics import paired, pearson
from unify_agent.errors import UserError


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two players in three tiers, two more in both modes of a family's five folds."""
    folder = tmp_path_factory.mktemp("report")
    case, family = tiny_case(folder), tiny_family(folder)
    for name in ("oracle", "sloppy"):
        for tier in ("easy", "hard", "extreme"):
            game = Game(folder / name / tier, case, tier, policy(name, case, tier), 20)
            maintain(game, lambda case, engine: ReferenceJudge(case, engine.log))
    for name in ("oracle", "noisy"):
        for mode in ("m1", "m2"):
            for fold in range(5):
                place = folder / name / f"{mode}_{fold}"
                Episode(place, family, mode, "open", fold, baseline(name, family, fold)).play()
                score_episode(place)
    return folder


def scores_of(runs, track):
    paths = sorted(file.parent for file in runs.rglob("score.json"))
    return [score for score in read_scores(paths) if score["track"] == track]


def test_components_stand_by_player_and_tier(runs):
    figures = maintain_figures(scores_of(runs, "maintain"))
    oracle, sloppy = figures["players"]["oracle"]["tiers"], figures["players"]["sloppy"]["tiers"]
    assert set(oracle) == {"easy", "hard", "extreme"}
    assert all(each["completion"] == each["relation"] == 1.0 for each in oracle.values())
    assert all(each["completion"] < 1 for each in sloppy.values())
    assert oracle["easy"]["components"]["CA"] == 1.0
    assert figures["radar"]["oracle"]["E"] > 1 > figures["radar"]["sloppy"]["E"]
    contrast = next(c for c in figures["contrasts"] if (c["first"], c["second"]) == ("oracle", "sloppy"))
    assert contrast["n"] == 3 and contrast["difference"] > 0 and contrast["p"] == 0.25


def test_an_open_run_leaves_a_gap_in_the_table_and_no_smaller_mean(runs):
    scores = [dict(score) for score in scores_of(runs, "maintain")]
    scores[0]["total"] = None
    tiers = maintain_figures(scores)["players"][scores[0]["player"]]["tiers"][scores[0]["tier"]]
    assert tiers["completion"] is None and tiers["unresolved"] == 1
    episodes = [json.loads(json.dumps(score)) for score in scores_of(runs, "deduce")]
    mine = next(score for score in episodes if score["mode"] == "m2")
    mine["readouts"]["lookahead"]["f1"] = None
    row = next(r for r in deduce_figures(episodes)["rows"] if (r["player"], r["mode"]) == (mine["player"], "m2"))
    assert row["lookahead"] is None and row["interval"] is not None


def test_deduction_figures_stand_by_family_mode_and_condition(runs):
    figures = deduce_figures(scores_of(runs, "deduce"))
    oracle = next(r for r in figures["rows"] if (r["player"], r["mode"]) == ("oracle", "m2"))
    noisy = next(r for r in figures["rows"] if (r["player"], r["mode"]) == ("noisy", "m2"))
    assert oracle["interval"] == oracle["counterfactual"] == 1.0 > noisy["interval"] and oracle["segment"] is None
    assert oracle["episodes"] == 5 and oracle["goal"] is not None and 0 < oracle["upkeep"] <= 1
    compared = next(c for c in figures["comparisons"] if c["what"] == "m2 open interval")
    assert compared["n"] == 5 and compared["difference"] < 0 and compared["r"] is None, "one family has no correlation"
    cost = next(c for c in figures["costs"] if (c["player"], c["mode"]) == ("oracle", "m2"))
    assert cost["readouts"] == 5 * (4 + 4 + 1 + 1) and cost["tokens"] == 0


def test_decline_follows_the_rounds():
    rounds = [{"completion": value, "relation": None} for value in ("1.0000", "0.5000")]
    assert decline([{"rounds": rounds}]) == {"completion": [(0.05, 1.0), (0.55, 0.5)], "relation": []}


def test_statistics_use_the_cells_that_both_have():
    first = {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.9, "e": 0.6, "z": 0.1}
    second = {"a": 0.5, "b": 0.6, "c": 0.4, "d": 0.3, "e": 0.5}
    result = paired(first, second)
    assert result.n == 5 and result.difference == pytest.approx(0.32) and result.p == pytest.approx(0.0625)
    assert paired(first, first).p is None and paired(first, {"y": 1.0}) is None
    n, r, p = pearson(first, {key: 2 * value for key, value in first.items()})
    assert n == 6 and r == pytest.approx(1.0) and p < 1e-6
    assert pearson({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}) is None
    assert pearson(first, dict.fromkeys(first, 1.0)) is None


def test_the_report_is_one_page_and_one_json(runs, tmp_path):
    paths = sorted(file.parent for file in runs.rglob("score.json"))
    page = write_report(paths, tmp_path)
    text = page.read_text(encoding="utf-8")
    for word in ("Maintenance", "Decline over rounds", "Deduction", "Cost per readout", "drip", "Wilcoxon", "<polygon"):
        assert word in text
    assert "<script" not in text and "http" not in text.replace("http://www.w3.org", "")
    assert json.loads((tmp_path / "report.json").read_text())["runs"] == len(paths)


def test_runs_of_two_judges_are_not_put_into_one_report(runs, tmp_path):
    copied = tmp_path / "copy"
    shutil.copytree(runs / "oracle" / "easy", copied)
    score = json.loads((copied / "score.json").read_text())
    score["judge"] = {"judge": "another"}
    (copied / "score.json").write_text(json.dumps(score))
    with pytest.raises(UserError, match="never mixed"):
        write_report([copied, runs / "oracle" / "easy"], tmp_path)
    (copied / "score.json").unlink()
    with pytest.raises(UserError, match="run `score` first"):
        write_report([copied], tmp_path)


def test_a_page_shows_one_maintenance_run(runs, tmp_path):
    with pytest.raises(UserError, match="one maintenance run; 2 runs"):
        write_page([runs / "oracle" / "easy", runs / "oracle" / "hard"], tmp_path / "page.html")
    with pytest.raises(UserError, match="one maintenance run"):
        write_page([runs / "oracle" / "m1_0"], tmp_path / "page.html")


def test_what_a_player_wrote_stays_text_in_the_page(runs, tmp_path):
    folder = tmp_path / "run"
    case = tiny_case(tmp_path)
    game = Game(folder, case, "extreme", policy("oracle", case, "extreme"), 20)
    wicked = {"id": "ann", "type": "person", "holder": "den", "name": "</script><script>alert(1)</script>"}
    plain = game.player.reply

    def reply(turn):
        said = plain(turn)
        calls = tuple(
            type(call)(call.id, call.name, json.dumps(wicked)) if json.loads(call.text).get("id") == "ann" else call
            for call in said.calls
        )
        return type(said)(said.text, calls)

    game.player.reply = reply
    game.play()
    text = write_page([folder], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "alert(1)" in text and text.count("<script") == 2 and "</script><script>alert" not in text


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    playwright = pytest.importorskip("playwright.sync_api")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as session:
        opened = session.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


def test_the_page_replays_a_run_step_by_step_on_its_map(runs, tmp_path, browser):
    path = write_page([runs / "oracle" / "extreme"], tmp_path / "page.html")
    page = browser.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: faults.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(path.as_uri())
    assert page.locator("[data-entity]").count() == 0, "tier extreme begins with its map alone"
    rows = int(page.locator("#at").get_attribute("max"))
    log = [json.loads(line) for line in (runs / "oracle" / "extreme" / "log.jsonl").read_text().splitlines()]
    judged = json.loads((runs / "oracle" / "extreme" / "score.json").read_text())["rounds"]
    assert rows == len(log)
    for number, row in enumerate(log, 1):
        page.click("#next")
        assert f"row {number} of {rows}, round {row['round']}" in page.locator("#place").inner_text()
        for item in row["batch"]:
            if row["kind"] == "trigger" and item["write"] and item["write"]["path"] == "ann.holder":
                assert page.locator(f"#tile-{item['write']['new']} [data-entity=ann].changed").count() == 1
        if row["kind"] == "end_round":
            assert page.locator("#what li", has_text="✓").count() == len(judged[row["round"] - 1]["items"])
    page.click("#next")
    assert f"row {rows} of" in page.locator("#place").inner_text(), "the end is the end"
    page.click("#back")
    page.keyboard.press("ArrowLeft")
    assert f"row {rows - 2} of" in page.locator("#place").inner_text()
    assert faults == []
    page.close()


def test_the_page_shows_fields_of_tiles_and_what_a_thing_begins_with(tmp_path, browser):
    text = CASE.replace("name: the hall, at: [1, 0]", "name: the hall, at: [1, 0], fields: {wet: no}")
    case = tiny_case(tmp_path, text)
    flood = {"target": "hall", "field": "wet", "value": "'yes'"}
    build = [
        ("define_type", {"id": "constructor", "fields": {"full": {"kind": "bool"}, "size": {"kind": "int", "low": 2}}}),
        ("create_entity", {"id": "constructor", "type": "constructor", "holder": "hall"}),
        ("define_capability", {"id": "flood", "write": flood}), ("trigger", {"batch": [{"capability": "flood"}]}),
    ]  # fmt: skip
    player = Scripted("builder", lambda number: [[*(build if number == 1 else []), ("end_round", {})]])
    Game(tmp_path / "run", case, "extreme", player, 2).play()
    page = browser.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(write_page([tmp_path / "run"], tmp_path / "page.html").as_uri())
    assert page.locator("#tile-hall small").inner_text() == "wet no"
    for _ in build:
        page.click("#next")
    assert page.locator("#tile-hall small").inner_text() == "wet yes"
    chip = page.locator("#tile-hall [data-entity=constructor]")
    assert chip.get_attribute("title") == "constructor: full false, size 2" and faults == []
    page.close()
