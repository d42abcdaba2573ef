"""The page, the tables, the comparison: what they hold, what they refuse, that nothing from outside becomes markup."""

import csv
import json
import re
import shutil
import subprocess

import eval_tools as tools
import pytest
from chat_server import ChatServer

from benchmarks import report_page
from eval import charts
from eval.benchmarks.base import Item
from eval.run import Run
from eval.statistics import mcnemar, paired, wilcoxon
from eval.viewer import steps_of
from unify_agent.errors import UserError
from unify_agent.page import write_script

ATTACK = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two models on one data set; one picture of the second is missing and one prompt is hostile."""
    root = tmp_path_factory.mktemp("runs")
    data = tools.wise(root / "data")
    path = data / "natural_science.json"
    records = json.loads(path.read_text())
    records[0]["Prompt"] = ATTACK
    path.write_text(json.dumps(records))
    with ChatServer(tools.judge) as server:
        for name, skip in (("alpha", ()), ("beta", ("401",))):
            images = tools.draw("wise", data, root / name, skip, seed=name)
            (images / "1.txt").write_text("I should draw lanterns.")
            tools.score(server, "wise", data, images, root / f"run_{name}", "--partial")
    return root


def script(path):
    """The value that a script of the page assigns."""
    text = path.read_text(encoding="utf-8")
    return json.loads(text[text.index("= ") + 2 :].rstrip().removesuffix(";"))


def test_the_page_holds_everything_by_reference(runs, tmp_path, capsys):
    tools.command("report", runs / "run_alpha", runs / "run_beta", "--out", tmp_path / "page", "--paper")
    page = (tmp_path / "page/index.html").read_text(encoding="utf-8")
    assert "base64" not in page and "http" not in re.sub(r"http://www.w3.org/\S+", "", page)
    assert page.count("<svg") == 3 and "data.js" in page
    data = script(tmp_path / "page/data.js")
    assert data["runs"] == ["alpha", "beta"] and len(data["items"]) == 8
    cards = script(tmp_path / "page/cards/0.js")
    by_id = {item[0]: card for item, card in zip(data["items"], cards, strict=True)}
    first = by_id["1"]["runs"][0]
    index = [item[0] for item in data["items"]]
    assert (tmp_path / "page" / first["thumb"]).is_file() and (tmp_path / "page" / first["file"]).resolve().is_file()
    rows = data["items"][index.index("401")][3]
    assert rows[0][:2] == [by_id["401"]["runs"][0]["scores"]["score"], "ok"] and rows[1] == [None, "missing", 0, 0]
    assert by_id["1"]["extra"]["explanation"]
    assert data["categories"][data["items"][index.index("901")][2]] == "Chemistry"
    details = script(tmp_path / "page/details/0.js")[index.index("1")]
    assert details[0]["made"] == [{"title": "thought", "text": "I should draw lanterns."}]
    assert '"consistency"' in details[0]["trail"][0]["text"] and details[0]["trail"][0]["model"] == "judge-2026"
    rows = list(csv.DictReader((tmp_path / "page/table.csv").open()))
    assert [row["model"] for row in rows[:2]] == ["alpha", "beta"] and rows[-1]["model"] == "Unify-Agent (Ours)"
    assert rows[-1]["total/Total/score"] == "0.77" and ".." in rows[1]["total/Total/score"]
    assert json.loads((tmp_path / "page/table.json").read_text())["rows"][-1]["source"] == "paper"
    assert "| Unify-Agent (Ours) (paper) | 0.770 |" in (tmp_path / "page/table.md").read_text()


def test_a_picture_that_changed_since_it_was_judged_is_not_shown_beside_its_verdict(runs, tmp_path):
    for name in ("run_alpha", "alpha"):
        shutil.copytree(runs / name, tmp_path / name)
    tools.picture(tmp_path / "alpha/1.png", "drawn anew")
    (tmp_path / "alpha/2.png").unlink()
    tools.command("report", tmp_path / "run_alpha", "--out", tmp_path / "page")
    index = [item[0] for item in script(tmp_path / "page/data.js")["items"]]
    cards = script(tmp_path / "page/cards/0.js")
    thumb = {number: cards[index.index(number)]["runs"][0]["thumb"] for number in ("1", "2", "901")}
    assert thumb["1"] is None and thumb["2"] == "" and thumb["901"].startswith("thumbs/")
    assert len(list((tmp_path / "page/thumbs").iterdir())) == 6


def test_two_runs_of_one_folder_each_show_only_what_they_judged(tmp_path):
    data = tools.wise(tmp_path / "data")
    with ChatServer(tools.judge) as server:
        for name in ("before", "after"):
            images = tools.draw("wise", data, tmp_path / "images", seed=name)
            tools.score(server, "wise", data, images, tmp_path / name, "--name", name)
    tools.command("report", tmp_path / "before", tmp_path / "after", "--out", tmp_path / "page")
    for card in script(tmp_path / "page/cards/0.js"):
        first, second = (run["thumb"] for run in card["runs"])
        assert first is None and second.startswith("thumbs/")


def test_text_from_outside_never_becomes_markup(runs, tmp_path):
    tools.command("report", runs / "run_alpha", "--out", tmp_path / "page")
    for path in (tmp_path / "page").rglob("*"):
        if path.suffix in (".html", ".js"):
            assert ATTACK not in path.read_text(encoding="utf-8")
    write_script(tmp_path / "half.js", "HALF", "\ud800")  # as a record cut in the middle of a pair has it
    assert script(tmp_path / "half.js") == "?"
    assert ATTACK in [item[1] for item in script(tmp_path / "page/data.js")["items"]]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_shows_filters_and_sorts_the_items(runs, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    tools.command("report", runs / "run_alpha", runs / "run_beta", "--out", tmp_path / "page")
    patience = 120_000  # milliseconds
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"], timeout=patience
        )
        tab, problems = browser.new_page(), []
        tab.set_viewport_size({"width": 1280, "height": 200})
        tab.set_default_timeout(patience)
        playwright.expect.set_options(timeout=patience)
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("request", lambda request: problems.append(request.url) if request.url.startswith("http") else None)
        tab.goto((tmp_path / "page/index.html").as_uri())
        entries = tab.locator("#items .entry")
        playwright.expect(entries).to_have_count(8)
        assert tab.locator("#items img").count() == 0  # nothing is read before it comes into view
        entries.first.scroll_into_view_if_needed()
        playwright.expect(entries.first.locator("img")).to_have_count(2)
        results = [Run.open(runs / f"run_{name}").results() for name in ("alpha", "beta")]
        scores = [{r.id: r.scores.get("score") for r in some} for some in results]
        worst = min(scores[0].values())
        assert f"{worst:.3f}" in entries.first.text_content()
        tab.select_option("#run", "1")
        tab.select_option("#show", "missing")
        playwright.expect(entries).to_have_count(1)
        playwright.expect(entries.first).to_contain_text("no picture 401.png")
        tab.select_option("#show", "")
        tab.fill("#query", "riddle 530")
        playwright.expect(entries).to_have_count(1)
        entries.first.locator("summary").click()
        playwright.expect(entries.first.locator(".said")).to_contain_text("judge-2026")
        tab.fill("#query", ATTACK)
        playwright.expect(entries.first.locator("q")).to_have_text(ATTACK)
        tab.fill("#query", "")
        tab.select_option("#order", "gap")
        gaps = {i: abs(a - b) for i, a in scores[0].items() if (b := scores[1][i]) is not None}
        playwright.expect(entries.first.locator(".where")).to_contain_text(max(gaps, key=gaps.get))
        browser.close()
    assert problems == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_how_fast_the_page_opens_can_be_measured(monkeypatch, capsys):
    pytest.importorskip("playwright.sync_api")
    arguments = ["--items", "12", "--models", "2", "--size", "16", "--visits", "1", "--json"]
    monkeypatch.setattr("sys.argv", ["report_page", *arguments])
    report_page.main()
    row = json.loads(capsys.readouterr().out)[0]
    assert row["items"] == 12 and 0 < row["ready_ms"] < row["start_and_open_ms"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_page_s_script_parses(runs, tmp_path):
    tools.command("report", runs / "run_alpha", "--out", tmp_path / "page")
    found = re.findall(r"<script>(.*?)</script>", (tmp_path / "page/index.html").read_text(), re.DOTALL)
    for number, text in enumerate(found):
        (tmp_path / f"{number}.js").write_text(text)
        assert subprocess.run(["node", "--check", tmp_path / f"{number}.js"], check=False).returncode == 0


def test_a_page_is_made_again_the_same_and_small_copies_are_kept(runs, tmp_path):
    def files():
        return {path.name: path.read_bytes() for path in (tmp_path / "page").rglob("*") if path.is_file()}

    tools.command("report", runs / "run_alpha", "--out", tmp_path / "page")
    before = files()
    tools.command("report", runs / "run_alpha", "--out", tmp_path / "page")
    assert files() == before


def test_two_models_are_compared_on_what_both_have(runs, tmp_path, capsys):
    tools.command("compare", runs / "run_alpha", runs / "run_beta", "--out", tmp_path, "--pass-at", "0.4")
    made = json.loads((tmp_path / "compare.json").read_text())
    scores = [{r.id: r.scores["score"] for r in Run.open(runs / f"run_{n}").results() if r.scores} for n in
              ("alpha", "beta")]  # fmt: skip
    assert made["left_out"] == 1 and "401" not in scores[1]
    assert made["rows"]["Cultural"]["difference"] == pytest.approx(
        sum(scores[1][i] - scores[0][i] for i in "12") / 2, abs=1e-6
    )
    gained = {i for i in scores[1] if scores[0][i] < 0.4 <= scores[1][i]}
    lost = {i for i in scores[1] if scores[1][i] < 0.4 <= scores[0][i]}
    assert set(made["gained"]) == gained and set(made["lost"]) == lost
    assert "p McNemar" in capsys.readouterr().out


@pytest.mark.parametrize(("change", "key"), [
    (lambda facts: facts["judge"].update(served="another"), "judge.served"),
    (lambda facts: facts["judge"].update(answered_as=["x"]), "judge.answered_as"),
    (lambda facts: facts["judge"]["pictures"].update(longest=9), "judge.pictures.longest"),
    (lambda facts: facts["data"].update(sha256="0"), "data.sha256"),
    (lambda facts: facts.update(template_sha256="0"), "template_sha256"),
    (lambda facts: facts.update(kept={"checklists": "0"}), "kept.checklists"),
])  # fmt: skip
def test_scores_of_different_judges_or_data_are_never_set_side_by_side(change, key, runs, tmp_path):
    shutil.copytree(runs / "run_beta", tmp_path / "other")
    report = json.loads((tmp_path / "other/report.json").read_text())
    change(report)
    (tmp_path / "other/report.json").write_text(json.dumps(report))
    for command in ("compare", "report"):
        with pytest.raises(UserError, match=f"cannot be compared: {key} differs"):
            tools.command(command, runs / "run_alpha", tmp_path / "other")


def test_what_cannot_be_shown_is_refused_in_words(runs, tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        tools.command("report", tmp_path)
    with pytest.raises(UserError, match="two runs are called 'alpha'"):
        tools.command("report", runs / "run_alpha", runs / "run_alpha")
    shutil.copytree(runs / "run_alpha", tmp_path / "half")
    (tmp_path / "half/report.json").unlink()
    with pytest.raises(UserError, match="no such report"):
        tools.command("report", tmp_path / "half")


def test_a_mark_that_is_no_number_is_refused(runs):
    with pytest.raises(UserError, match="--pass-at nan"):
        tools.command("compare", runs / "run_alpha", runs / "run_beta", "--pass-at", "nan")


def test_a_benchmark_without_printed_rows_has_no_paper_beside_it(tmp_path):
    data = tools.wise(tmp_path / "data", tools.VERIFIED_IDS)
    images = tools.draw("wise-verified", data, tmp_path / "im")
    with ChatServer(tools.judge) as server:
        tools.score(server, "wise-verified", data, images, tmp_path / "run")
    with pytest.raises(UserError, match="print no row for wise-verified"):
        tools.command("report", tmp_path / "run", "--paper")


def test_paired_tests_agree_with_what_is_known():
    assert wilcoxon([0, 0]) is None and mcnemar(0, 0) is None
    assert wilcoxon([1, 2, 3, 4, 5, 6]) == pytest.approx(2 / 2**6)
    assert mcnemar(5, 0) == pytest.approx(2 / 2**5) and mcnemar(3, 3) == 1
    items = [Item(str(n), "p", "ab"[n % 2]) for n in range(8)]
    a, b = ({i.id: v for i in items} for v in (0.2, 0.7))
    same = {i.id: 1 / 8 for i in items}
    found = paired(items, a, b, same, True, 0.5)
    assert (found.difference, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    assert (found.gained, found.lost) == (8, 0)


def test_a_trajectory_becomes_steps_and_long_texts_are_cut():
    made = steps_of({"turns": [{"response_text": "x" * 5000, "tool_output": "found"}, "junk"], "recaption": "an owl"})
    assert [step["title"] for step in made] == ["turn 0: model", "turn 0: found", "recaption"]
    assert made[0]["text"].endswith("(1000 more characters)")
    assert steps_of(None) == []


def test_a_radar_needs_three_axes_and_leaves_gaps():
    assert charts.radar(["a", "b"], {"x": [1.0, 0.5]}) == ""
    drawn = charts.radar(["a", "b", "<c>"], {"x": [1.0, 0.5, 0.2], "y": [1.0, None, 0.2]})
    assert drawn.count('<polygon class="line') == 1 and drawn.count("<polyline") == 1 and "&lt;c&gt;" in drawn
