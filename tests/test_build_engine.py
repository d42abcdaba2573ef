"""What drives the stages: what is due, what is done again, what one item's fault means for the others, what is told."""

import errno
import json
import os
import re
import signal
import threading

import pytest
from build_engine_tools import Toy, build, files_in, toy_spec

from data.build import pipeline, status
from data.build.contracts import Dropped, Failed, Halted, OverBudget
from data.build.journal import Journal, read_journal
from data.build.tally import Tally
from unify_agent.judging import ChatError


@pytest.fixture
def toy(tmp_path):
    """Three entities of two tasks each."""
    made = Toy()
    made.write(tmp_path, "a", "b", "c")
    return made


def states(folder):
    """State and reason by kind and id."""
    return {(each.kind, each.id): (each.state, each.why) for each in read_journal(folder / "out" / "journal.jsonl")}


def test_the_same_command_again_works_on_nothing(toy, tmp_path, monkeypatch):
    spec = toy_spec(tmp_path)
    assert build(monkeypatch, toy, spec) == 0
    assert toy.of("assemble") == {"a-p1", "a-p2", "b-p1", "b-p2", "c-p1", "c-p2"}
    assert set(toy.made.values()) == {1}
    train = files_in(tmp_path / "out" / "train")
    toy.made.clear()
    assert build(monkeypatch, toy, spec) == 0
    assert not toy.made and files_in(tmp_path / "out" / "train") == train


def test_new_changed_and_removed_rows(toy, tmp_path, monkeypatch):
    spec = toy_spec(tmp_path)
    build(monkeypatch, toy, spec)
    toy.made.clear()
    toy.write(tmp_path, "a", "b", "c", "d", "e")
    assert build(monkeypatch, toy, spec) == 0
    assert toy.of("describe") == {"d", "e"} and toy.of("draw") == {"d-p1", "d-p2", "e-p1", "e-p2"}
    toy.made.clear()
    toy.write(tmp_path, "a", "b=another", "d", "e")
    assert build(monkeypatch, toy, spec) == 0
    assert toy.of("describe") == {"b"} and toy.of("draw") == {"b-p1", "b-p2"}
    train = files_in(tmp_path / "out" / "train")
    assert sorted(train) == [f"{name}-p{k}" for name in "abde" for k in (1, 2)]
    assert train["b-p1"].endswith(b"another")


def test_the_first_ones_then_more(toy, tmp_path, monkeypatch):
    spec = toy_spec(tmp_path)
    assert build(monkeypatch, toy, spec, "--limit", 2) == 0
    assert toy.of("describe") == {"a", "b"} and len(files_in(tmp_path / "out" / "train")) == 4
    assert status.read_status(tmp_path / "out")["state"] == "unfinished"
    assert build(monkeypatch, toy, spec) == 0
    assert set(toy.made.values()) == {1} and len(files_in(tmp_path / "out" / "train")) == 6


def test_what_changes_results_makes_things_due_and_a_budget_does_not(toy, tmp_path, monkeypatch):
    build(monkeypatch, toy, toy_spec(tmp_path))
    toy.made.clear()
    changed = {"teacher": {"budget": {"calls": 5}, "concurrency": 3}}
    assert build(monkeypatch, toy, toy_spec(tmp_path, at_once=2, services=changed)) == 0 and not toy.made
    assert build(monkeypatch, toy, toy_spec(tmp_path, verification={"threshold": 7.0})) == 0
    assert len(toy.of("verify")) == 6


def test_each_step_alone_goes_as_far_as_it_says(toy, tmp_path, monkeypatch, capsys):
    spec = toy_spec(tmp_path, prompts={"per_entity": 1})
    for step, stage in (
        ("entities", "describe"), ("prompts", "tasks"), ("trajectories", "research"), ("pictures", "draw"),
        ("verify", "verify"), ("assemble", "assemble"),
    ):  # fmt: skip
        assert not toy.of(stage)
        assert build(monkeypatch, toy, spec, step) == 0
        assert len(toy.of(stage)) == 3, step
        assert (tmp_path / "out" / "train").exists() == (step == "assemble")
        if step != "assemble":
            assert f"3 came as far as {step}" in capsys.readouterr().err
    toy.made.clear()
    assert build(monkeypatch, toy, spec) == 0 and not toy.made


