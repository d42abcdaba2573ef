"""Stage 2: a teacher at an endpoint drives the agent's own loop; what is no training data is dropped by name."""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from build_servers import World
from build_tools import bench
from chat_server import Reply

from data.build.contracts import Dropped
from data.build.trajectories import grading_of, research, with_pictures
from unify_agent.agent.judge import graded
from unify_agent.agent.record import to_trajectory
from unify_agent.agent.toolcalls import parse_calls
from unify_agent.judging import ChatError
from unify_agent.search.base import SearchError

ROOT = Path(__file__).resolve().parents[1]
IN_FORM = re.compile(
    r"<think>[^<]*</think>\n(?:(<tool_call>\n\{.*\}\n</tool_call>\n?)+|<recaption>\n.*\n</recaption>)", re.DOTALL
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("world")
    World().write(place)
    return place


def researched(place, folder, name, habit="", **more):
    world = World(habits={name: {habit}} if habit else {})
    with bench(place, folder, world, **more) as at:
        task = at.task(name)
        return research(task, at.spec, at.services), at


@pytest.mark.parametrize(
    ("habit", "stop", "stages", "references"),
    [("", "grounded", [1, 2, 3], 2), ("tags", "grounded", [1, 2, 3], 2), ("unread", "grounded", [2, 3], 2),
     ("again", "grounded", [1, 2, 2, 3], 2), ("direct", "direct", [3], 0)],
)  # fmt: skip
def test_a_teacher_reads_looks_looks_again_or_knows(tmp_path, folder, habit, stop, stages, references):
    episode, _ = researched(tmp_path, folder, "Tower of Quell", habit)
    assert (episode.stop, [turn.stage for turn in episode.turns], len(episode.references)) == (stop, stages, references)
    assert all(IN_FORM.fullmatch(turn.reply) for turn in episode.turns), [turn.reply for turn in episode.turns]
    assert {each.hit.id for each in episode.references} <= {"p8-0", "p8-1"}
    assert episode.id == "008-p0" and episode.category == "landmark"
    held = [*episode.references, *(each for turn in episode.turns for each in turn.judged)]
    assert all(each.picture is None for each in held), "a task that waits holds no pixels"
    assert [each.size for each in with_pictures(episode).reference_pictures] == [(160, 128)] * references


def test_what_the_teacher_is_told_beside_the_prompts_is_in_no_record(tmp_path, folder):
    episode, at = researched(tmp_path, folder, "Kiru")
    briefs = [body["messages"][0] for body in at.chat.bodies if body["model"] == "teacher"]
    assert {each["role"] for each in briefs} == {"system"} and "illustrator" in briefs[0]["content"]
    assert "illustrator" not in to_trajectory(episode, "teacher").to_json()


@pytest.mark.parametrize(
    ("habit", "reason"),
    [("lost", "bad_calls"), ("refused", "the teacher refuses"), ("direct", "direct")],
)  # fmt: skip
def test_an_ending_that_is_no_training_data_is_dropped_by_its_name(tmp_path, folder, habit, reason):
    with pytest.raises(Dropped) as dropped:
        researched(tmp_path, folder, "Kiru", habit, trajectories={"endings": ["grounded"]})
    assert (dropped.value.stage, dropped.value.reason) == ("trajectory", reason)


def test_a_reply_that_is_neither_call_nor_recaption_is_asked_for_again_and_leaves_no_trace(tmp_path, folder):
    plain, _ = researched(tmp_path, folder, "Kiru")
    other = tmp_path / "other"
    other.mkdir()
    world = World()
    world.answers["teacher"] = lambda body: "Hm." if body["temperature"] == 0 else world.teach(body)
    with bench(other, folder, world) as at:
        again = research(at.task("Kiru"), at.spec, at.services)
    assert [turn.reply for turn in again.turns[:2]] == [turn.reply for turn in plain.turns[:2]]
    assert "Hm." not in str(again.turns[:2]) and again.bad_calls == 0 and again.stop == "no_recaption"


def test_a_thing_of_which_no_usable_picture_is_found_is_dropped(tmp_path):
    world = World(habits={"Kirumaru": {"unseen"}})
    world.write(tmp_path / "world")
    with bench(tmp_path, tmp_path / "world", world) as at, pytest.raises(Dropped, match="no_reference"):
        research(at.task("Kirumaru"), at.spec, at.services)


def test_still_searching_at_the_limit_is_dropped(tmp_path, folder):
    world = World(answers={"teacher": lambda body: Reply(tool_calls=[("text_search", {"q": "Kiru"})])})
    with bench(tmp_path, folder, world, trajectories={"rounds": 3}) as at, pytest.raises(Dropped) as dropped:
        research(at.task("Kiru"), at.spec, at.services)
    assert dropped.value.reason == "search_limit"


@pytest.mark.parametrize("role", ["teacher", "references"])
@pytest.mark.parametrize(("fault", "kind"), [("500", "server"), ("429", "rate_limited"), ("drop", "unreachable")])
def test_a_service_that_is_down_is_an_error_and_no_drop(tmp_path, folder, role, fault, kind):
    server = {}

    def only(body, number):
        return fault if body["model"] == role else None

    server["fault"] = only
    with pytest.raises(ChatError) as raised:
        researched(tmp_path, folder, "Kiru", chat=server)
    assert raised.value.kind == kind


@pytest.mark.parametrize("role", ["teacher", "references"])
def test_answers_of_no_use_however_often_are_a_drop(tmp_path, folder, role):
    with pytest.raises(Dropped) as dropped:
        researched(tmp_path, folder, "Kiru", chat={"fault": lambda body, number: "truncated" * (body["model"] == role)})
    assert dropped.value.reason.endswith(": truncated") and dropped.value.stage == "trajectory"


def test_now_and_then_an_attempt_fails_and_nothing_changes(tmp_path, folder):
    plain, _ = researched(tmp_path, folder, "Kiru")
    other = tmp_path / "other"
    other.mkdir()
    faults = {1: "500", 4: "empty", 6: "429", 9: "truncated", 12: "html"}
    shaken, at = researched(
        other, folder, "Kiru", chat={"fault": lambda body, number: faults.get(number)},
        services={"teacher": {"attempts": 9}},
    )  # fmt: skip
    assert [turn.reply for turn in shaken.turns] == [turn.reply for turn in plain.turns]
    assert at.services.totals()["teacher"].failures + at.services.totals()["references"].failures == 5


def serper(world, folder, monkeypatch, plan=()):
    for name in ("SERPER_API_KEY", "JINA_API_KEY"):
        monkeypatch.setenv(name, "sk-secret-0123")
    return world.search(folder / "index", plan)


def live(server, cache):
    options = {"serper_url": server.url, "jina_url": f"{server.url}/reader", "allow_local": "127.0.0.1"}
    return {"search": {"spec": "serper", "options": options | {"cache": str(cache)}}}


def test_any_search_will_do(tmp_path, folder, monkeypatch):
    with serper(World(), folder, monkeypatch, ["429", "ok", "ok"]) as server:
        episode, _ = researched(tmp_path, folder, "Sarn the Weaver", services=live(server, tmp_path / "cache"))
    assert episode.stop == "grounded" and len(episode.references) == 2
    assert all(each.hit.url.startswith(server.url) for each in episode.references)


def test_pictures_that_are_web_pages_are_no_references(tmp_path, folder, monkeypatch):
    with serper(World(), folder, monkeypatch, ["ok", "html", "html"]) as server:
        with pytest.raises(Dropped, match="no_reference"):
            researched(tmp_path, folder, "Kiru", services=live(server, tmp_path / "cache"))


@pytest.mark.parametrize(("plan", "kind"), [(["429"] * 9, "service_down"), (["wrongtype"] * 9, "bad_answer")])
def test_a_search_that_does_not_work_is_an_error_and_no_drop(tmp_path, folder, monkeypatch, plan, kind):
    with serper(World(), folder, monkeypatch, plan) as server, pytest.raises(SearchError) as raised:
        researched(tmp_path, folder, "Kiru", services=live(server, tmp_path / "cache"))
    assert raised.value.kind == kind


def test_the_weights_and_the_threshold_are_the_specs(tmp_path, folder):
    weights = {"identity": 1, "salience": 0, "clarity": 0, "cleanliness": 1}
    _, at = researched(tmp_path, folder, "Kiru", references=weights)
    parts = {"identity": 10.0, "salience": 1.0, "clarity": 1.0, "cleanliness": 6.0}
    found = graded(parts, side=200, grading=grading_of(at.spec))
    assert (found.score, found.reason) == (8.0, "good")  # what weighs nothing is not looked at
    with pytest.raises(Dropped, match="no_reference"):
        researched(tmp_path, folder, "Kiru", references={"threshold": 9.5})


def test_no_more_candidates_are_judged_and_kept_than_the_spec_says(tmp_path, folder):
    episode, _ = researched(tmp_path, folder, "Kiru", references={"candidates": 3, "keep": 1})
    assert len(episode.turns[1].judged) == 3 and len(episode.references) == 1


def test_an_entity_without_seeds_is_refused_before_anything_is_asked(tmp_path, folder):
    with bench(tmp_path, folder) as at:
        with pytest.raises(Dropped) as dropped:
            research(at.task("Kiru", seeds=False), at.spec, at.services)
        assert (dropped.value.stage, dropped.value.reason, at.chat.calls) == ("verification", "no seed pictures", 0)


def test_a_language_that_the_agent_is_not_asked_in_is_dropped(tmp_path, folder):
    with bench(tmp_path, folder) as at, pytest.raises(Dropped, match="language"):
        research(replace(at.task("Kiru"), prompt="キルが待つ", language="ja"), at.spec, at.services)


def test_the_same_task_again_asks_nothing_and_comes_to_the_same(tmp_path, folder):
    with bench(tmp_path, folder) as at:
        first = research(at.task("Kiru Max"), at.spec, at.services)
        calls = at.chat.calls
        second = research(at.task("Kiru Max"), at.spec, at.services)
        assert at.chat.calls == calls > 0
    assert to_trajectory(first, "t") == to_trajectory(second, "t")


def test_things_whose_names_begin_alike_are_not_mixed_up(tmp_path, folder):
    with bench(tmp_path, folder) as at:
        tasks = [at.task(thing.en or thing.zh) for thing in at.world.things for _ in range(2)]
        with ThreadPoolExecutor(16) as pool:
            episodes = list(pool.map(lambda task: research(task, at.spec, at.services), tasks))
    for task, episode in zip(tasks, episodes, strict=True):
        number = int(task.entity.id)
        assert episode.id == task.id and {each.hit.id.split("-")[0] for each in episode.references} == {f"p{number}"}
        query = parse_calls(episode.turns[1].reply).calls[0].arguments["q"]
        assert query in task.entity.names.values()
        assert json.loads(to_trajectory(episode, "t").to_json())["ip_name"] == query


def test_a_teacher_needs_no_model_and_no_torch():
    modules = "trajectories, recaption, pictures, images, verification, assembly"
    code = f"import sys; from data.build import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
