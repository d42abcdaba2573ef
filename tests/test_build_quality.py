"""Quality control of a data build: what is counted, what is nearly the same, and the page that shows it."""

import json
import shutil
from pathlib import Path

import pytest
from build_lists import picture, spec, write_journal

from data.build import contact_sheet, items, quality
from data.build.contracts import Trial
from data.build.items import Item, read_items
from data.build.journal import Journal, Outcome
from unify_agent.datasets.trajectory import Reference, Trajectory, Turn
from unify_agent.errors import UserError
from unify_agent.page import escape

ATTACK = "</script><img src=x onerror=alert(1)><script>alert(2)</script>"
PROMPTS = ["At dawn {} carries a parcel over the wet roofs.", "A child waves as {} lands beside the ticket desk."]


def record(folder, id, category, seed, licence="CC0"):
    """An accepted task in the training layout."""
    place = folder / "train" / category
    picture(place / "intermediate" / id / "image_1.png", 50 + seed)
    picture(place / "images" / f"{id}_0.png", seed)
    turns = [Turn(input="ask", response_text="call"), Turn(input="found", response_text="recaption")]
    made = Trajectory(
        ip_index=id, full_response=turns, recaption=f"Recaption of {id}", generated_image=f"images/{id}_0.png",
        references=[Reference(file=f"intermediate/{id}/image_1.png", source="https://a.example", licence=licence)],
    )  # fmt: skip
    (place / "traj").mkdir(exist_ok=True)
    (place / "traj" / f"{id}_trajectory.json").write_text(made.to_json())


@pytest.fixture
def run(tmp_path):
    """The folder of a run: six tasks, two entities that were dropped. Returns its spec."""
    folder = tmp_path / "out"
    seed = picture(tmp_path / "seed.png", 99)

    def entity(id, state="done", **about):
        about = {"names": {"en": f"Owl {id}"}, "category": "toy", "seeds": [str(seed)]} | about
        return Outcome("entity", id, state, about=about, **({"stage": "entities", "reason": "too common"}
                                                            if state == "dropped" else {}))  # fmt: skip

    def task(id, owner, state="done", number=0, language="en", trials=(), **more):
        about = {"prompt": PROMPTS[number].format(f"Owl {owner}"), "language": language, "form": "action",
                 "difficulty": "direct", "category": "toy", "trials": list(trials)}  # fmt: skip
        return Outcome("task", id, state, owner, about=about, **more)

    trials = [{"number": k, "picture": f"pictures/{k}.png", "accepted": k == 2, "reason": "" if k == 2 else ATTACK,
               "scores": {"identity": 4.5 + k}} for k in (1, 2)]  # fmt: skip
    for k in (1, 2):
        picture(folder / "pictures" / f"{k}.png", 30 + k)
    lines = [
        entity("a", names={"en": ATTACK}), entity("b"), entity("c"), entity("d", "dropped"), entity("e", "dropped"),
        task("a-p1", "a", trials=trials), task("a-p2", "a", number=1), task("b-p1", "b"), task("b-p2", "b", "held_out"),
        task("c-p1", "c", "dropped", stage="verification", reason="not the same", detail=ATTACK, trials=trials[:1]),
        task("c-p2", "c", number=1),
    ]  # fmt: skip
    for name, look in (("a-p1", 1), ("a-p2", 2), ("b-p1", 1)):
        record(folder, name, "toy", look, ATTACK)
    write_journal(folder, lines)
    return spec(tmp_path)


def read_script(path):
    return json.loads(path.read_text(encoding="utf-8").partition(" = ")[2].rstrip(";\n"))


def test_items_are_read_from_the_journal_and_the_training_layout(run):
    found = {item.id: item for item in read_items(run.out)}
    assert [item.state for item in found.values()] == [
        "done", "done", "done", "held_out", "dropped", "left_out", "dropped", "dropped",
    ]  # fmt: skip
    assert found["b-p1"].recaption == "Recaption of b-p1" and found["b-p1"].turns == 2 and found["b-p1"].letters == 21
    assert found["b-p1"].references[0][1] == {"source": "https://a.example", "licence": ATTACK}
    assert found["c-p1"].why == "verification: not the same" and found["c-p1"].trials[0].scores == {"identity": 5.5}
    assert found["d"].why == "entities: too common" and not found["d"].prompt


def test_statistics_count_all_of_it(run):
    found = quality.statistics(run.out, run)
    assert found == json.loads((run.out / "quality" / "statistics.json").read_text())
    assert found["tasks"] == 6 and found["entities_without_a_task"] == 2
    assert found["states"] == {"done": 3, "dropped": 3, "held_out": 1, "left_out": 1}
    assert found["accepted_of_settled"] == 0.75
    assert found["reasons"] == {"entities: too common": 2, "verification: not the same": 1}
    assert found["language"] == {"en": {"done": 3, "dropped": 1, "held_out": 1, "left_out": 1}}
    assert found["rounds"] == {"2": 3} and found["trials"] == {"1": 1, "2": 1} and found["references"] == {"1": 3}
    assert found["length"]["trajectory"]["p50"] == 21
    assert (run.out / "quality" / "statistics.png").read_bytes().startswith(b"\x89PNG")