def test_faults_are_those_of_one_item(toy, tmp_path, monkeypatch, capsys):
    toy.faults = {
        ("describe", "c"): Dropped("entities", "too common"),
        ("research", "a-p1"): ZeroDivisionError("division by zero"),
        ("draw", "a-p2"): ChatError("server", "HTTP 500"),
        ("verify", "b-p1"): Failed("verification", "unreadable"),
    }
    toy.rejected, spec = {"b-p2"}, toy_spec(tmp_path, verification={"trials": 2})
    assert build(monkeypatch, toy, spec) == 3
    found = states(tmp_path)
    assert found["entity", "c"] == ("dropped", "entities: too common")
    assert found["task", "a-p1"] == ("failed", "crashed: ZeroDivisionError")
    assert found["task", "a-p2"] == ("failed", "service: server")
    assert found["task", "b-p1"] == ("failed", "verification: unreadable")
    assert found["task", "b-p2"] == ("dropped", "verification: identity")
    lines = {each.id: each for each in read_journal(tmp_path / "out" / "journal.jsonl")}
    assert re.fullmatch(r"division by zero \(build_engine_tools\.py:\d+\)", lines["a-p1"].detail)
    assert "2 trials" in lines["b-p2"].detail and "unlike 2" in lines["b-p2"].detail
    assert [trial["accepted"] for trial in lines["b-p2"].about["trials"]] == [False, False]
    assert "Traceback" not in capsys.readouterr().err
    toy.faults, before = {}, toy.made.copy()
    assert build(monkeypatch, toy, spec) == 0
    assert {item for (stage, item), times in (toy.made - before).items() if stage == "research"} == {
        "a-p1", "a-p2", "b-p1",
    }  # fmt: skip


def test_retry_failed_touches_only_what_failed_or_waits(toy, tmp_path, monkeypatch):
    spec = toy_spec(tmp_path)
    toy.faults = {("draw", "a-p1"): Failed("picture", "no"), ("describe", "b"): Failed("entities", "no")}
    assert build(monkeypatch, toy, spec, "--limit", 2) == 3
    toy.made.clear()
    toy.faults = {}
    changed = toy_spec(tmp_path, verification={"threshold": 7.0})
    assert build(monkeypatch, toy, changed, "--retry-failed") == 3
    assert toy.of("draw") == {"a-p1", "b-p1", "b-p2"} and toy.of("describe") == {"a", "b"}


def test_what_is_done_stays_so_when_its_entity_fails_later(toy, tmp_path, monkeypatch):
    spec = toy_spec(tmp_path)
    toy.faults["draw", "a-p1"] = Failed("picture", "no")
    build(monkeypatch, toy, spec)
    toy.faults = {("describe", "a"): Failed("entities", "no")}
    assert build(monkeypatch, toy, spec) == 3
    assert "a-p2" in files_in(tmp_path / "out" / "train")
    assert status.read_status(tmp_path / "out")["left"] == {"entities": 1, "tasks": 1}
    toy.faults = {}
    assert build(monkeypatch, toy, spec) == 0 and toy.made["draw", "a-p2"] == 1


def test_a_prompt_that_was_refused_has_a_line_of_its_own(toy, tmp_path, monkeypatch):
    spec, toy.unwritten = toy_spec(tmp_path), {"b-p2"}
    assert build(monkeypatch, toy, spec) == 0
    assert states(tmp_path)["task", "b-p2"] == ("dropped", "prompts: no prompt could be taken")
    assert status.read_status(tmp_path / "out")["tasks"]["dropped"] == 1
    toy.made.clear()
    assert build(monkeypatch, toy, spec) == 0 and not toy.made


def test_a_held_out_task_ends_with_its_prompt(toy, tmp_path, monkeypatch):
    toy.held = {"b"}
    assert build(monkeypatch, toy, toy_spec(tmp_path)) == 0
    assert states(tmp_path)["task", "b-p1"] == ("held_out", "") and "b-p1" not in toy.of("research")


def test_an_entity_that_waits_for_a_budget_holds_back_new_ones_alone(toy, tmp_path, monkeypatch, capsys):
    toy.write(tmp_path, *"abcdef")
    toy.faults["research", "a-p1"] = OverBudget("teacher")
    spec = toy_spec(tmp_path, at_once=1)
    assert build(monkeypatch, toy, spec) == 3
    assert states(tmp_path)["task", "a-p1"] == ("waiting", "budget: teacher")
    assert toy.of("describe") == {"a"} and toy.of("assemble") == {"a-p2"}
    assert "budget spent: teacher; raise it in the spec" in capsys.readouterr().err
    toy.faults = {}
    assert build(monkeypatch, toy, spec) == 0
    assert toy.made["assemble", "a-p2"] == 1 and len(toy.of("assemble")) == 12


