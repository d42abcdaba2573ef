"""The embedded world's evaluation, run by a policy whose every figure is known beforehand."""

import re
import shutil
from dataclasses import replace

import numpy as np
import openmoji_small as small
import pytest

from data.openmoji.scenes import Scene
from data.openmoji.words import parse_recaption, recaption
from eval.openmoji import store
from eval.openmoji.command import measure
from eval.openmoji.report import Drawn, Report, Shown, render, spread
from eval.openmoji.results import pixel_controls, score_chunk, to_markdown
from eval.openmoji.run import Runner
from eval.openmoji.score import corner_box, expected_tool, score_calls
from eval.openmoji.tasks import chosen, common_tasks, unseen_tasks
from eval.openmoji.variants import VARIANTS, select, without_identity, without_scene
from unify_agent.agent.wording import load_prompts
from unify_agent.errors import UserError

NAMES = ("full", "closed_book", "no_image_search", "shuffled")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return small.build(tmp_path_factory.mktemp("world"))


def make_runner(world, out, model="m", policy=None):
    tasks = {}

    class Known(Runner):
        def tasks(self, variant, seed):
            found = super().tasks(variant, seed)
            tasks.update({task.id: task for task in found})
            return found

    speaker = policy(tasks) if policy else small.artist(world, tasks)
    said = []
    runner = Known(
        world, out, world.folder, None, lambda folder: (speaker, load_prompts("compact"), model), 8, said.append
    )
    runner.said = said
    return runner