def test_a_task_whose_prompt_was_refused_is_a_task(run):
    with Journal(run.out / items.JOURNAL) as journal:
        journal.append(Outcome(
            "task", "a-p3", "dropped", "a", "prompts", "no prompt could be taken",
            about={"prompt": "", "language": "en", "form": "action", "difficulty": "direct", "category": "toy"},
        ))  # fmt: skip
    before = quality.statistics(run.out, run)
    assert before["tasks"] == 7 and before["entities_without_a_task"] == 2
    assert before["reasons"]["prompts: no prompt could be taken"] == 1 and before["length"]["prompt"]["p0"] > 0


def test_near_duplicates_are_listed_names_apart(run):
    quality.statistics(run.out, run)
    near = json.loads((run.out / "quality" / "near.json").read_text())
    assert near["prompts"]["groups"] == [["a-p1", "b-p1", "b-p2", "c-p1"], ["a-p2", "c-p2"]]
    assert near["pictures"]["groups"] == [["a-p1", "b-p1"]] and near["pictures"]["unreadable"] == []


def test_a_run_without_anything_says_so(tmp_path):
    with pytest.raises(UserError, match="no build has begun here"):
        quality.sheet(tmp_path / "none", spec(tmp_path))


def test_statistics_of_nothing_are_statistics(run):
    (run.out / items.JOURNAL).write_text("")
    quality.report(run.out, run)
    assert json.loads((run.out / "quality" / "statistics.json").read_text())["accepted_of_settled"] is None


def test_the_page_holds_no_markup_of_others_and_old_thumbs_go(run):
    quality.report(run.out, run)
    out = run.out / "quality"
    for path in out.rglob("*"):
        if path.suffix in (".html", ".js", ".css"):
            assert ATTACK not in path.read_text(encoding="utf-8")
    html = (out / "index.html").read_text()
    assert escape(contact_sheet.POLICY) in html and "onerror" not in html
    cards = {card["id"]: card for card in read_script(out / "parts" / "0.js")}
    assert cards["c-p1"]["detail"] == ATTACK and cards["a-p1"]["near"] == ["b-p1", "b-p2", "c-p1"]
    titles = [title for _, title, _ in cards["a-p1"]["pictures"]]
    assert titles == ["reference 1", "trial 1: refused", "trial 2: accepted", "seed 1"]
    thumbs = {path.name for path in (out / "thumbs").iterdir()}
    (out / "thumbs" / "old.jpg").write_bytes(b"")
    quality.sheet(run.out, run)
    assert {path.name for path in (out / "thumbs").iterdir()} == thumbs


def test_pictures_that_are_gone_are_said_to_be(run):
    shutil.rmtree(run.out / "pictures")
    quality.report(run.out, run)
    (card,) = (c for c in read_script(run.out / "quality" / "parts" / "0.js") if c["id"] == "c-p1")
    assert [thumb != "" for thumb, _, _ in card["pictures"]] == [False, True]


def many(count):
    """Items of which few were dropped, for one of two reasons."""
    for k in range(count):
        why = {0: "seldom", 1: "often"}.get(k % 50, "")
        yield Item(f"i{k}", f"N{k}", "toy", "dropped" if why else "done", prompt=f"P{k}", reason=why, language="en",
                   trials=(Trial(1, Path("gone.png"), not why),))  # fmt: skip


def test_of_many_items_some_of_every_reason_are_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(contact_sheet, "MOST", 100)
    monkeypatch.setattr(contact_sheet, "EACH", 5)
    contact_sheet.write(tmp_path, lambda: many(1000), {}, 0)
    data = read_script(tmp_path / "items.js")
    whys = [data["filters"]["why"][row[-1]] for row in data["rows"]]
    assert len(whys) == 100 and whys.count("seldom") >= 5 and whys.count("often") >= 5 and whys.count("") > 50
    assert len(list((tmp_path / "parts").iterdir())) == 3 and "100 of 1,000" in (tmp_path / "index.html").read_text()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_filters_turns_pages_and_runs_nothing_foreign(run, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    quality.report(run.out, run)
    big = contact_sheet.write(tmp_path / "big", lambda: many(130), {}, 0)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"], timeout=120_000
        )
        tab, problems = browser.new_page(), []
        tab.set_default_timeout(120_000)
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
        tab.on("request", lambda asked: problems.append(asked.url) if not asked.url.startswith("file:") else None)
        tab.goto((run.out / "quality" / "index.html").as_uri())
        tab.locator(".entry").nth(7).wait_for()
        tab.locator("#why").select_option(label="verification: not the same (1)")
        card = tab.locator(".entry[data-id=c-p1]")
        card.wait_for()
        assert tab.locator(".entry").count() == 1
        assert ATTACK in card.inner_text() and "identity 5.5" in card.inner_text()
        assert tab.evaluate("[...document.images].every(picture => picture.complete && picture.naturalWidth > 0)")
        tab.locator("#why").select_option("")
        tab.locator("#near").check()
        assert tab.locator("#count").inner_text() == "6 of 8"
        tab.locator("#query").fill("b-P1")
        tab.locator(".entry[data-id=b-p1]").wait_for()
        assert "nearly the same as" in tab.locator(".entry").inner_text()
        tab.goto(big.as_uri())
        tab.locator(".entry").nth(19).wait_for()
        for _ in range(6):
            tab.locator("#after").click()
        tab.locator(".entry[data-id=i129]").wait_for()
        assert tab.locator("#where").inner_text() == "121 to 130 of 130" and tab.locator("#after").is_disabled()
        browser.close()
    assert problems == []