def test_a_stop_says_nothing_of_what_is_under_way(toy, tmp_path, monkeypatch, capsys):
    """One thread is told that the service is down; another, in the middle, then fails or drops its item."""
    down = threading.Event()

    def before(stage, item):
        if (stage, item) == ("research", "a-p1"):
            assert down.wait(60)
        if (stage, item) == ("research", "a-p2"):
            raise Halted("teacher: the service is down")

    halt = pipeline.Pipeline.stop

    def stop(self, *told):
        halt(self, *told)
        down.set()

    monkeypatch.setattr(pipeline.Pipeline, "stop", stop)
    spec = toy_spec(tmp_path, at_once=2)
    toy.before = before
    for fault in (ChatError("unreachable", "stopped before it was asked"), Dropped("trajectory", "no_reference")):
        down.clear()
        toy.faults["research", "a-p1"] = fault
        assert build(monkeypatch, toy, spec) == 4
        assert capsys.readouterr().err.strip() == "stopped: teacher: the service is down"
        assert not {("task", "a-p1"), ("task", "a-p2")} & set(states(tmp_path))
        assert status.read_status(tmp_path / "out")["state"] == "halted"
    toy.before, toy.faults = lambda stage, item: None, {}
    assert build(monkeypatch, toy, spec) == 0


@pytest.mark.parametrize("where", ["a stage", "the journal", "the status"])
def test_a_full_disk_ends_the_run_in_one_line_and_nothing_is_lost(toy, tmp_path, monkeypatch, capsys, where):
    spec = toy_spec(tmp_path, at_once=2)
    full = OSError(errno.ENOSPC, "No space left on device", "disk/file")

    def fail(*_):
        raise full

    with monkeypatch.context() as patch:
        if where == "a stage":
            toy.faults["draw", "b-p1"] = full
        elif where == "the journal":
            keep = Journal.append
            patch.setattr(
                Journal, "append", lambda self, outcome: fail() if outcome.id == "b-p1" else keep(self, outcome)
            )
        else:
            patch.setattr(status, "write_json", fail)
        assert build(patch, toy, spec) == 2
    told = capsys.readouterr().err.strip()
    assert "\n" not in told and "cannot be written: No space left on device" in told
    assert ("task", "b-p1") not in states(tmp_path)
    toy.faults = {}
    assert build(monkeypatch, toy, spec) == 0 and len(files_in(tmp_path / "out" / "train")) == 6


def test_a_fault_of_the_engine_itself_ends_the_run_and_names_its_place(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Journal, "append", lambda self, outcome: 1 / 0)
    assert build(monkeypatch, toy, toy_spec(tmp_path)) == 1
    assert re.search(r"^stopped: crashed: ZeroDivisionError: .*test_build_engine\.py:\d+", capsys.readouterr().err)


def test_no_more_are_in_work_than_at_once_and_tasks_come_first(toy, tmp_path, monkeypatch):
    toy.write(tmp_path, *(f"e{number:03d}" for number in range(200)))
    begun, ended, most, ahead = set(), set(), 0, 0
    lock = threading.Lock()

    def before(stage, item):
        nonlocal most, ahead
        entity = item.partition("-")[0]
        with lock:
            begun.add(entity)
            if stage == "assemble":
                ended.add(entity)
            most = max(most, len(working))
            ahead = max(ahead, len(begun - ended))

    working = set()
    do = pipeline.Pipeline._do

    def counted(self, thing, made):
        with lock:
            working.add(thing.id)
        do(self, thing, made)
        with lock:
            working.discard(thing.id)

    monkeypatch.setattr(pipeline.Pipeline, "_do", counted)
    toy.before = before
    assert build(monkeypatch, toy, toy_spec(tmp_path, at_once=4, prompts={"per_entity": 2})) == 0
    assert most <= 4 and len(ended) == 200
    assert ahead <= 8  # each thread's entity, and one whose last task another thread has in work


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["a lock is held", "the list is read", "the end is made"])
def test_a_signal_at_any_moment_ends_in_one_line(toy, tmp_path, monkeypatch, capsys, number, where):
    """In the main thread: the handler must not wait for what that thread holds."""
    spec, before = toy_spec(tmp_path), signal.getsignal(number)
    with monkeypatch.context() as patch:
        owner, name = {
            "a lock is held": (Tally, "count"), "the list is read": (toy, "_read"),
            "the end is made": (toy, "_lay_out"),
        }[where]  # fmt: skip
        work = getattr(owner, name)

        def disturbed(*given):
            main = threading.current_thread() is threading.main_thread()
            if main and not sent.is_set() and (begun.is_set() or where != "a lock is held"):
                sent.set()
                os.kill(os.getpid(), number)
            return work(*given)

        sent, begun = threading.Event(), threading.Event()
        if where == "a lock is held":
            toy.before = lambda stage, item: (begun.set(), sent.wait(60))
        patch.setattr(owner, name, disturbed)
        patch.setattr(pipeline, "TICK", 0.01)
        patch.setattr(status, "WRITTEN", 0.0)
        assert build(patch, toy, spec) == 128 + number and sent.is_set()
        if where == "a lock is held":
            assert status.read_status(tmp_path / "out")["state"] == "halted"
    assert signal.getsignal(number) == before
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("stopped")]
    assert line == "stopped: interrupted; run the same command again to continue"
    assert build(monkeypatch, toy, spec) == 0 and len(files_in(tmp_path / "out" / "train")) == 6