@pytest.fixture(scope="module")
def measured(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    runner = make_runner(world, out)
    results = measure(runner, select(NAMES), [0, 1], lambda pictures: list(pictures), "python -m eval openmoji")
    return out, runner, results


def test_an_artist_with_references_is_right_wherever_there_is_a_reference(world, measured):
    _, _, results = measured
    full = results["variants"]["full"]
    assert full["tool_calls_valid"]["value"] == full["query_exact"]["value"] == 1.0
    assert full["recaption_complete"]["value"] == full["recaption_true"]["value"] == 1.0
    assert full["identity_top1"]["value"] == full["references_right"]["value"]
    assert full["identity_when_evidence_right"]["value"] == 1.0
    assert full["identity_top1"]["n"] == 16
    assert (results["decision_right"]["value"], results["decision_right"]["n"]) == (1.0, 16 + 2 * small.KNOWN)


def test_without_search_or_with_other_references_identity_is_lost(measured):
    variants = measured[2]["variants"]
    assert variants["closed_book"]["identity_top1"]["value"] < 0.4
    assert variants["shuffled"]["identity_top1"]["value"] < variants["full"]["identity_top1"]["value"]
    assert variants["closed_book"]["tool_calls_valid"]["value"] is None


def test_a_perfect_autoencoder_is_the_upper_bound(measured):
    controls = measured[2]["controls"]
    assert controls["vae_round_trip"]["value"] == controls["vae_round_trip_scene"]["value"] == 1.0
    assert controls["identity_blind_average"]["value"] < 0.5


def test_tables_and_plot_are_written(measured):
    out, _, results = measured
    text = (out / "results.md").read_text(encoding="utf-8")
    assert text == to_markdown(results)
    assert "without image search" in text and "56.2" in text
    assert (out / "results.png").read_bytes().startswith(b"\x89PNG")
    assert f"full, seed 1: {8 + small.KNOWN} requests" in "".join(measured[1].said)


def test_a_second_run_reads_back_what_is_done_and_finds_the_same(world, measured):
    out, _, results = measured
    again = make_runner(world, out, policy=lambda tasks: None)
    assert measure(again, select(NAMES), [0, 1], lambda p: list(p), "python -m eval openmoji") == results
    assert all("done before" in line for line in again.said)


def test_a_run_with_another_model_does_not_use_the_old_chunks(world, measured):
    other = make_runner(world, measured[0], model="another")
    assert other.chunk(VARIANTS["full"], 0).seconds >= 0
    assert "done before" not in other.said[0]
    make_runner(world, measured[0]).chunk(VARIANTS["full"], 0)


def test_an_interrupted_run_keeps_its_finished_chunks(world, tmp_path):
    class Stop(Exception):
        pass

    def stopping(tasks):
        inner = small.artist(world, tasks)
        draw, count = inner.draw, []

        def once(episodes):
            count.append(1)
            if len(count) > 1:
                raise Stop
            return draw(episodes)

        inner.draw = once
        return inner

    with pytest.raises(Stop):
        measure(make_runner(world, tmp_path, policy=stopping), select(["full", "closed_book"]), [0], None, "x")
    assert store.load(tmp_path, "full", 0) is not None
    assert store.load(tmp_path, "closed_book", 0) is None
    again = make_runner(world, tmp_path)
    measure(again, select(["full", "closed_book"]), [0], None, "x")
    assert "done before" in again.said[0] and "done before" not in again.said[1]


def test_a_model_that_fails_everywhere_is_an_error_not_a_zero(world, tmp_path):
    def broken(tasks):
        policy = small.artist(world, tasks)
        policy.reply = lambda episodes: [RuntimeError("no weights")] * len(episodes)
        return policy

    with pytest.raises(UserError, match="every request failed, the first with RuntimeError: no weights"):
        make_runner(world, tmp_path, policy=broken).chunk(VARIANTS["full"], 0)


def test_chunks_come_back_as_they_were(measured):
    out, runner, _ = measured
    chunk = store.load(out, "full", 0)
    assert {item.task for item in chunk.items} == {task.id for task in runner.tasks(VARIANTS["full"], 0)}
    assert any(each.chosen for item in chunk.items for step in item.steps for each in step.candidates)
    missing = replace(chunk, pictures=(None, *chunk.pictures[1:]))
    store.save(out, "copy", 0, "k", missing)
    back = store.load(out, "copy", 0, "k")
    assert back.items == chunk.items and back.pictures[0] is None
    assert np.array_equal(back.pictures[1], chunk.pictures[1])
    assert store.load(out, "copy", 0, "other") is None


def test_seeds_ask_in_both_languages_and_never_about_a_training_entity(world):
    things = chosen(world.entities, 8)
    first, second = unseen_tasks(things, 0), unseen_tasks(things, 1)
    assert {e.split for e in things} == {"test"}
    assert [t.language for t in first] == ["en", "zh"] * 4 and [t.language for t in second] == ["zh", "en"] * 4
    assert all(task.asked in task.request and task.name not in task.request for task in first + second)
    assert first == unseen_tasks(things, 0)
    assert all(
        task.name in task.request and task.scene.companion != task.entity for task in common_tasks(world.entities, 0)
    )
    assert chosen(world.entities, 3) == chosen(world.entities, 8)[:3]


def test_a_world_with_too_few_entities_says_so(world):
    with pytest.raises(UserError, match="this world has 8 in its test split"):
        chosen(world.entities, 9)


def steps(*calls, mended=()):
    made = []
    for name, query in calls:
        called = ({"name": name, "arguments": {"q": query}},) if name else ()
        error = None if name else "no call"
        made.append(store.Step("in", "out", calls=called, mended=mended, error=error, observation="seen"))
    return store.Item("unseen-F000-0", "grounded", "", steps=(*made, store.Step("in", "last")))


def test_calls_count_only_when_whole_and_of_the_tool_that_is_due(world):
    task = unseen_tasks([world.by_id["F000"]], 0)[0]
    good = steps(("text_search", task.asked), ("search_image", task.name))
    assert score_calls(task, good) == ((True, True),) * 3
    assert score_calls(task, steps(("search_image", task.name))) == ((False,), (True,), (False,))
    assert score_calls(task, steps(("text_search", task.asked + "x"))) == ((True,), (False,), (True,))
    assert score_calls(task, steps(("text_search", task.asked), mended=("trailing comma",)))[0] == (False,)
    assert score_calls(task, steps((None, ""))) == ((False,), (), (False,))
    again = replace(good, steps=(replace(good.steps[0], discarded=("so so so",)), *good.steps[1:]))
    assert score_calls(task, again) == ((True, True), (True, True), (False, True, True))
    assert expected_tool(good, 2) == "search_image"


SCENE = Scene("red", "left", "small", "tilted left", "2600", "top right")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_parts_of_a_recaption_can_be_taken_away(language):
    text = recaption(SCENE, "oak wheel" if language == "en" else "橡轮", 2, language)
    scene_only, identity_only = parse_recaption(without_identity(text)), parse_recaption(without_scene(text))
    assert scene_only.references == () and scene_only.scene == SCENE
    assert identity_only.references == (1, 2) and identity_only.background is None and identity_only.place is None


def test_a_recaption_that_cannot_be_read_is_cut_by_sentences():
    text = "The owl from image_1 stays. It sits in fog."
    assert without_identity(text) == "It sits in fog."
    assert without_scene(text) == "The owl from image_1 stays."


def test_the_box_of_a_second_thing_covers_it(world):
    scene = replace(SCENE, place="left", corner="top right")
    left, top, right, bottom = corner_box(scene)
    picture = world.compose(scene, "F000")
    alone = world.compose(replace(scene, companion=None, corner=None), "F000")
    rows, columns = np.nonzero((picture != alone).any(2))
    assert left <= columns.min() and columns.max() < right and top <= rows.min() and rows.max() < bottom
    assert corner_box(replace(scene, companion=None, corner=None)) is None


def test_an_unknown_variant_names_the_nearest_one():
    with pytest.raises(UserError, match="did you mean 'no_recaption'"):
        select(["no_recaptoin"])


def test_every_row_of_the_papers_table_is_there():
    assert sorted(v.paper for v in VARIANTS.values() if v.paper) == [
        50.9,
        56.2,
        61.4,
        62.9,
        65.4,
        67.7,
        68.2,
        71.2,
        73.2,
    ]


# ---------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def shown(world, measured):
    out, runner, _ = measured
    tasks, names = unseen_tasks(runner.entities, 0), [e.id for e in runner.entities]
    sides = {}
    for variant in ("full", "closed_book"):
        chunk = store.load(out, variant, 0)
        chunk = replace(chunk, items=chunk.items[:8], pictures=chunk.pictures[:8])
        scored = score_chunk(chunk, tasks, world, names)
        sides[variant] = [Drawn(i, p, s.picture) for i, p, s in zip(chunk.items, chunk.pictures, scored, strict=True)]
    return [
        Shown(task, world.by_id[task.entity].name["en"], full, closed, world.compose(task.scene, task.entity))
        for task, full, closed in zip(tasks, sides["full"], sides["closed_book"], strict=True)
    ]


def page(world, measured, shown, **more):
    from eval.metrics import Figure

    full, closed = (
        {key: Figure(**value) for key, value in measured[2]["variants"][name].items()}
        for name in ("full", "closed_book")
    )
    return render(Report(shown, full, closed, world.folder, candidates=8, **more))


def test_the_page_shows_every_step_of_an_example(world, measured, shown):
    html = page(world, measured, shown)
    item = shown[0].full.item
    for text in (shown[0].task.request, shown[0].task.asked, item.recaption.split(".")[0]):
        assert text in html
    assert "text search: " in html and "picture search: " in html and "chosen" in html
    assert "OpenMoji" in html and "CC BY-SA 4.0" in html


def test_the_page_is_one_file_without_scripts_or_outside_pictures(world, measured, shown):
    html = page(world, measured, shown)
    assert not re.search(r'src="(?!data:image/png;base64,)', html)
    assert "<script" not in html and "<link" not in html and "url(" not in html
    assert html.count("<article") == html.count("</article>") == 8


def test_text_from_records_cannot_become_markup(world, measured, shown):
    evil = '<img src=x onerror=alert(1)><script>alert("&")</script>'
    first = shown[0]
    calls = ({"name": evil, "arguments": {"q": evil}},)
    turns = []
    for step in first.full.item.steps:
        candidates = tuple(replace(each, title=evil, reason=evil) for each in step.candidates)
        thought = f"<think>{evil}</think>"
        turns.append(replace(step, reply=thought, observation=evil, calls=calls, candidates=candidates))
    item = replace(first.full.item, recaption=evil, steps=tuple(turns))
    task = replace(first.task, request=evil, asked=evil)
    changed = replace(first, task=task, meaning=evil, full=replace(first.full, item=item))
    html = page(world, measured, [changed, *shown[1:]], facts={evil: evil})
    assert "<script" not in html and "<img src=x" not in html
    assert "&lt;script&gt;" in html


def test_a_picture_that_is_missing_is_said_to_be(world, measured, shown):
    gone = replace(shown[0], full=replace(shown[0].full, picture=None))
    assert "no picture" in page(world, measured, [gone, *shown[1:]])


def test_loss_curves_are_drawn_from_the_training_log(world, measured, shown):
    rows = [{"step": s, "ce_mean": 2.0 / s, "ce_role/call": 1.0 / s, "mse": 0.5} for s in range(1, 300)]
    html = page(world, measured, shown, curves=rows)
    assert html.count("<polyline") == 3
    assert "<polyline" not in page(world, measured, shown)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_shows_the_page_whole_on_a_phone_and_on_a_screen(world, measured, shown, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    file = tmp_path / "report.html"
    file.write_text(page(world, measured, shown), encoding="utf-8")
    patience = 120_000  # milliseconds
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"], timeout=patience
        )
        tab, problems = browser.new_page(), []
        tab.set_default_timeout(patience)
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("request", lambda request: problems.append(request.url) if request.url.startswith("http") else None)
        for width in (390, 1280):
            tab.set_viewport_size({"width": width, "height": 900})
            tab.goto(file.as_uri())
            assert tab.evaluate("document.documentElement.scrollWidth") == width
            assert tab.evaluate("[...document.images].every(picture => picture.naturalWidth > 0)")
        browser.close()
    assert problems == []


def test_examples_are_not_better_than_the_whole(shown):
    wrong = [replace(s, full=replace(s.full, score=replace(s.full.score, identity=False))) for s in shown[:4]]
    right = [replace(s, full=replace(s.full, score=replace(s.full.score, identity=True))) for s in shown[4:]]
    picked = spread([*right, *wrong], 4)
    assert [each.full.score.identity for each in picked] == [True, True, False, False]


def test_controls_need_no_model(world):
    things = chosen(world.entities, 4)
    controls = pixel_controls(unseen_tasks(things, 0), world, [e.id for e in things], None)
    assert set(controls) == {"identity_blind_average"}


def test_a_model_that_has_learned_nothing_goes_through_the_whole_command(world, tmp_path):
    from eval.openmoji.model import policy_of, round_trip_of

    def brief(folder):
        policy, words, key = policy_of(folder)
        policy.sampling = replace(policy.sampling, max_new=6)
        policy.settings = replace(policy.settings, steps=3)
        return policy, words, key

    folder = small.random_model(tmp_path, world)
    variants = select(["closed_book", "base", "no_recaption", "no_vit", "drawing_alone"])
    runner = Runner(world, tmp_path / "out", folder, folder, brief, 2, lambda line: None)
    found = measure(runner, variants, [0], round_trip_of(folder), "python -m eval openmoji")
    assert found["variants"]["no_vit"]["recaption_complete"]["value"] == 0.0
    assert found["variants"]["drawing_alone"]["recaption_complete"]["value"] == 1.0
    assert found["variants"]["closed_book"]["identity_top1"]["n"] == 2
    for name in found["variants"]:
        assert all(picture is not None for picture in store.load(tmp_path / "out", name, 0).pictures)
    assert "vae_round_trip" in found["controls"]
