"""Batches: what is too much for one item takes no other with it; the summary accounts for every item."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from agent_tools import FINAL, IMAGE_CALL, TEXT_CALL, replies
from crew_tools import crew, grey
from rich.console import Console

from unify_agent.agent.batch import Outcome, Runner
from unify_agent.agent.console import Told
from unify_agent.agent.crew import Service, Setup
from unify_agent.agent.record import Recorder, png_metadata
from unify_agent.agent.requests import Refused, Request
from unify_agent.agent.summary import Summary
from unify_agent.agent.wording import load_prompts
from unify_agent.errors import UserError


def requests(*names):
    return [Request(name, f"Draw {name}.", "en", given_id="so/so" if name == "odd" else "") for name in names]


def runner(tmp_path, say=None, paint=grey):
    return Runner(crew(tmp_path / "found", say, paint), Recorder(tmp_path / "out", "scripted"))


def test_a_batch_that_is_too_much_is_run_in_halves(tmp_path):
    made = runner(tmp_path)
    reply = made.loop.policy.reply

    def small(episodes):
        if len(episodes) > 2 or any(episode.id == "c" for episode in episodes):
            raise MemoryError("out of memory")
        return reply(episodes)

    made.loop.policy.reply = small
    found = {each.id: (each.status, each.reason, each.error) for each in made.run(requests(*"abcde"))}
    assert found.pop("c") == ("failed", "policy_error", "MemoryError: out of memory")
    assert set(found.values()) == {("ok", "grounded", "")} and len(found) == 4


def test_pictures_that_are_too_much_together_are_drawn_apart(tmp_path):
    def paint(episode):
        if episode.id == "b":
            raise RuntimeError("out of memory")
        return grey(episode)

    found = {each.id: each.reason for each in runner(tmp_path, paint=paint).run(requests(*"abcd"))}
    assert found == {"a": "grounded", "b": "draw_error", "c": "grounded", "d": "grounded"}


def test_what_cannot_be_written_down_fails_alone(tmp_path):
    say = replies(TEXT_CALL, IMAGE_CALL, FINAL)
    odd = lambda episode: "half \ud800" if episode.id == "b" else say(episode)  # noqa: E731
    found = {each.id: (each.status, each.reason) for each in runner(tmp_path, odd).run(requests(*"abc"))}
    assert found == {"a": ("ok", "grounded"), "b": ("failed", "write_error"), "c": ("ok", "grounded")}


def test_a_reference_that_is_gone_fails_its_item_alone(tmp_path):
    asked = [requests("a")[0], replace(requests("b")[0], references=(tmp_path / "gone.png",))]
    found = {each.id: (each.status, each.reason) for each in runner(tmp_path).run(asked)}
    assert found == {"a": ("ok", "grounded"), "b": ("failed", "bad_input")}


def test_a_record_says_how_it_was_made(tmp_path):
    (outcome,) = runner(tmp_path).run(requests("odd"))
    assert outcome.given_id == "so/so" and outcome.turns == 3 and outcome.references == 2
    told = png_metadata(tmp_path / "out/prompts/images/odd_0.png")
    assert (told["policy"], told["judge"], told["search"]) == ("scripted", "names", "memory")
    assert told["given_id"] == "so/so" and told["prompt"] == "Draw odd." and told["version"]
    made = Setup("nowhere", search="memory").made_with(requests("odd")[0], "0")
    assert Recorder(tmp_path / "out", "scripted").finished("prompts", "odd", "Draw odd.", made)


def test_a_record_names_who_thought_and_judged_and_no_address(tmp_path):
    planner = Service("http://10.0.0.7/v1", "planner", "MY_KEY", "tags")
    judging = Service("http://10.0.0.8/v1", "seer")
    setup = Setup("m", policy="openai", judge="openai", endpoint=planner, judge_endpoint=judging)
    made = crew(tmp_path / "found", setup=setup)
    made.judge.name, made.words = "openai", load_prompts("full")
    told = made.described(requests("odd")[0])
    assert (told["prompts"], told["endpoint_model"], told["endpoint_mode"]) == ("full", "planner", "tags")
    assert told["judge_model"] == "seer" and "10.0.0" not in json.dumps(told) and "MY_KEY" not in json.dumps(told)


@pytest.mark.parametrize(
    ("changes", "same"),
    [({}, True), ({"model": "elsewhere"}, True), ({"spread": True}, True), ({"seed": 1}, False),
     ({"sampler": {"steps": 9}}, False), ({"judge": "self"}, False), ({"redraw": 1}, False),
     ({"endpoint": Service("localhost", "m")}, False), ({"tools": False}, False),
     ({"search_options": {"cache": Path("elsewhere"), "on_note": print}}, True),
     ({"search_options": {"reader": "none"}}, False)],
)  # fmt: skip
def test_what_changes_a_result_changes_the_key(changes, same):
    assert (Setup("m").key("w") == Setup(**{"model": "m"} | changes).key("w")) is same
    assert Setup("m").key("w") != Setup("m").key("v")


def test_a_file_of_words_is_known_by_what_it_says(tmp_path):
    words = tmp_path / "words.yaml"
    words.write_text("a")
    before = Setup("m", words=str(words)).key("w")
    words.write_text("b")
    assert Setup("m", words=str(words)).key("w") != before


def test_a_message_of_a_service_cannot_act_on_the_terminal():
    shown = io.StringIO()
    told = Told(Console(file=shown), 1)
    told.line("HTTP 400: \x1b]0;mine\x07 no \x9b2J")
    assert shown.getvalue() == "HTTP 400:  ]0;mine  no  2J\n"


def test_every_item_has_a_line_with_the_time_that_is_left(monkeypatch):
    now = iter([0.0, 60.0, 120.0, 180.0])
    monkeypatch.setattr("unify_agent.agent.console.time.monotonic", lambda: next(now))
    console = Console(file=io.StringIO(), width=200)
    with Told(console, 4, quick=1) as told:
        for name in "abcd":
            told.outcome(Outcome(name, "prompts", "ok", "direct"), f"{name}.png")
    lines = console.file.getvalue().splitlines()
    assert [line.partition(" [")[2] for line in lines] == ["", "2.0 min left]", "1.0 min left]", ""]
    assert lines[1].startswith("2/4 b: ok, direct, 0 references -> b.png")


def test_the_summary_accounts_for_every_item_and_is_continued(tmp_path):
    made = Summary(tmp_path)
    for outcome in runner(tmp_path).run(requests("b", "a")):
        made.put(outcome)
    made.put(Outcome.failed(Refused("f:3", "the prompt is empty"), "bad_input", "the prompt is empty"))
    made.put(Outcome.failed(requests("c")[0], "crashed", "twice"))
    made.write()
    made.write_page()
    lines = [json.loads(line) for line in (tmp_path / "summary.jsonl").read_text().splitlines()]
    assert [(line["id"], line["status"], line["reason"]) for line in lines] == [
        ("a", "ok", "grounded"), ("b", "ok", "grounded"),
        ("c", "failed", "crashed"), ("f:3", "failed", "bad_input")]  # fmt: skip
    assert "2 ok, 2 failed" in (tmp_path / "index.html").read_text(encoding="utf-8")
    again = Summary(tmp_path)
    assert again.status("prompts/c") == "failed" and again.status("refused/f:3") is None
    assert again.counts(["prompts/a", "prompts/c", "prompts/never"]) == {"ok": 1, "failed": 2}


def test_items_that_were_written_before_the_summary_was_are_taken_from_their_records(tmp_path):
    made = runner(tmp_path, replies(TEXT_CALL, IMAGE_CALL, FINAL))
    expected = next(made.run(requests("a"))).line()
    record = made.recorder.finished("prompts", "a", "Draw a.", {})
    summary = Summary(tmp_path)
    summary.recall("prompts/a", record, "")
    summary.write()
    (line,) = [json.loads(text) for text in (tmp_path / "summary.jsonl").read_text().splitlines()]
    assert line == {key: value for key, value in expected.items() if key != "seconds"}


def test_a_summary_that_is_none_is_refused_with_its_line(tmp_path):
    (tmp_path / "summary.jsonl").write_text('{"id": "a", "category": "b", "status": "ok"}\nnonsense\n')
    with pytest.raises(UserError, match=r"summary\.jsonl:2: not a summary line"):
        Summary(tmp_path)