# ------------------------------------------------------------ what is told


def test_the_status_is_whole_at_any_moment(toy, tmp_path, monkeypatch, capsys):
    toy.write(tmp_path, *(f"e{number}" for number in range(30)))
    seen, over = [], threading.Event()
    file = tmp_path / "out" / "status.json"
    monkeypatch.setattr(status, "WRITTEN", 0.0)
    monkeypatch.setattr(pipeline, "TICK", 0.001)

    def watch():
        while not over.is_set():
            if file.exists():
                seen.append(json.loads(file.read_text()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    told = []

    def before(stage, item):
        if (stage, item) == ("draw", "e7-p1"):
            told.append(status.read_status(tmp_path / "out"))

    toy.before = before
    try:
        assert build(monkeypatch, toy, toy_spec(tmp_path, at_once=3)) == 0
    finally:
        over.set()
        watcher.join()
    assert told[0]["state"] == "running"
    assert {each["state"] for each in seen} <= {"running", "done"} and len(seen) > 3
    done = [each["tasks"]["done"] for each in seen]
    assert done == sorted(done)
    capsys.readouterr()
    assert build(monkeypatch, toy, toy_spec(tmp_path, at_once=3), "status", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "done" and found["tasks"]["done"] == 60 and found["left"] == {"entities": 0, "tasks": 0}
    assert build(monkeypatch, toy, toy_spec(tmp_path, at_once=3), "status") == 0
    assert "60 done" in capsys.readouterr().out


def test_a_run_that_was_killed_is_told_as_such(toy, tmp_path, monkeypatch):
    build(monkeypatch, toy, toy_spec(tmp_path))
    file = tmp_path / "out" / "status.json"
    file.write_text(file.read_text().replace('"done",', '"running",', 1))
    assert status.read_status(tmp_path / "out")["state"] == "killed"
    with Journal(tmp_path / "out" / "journal.jsonl"):
        assert status.read_status(tmp_path / "out")["state"] == "running"


def test_a_second_command_at_the_same_time_is_refused(toy, tmp_path, monkeypatch, capsys):
    with Journal(tmp_path / "out" / "journal.jsonl"):
        assert build(monkeypatch, toy, toy_spec(tmp_path)) == 2
    assert "another process writes this build" in capsys.readouterr().err and not toy.made


@pytest.mark.parametrize(
    ("arguments", "told"), [
        (["merge", "--dry-run"], "--dry-run: merge does not know it"),
        (["merge", "--shard", "1/2"], "--shard: merge takes all shards"),
        (["status", "--limit", 3], "--limit: status does not know it"),
        (["sheet", "--retry-failed"], "--retry-failed: sheet does not know it"),
        (["--partial"], "--partial: only merge knows it"), (["--json"], "--json: only status and --dry-run"),
        (["status"], "no such status of a build"),
    ],
)  # fmt: skip
def test_arguments_that_mean_nothing_are_refused(toy, tmp_path, monkeypatch, capsys, arguments, told):
    assert build(monkeypatch, toy, toy_spec(tmp_path), *arguments) == 2
    assert told in capsys.readouterr().err
