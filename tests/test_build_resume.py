"""A build that is broken off: by signals at chance moments, by a wrong key, by services that are down, by budgets.

Whatever happens, the same command goes on, asks nothing again that was answered, and leaves what an undisturbed run
leaves.
"""

import errno
import itertools
import json
import random
import signal
import sqlite3
import threading
import time
from collections import Counter

import pytest
from build_engine_tools import build, files_in, start
from build_servers import ROLES, World
from build_tools import write_spec

from data.build import assembly, images
from data.build.answers import Answers
from data.build.journal import read_journal
from data.build.pipeline import STEPS
from data.build.status import read_status
from unify_agent.errors import UserError
from unify_agent.search import recorded

AT_ONCE = 6
UNDER_WAY = 8 + 8
"""Calls at a time, of the chat roles that share a lane and of the images; an item may have several under way."""
HABITS = {"Kiru": {"sloppy"}, "Kiru Max": {"again"}, "月兔灯": {"never"}, "Sarn the Weaver": {"direct"}}
PARTS = {"prompts": {"per_entity": 1}, "verification": {"trials": 2}, "at_once": AT_ONCE, "benchmark": {"share": 0.2}}


class Disturbed:
    """The servers of a world and a build against them. `on_call`: called with the number of each call, chat or image.

    `faults`: what a service (`chat`, `images`) does instead of answering, while it stands there.
    """

    def __init__(self, world, folder, place, **more):
        self.world, self.folder, self.out = world, folder, place / "out"
        self.on_call, self.faults, self._number = lambda number: None, {}, 0
        self._lock = threading.Lock()
        self._servers = world.chat(fault=lambda body, number: self._fault("chat")), world.images(
            fault=lambda number: self._fault("images")
        )  # fmt: skip
        self._place, self._more = place, more

    def __enter__(self):
        self.chat, self.images = (server.__enter__() for server in self._servers)
        self.chat._server.handle_error = lambda *told: None  # a client that was killed
        self.spec = self.written()
        return self

    def __exit__(self, *told):
        for server in self._servers:
            server.__exit__(*told)

    def written(self, **changes):
        return write_spec(
            self._place, self.folder, self.chat.url, self.images.url, **PARTS | self._more | changes
        )  # fmt: skip

    def _fault(self, service):
        with self._lock:
            self._number += 1
            number = self._number
        self.on_call(number)
        return self.faults.get(service)

    @property
    def calls(self):
        """Calls so far; waits until none is under way any more."""
        before = -1
        while before != (before := self.chat.calls + len(self.images.asked)) or self.chat._at_once:
            time.sleep(0.05)
        return before

    def kept(self):
        """Answers on the disk."""
        base = sqlite3.connect(self.out / "calls.sqlite")
        try:
            return base.execute("SELECT count(*) FROM answers").fetchone()[0]
        finally:
            base.close()

    def states(self):
        return Counter(each.state for each in read_journal(self.out / "journal.jsonl"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of the world, how many calls a run takes, and what it leaves in train/ and benchmark/."""
    folder = tmp_path_factory.mktemp("world")
    world = World(habits=HABITS)
    world.write(folder)
    place = folder / "undisturbed"
    place.mkdir()
    with pytest.MonkeyPatch.context() as patch, Disturbed(world, folder, place) as run:
        assert build(patch, None, run.spec) == 0
        assert run.calls == run.kept()
        return folder, run.calls, made_in(run.out)


def made_in(out):
    found = files_in(out / "train"), files_in(out / "benchmark")
    assert len(found[0]) > 20 and len(found[1]) > 2
    return found


def disturbed(undisturbed, tmp_path, **more):
    return Disturbed(World(habits=HABITS), undisturbed[0], tmp_path, **more)


def broken_off(run, number, at):
    """Starts the build and sends it a signal `at` so many calls; returns its exit code and stderr."""
    seen = []

    def on_call(count):
        if count == first + at:
            seen.append(read_status(run.out)["state"])
            process.send_signal(number)

    first, run.on_call = run._number, on_call
    process = start(run.spec)
    _, told = process.communicate(timeout=120)
    run.on_call = lambda count: None
    assert seen == ["running"]
    return process.returncode, said(told)


def said(told):
    """The lines of stderr, but for the progress of what is read before the first call."""
    return [line for line in told.strip().splitlines() if not line.startswith("looking at: ")]


def test_kill_at_chance_moments_repeats_no_finished_call(undisturbed, tmp_path, monkeypatch):
    _, whole, expected = undisturbed
    chance = random.Random(8)
    with disturbed(undisturbed, tmp_path) as run:
        asked = kept = 0
        for _ in range(3):
            code, told = broken_off(run, signal.SIGKILL, chance.randint(1, whole // 3 - AT_ONCE))
            assert code == -signal.SIGKILL and not told
            assert read_status(run.out)["state"] == "killed"
            lost = (run.calls - asked) - (run.kept() - kept)
            assert 0 <= lost <= UNDER_WAY
            asked, kept = run.calls, run.kept()
        assert build(monkeypatch, None, run.spec) == 0
        assert run.calls - asked == run.kept() - kept == whole - kept > 0
        assert made_in(run.out) == expected


def test_signals_end_a_run_in_order(undisturbed, tmp_path, monkeypatch):
    _, whole, expected = undisturbed
    with disturbed(undisturbed, tmp_path) as run:
        for number, at, code in ((signal.SIGTERM, whole // 3, 143), (signal.SIGINT, 5, 130)):
            found, told = broken_off(run, number, at)
            *notices, last = told
            assert found == code and last == "stopped: interrupted; run the same command again to continue"
            assert all(each.startswith("stopping: ") for each in notices)
            assert read_status(run.out)["state"] == "halted" and not run.states()["failed"]
            assert run.calls == run.kept(), "all that was asked was brought to an end"
        assert build(monkeypatch, None, run.spec) == 0
        assert run.calls == whole and made_in(run.out) == expected


def test_a_second_signal_leaves_at_once_and_loses_nothing(undisturbed, tmp_path, monkeypatch):
    _, _, expected = undisturbed
    with disturbed(undisturbed, tmp_path) as run:

        def on_call(number):
            run.faults["chat"] = "timeout" if number >= 10 else None
            if number == 10:
                process.send_signal(signal.SIGTERM)

        run.on_call = on_call
        process = start(run.spec)
        while not (line := process.stderr.readline()).startswith("stopping: "):
            assert line.startswith("looking at: ")
        assert line == "stopping: calls under way are brought to an end; once more to leave at once\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGINT and not told
        run.on_call, run.faults = lambda number: None, {}
        assert build(monkeypatch, None, run.spec) == 0
        assert made_in(run.out) == expected


def test_each_step_alone_and_then_all_make_no_call_twice(undisturbed, tmp_path, monkeypatch):
    _, whole, expected = undisturbed
    with disturbed(undisturbed, tmp_path) as run:
        counts = []
        for step in STEPS:
            assert build(monkeypatch, None, run.spec, step) == 0
            counts.append(run.calls)
        assert counts == sorted(counts) and counts[0] == 10 < counts[1] < counts[2] < counts[3] < counts[4] == whole
        assert build(monkeypatch, None, run.spec) == 0
        assert run.calls == run.kept() == whole and made_in(run.out) == expected


@pytest.mark.parametrize(
    ("service", "fault", "told"), [
        ("chat", "401", "teacher: the key is not accepted"), ("images", "401", "image: the key is not accepted"),
        ("chat", "500", "teacher: the service is down"), ("images", "drop", "image: the service is down"),
    ],
)  # fmt: skip
def test_a_wrong_key_or_a_service_that_is_down_ends_the_run_soon(
    undisturbed, tmp_path, monkeypatch, capsys, service, fault, told
):
    _, whole, expected = undisturbed
    more = {"patience": 0, "services": {"teacher": {"attempts": 2}, "image": {"attempts": 2}}}
    with disturbed(undisturbed, tmp_path, **more) as run:

        def on_call(number):
            if number == 20:
                run.faults[service] = fault

        run.on_call = on_call
        assert build(monkeypatch, None, run.spec) == 4
        (line,) = said(capsys.readouterr().err)
        assert line.startswith(f"stopped: {told}")
        assert not run.states()["failed"] and not run.states()["waiting"]
        wasted = run.calls - run.kept()
        assert wasted <= 2 * UNDER_WAY and max(Counter(map(json.dumps, run.chat.bodies)).values()) <= 2
        run.on_call, run.faults = lambda number: None, {}
        assert build(monkeypatch, None, run.spec) == 0
        assert run.calls == whole + wasted and made_in(run.out) == expected


def test_a_service_that_fails_for_less_than_the_patience_costs_the_item_alone(undisturbed, tmp_path, monkeypatch):
    attempts = {"services": {"image": {"attempts": 2}}, "prompts": {"per_entity": 2}}
    with disturbed(undisturbed, tmp_path, benchmark={"share": 0.0}, **attempts) as run:
        run.faults["images"] = "500"
        assert build(monkeypatch, None, run.spec, "--limit", 1) == 3
        assert len(run.images.asked) == 2 * 2 and run.states()["failed"] == 2
        found = [each for each in read_journal(run.out / "journal.jsonl") if each.state == "failed"]
        assert {each.why for each in found} == {"service: server"}
        run.faults = {}
        assert build(monkeypatch, None, run.spec, "--limit", 1, "--retry-failed") == 0


def test_budgets_are_never_exceeded_and_raising_them_goes_on(undisturbed, tmp_path, monkeypatch, capsys):
    _, whole, expected = undisturbed
    with disturbed(undisturbed, tmp_path, at_once=32) as run:
        for budget, most in (({"calls": 7}, 7), ({"calls": 31}, 31), ({"money": 20.4}, 40), ({"money": 30.0}, 60)):
            price = {"call": 0.5, "completion": 0.0}
            spec = run.written(at_once=32, services={"teacher": {"budget": budget, "price": price, "concurrency": 32}})
            assert build(monkeypatch, None, spec) == 3
            assert "budget spent: teacher; raise it in the spec to go on" in capsys.readouterr().err
            assert run.calls - len(run.images.asked) == most
            status = read_status(run.out)
            assert sum(row["calls"] for name, row in status["services"].items() if name in ROLES) == most
            assert status["waiting"] and not status["failed"]
            if "money" in budget:
                assert status["money"] <= budget["money"]
        assert build(monkeypatch, None, run.written(at_once=32)) == 0
        assert run.calls == run.kept() == whole and made_in(run.out) == expected


@pytest.mark.parametrize(
    ("module", "name", "after"), [
        (recorded, "write_once", 12), (images, "write_bytes", 3), (Answers, "append", 40),
        (assembly, "whole_folder", 2),
    ],
)  # fmt: skip
def test_a_disk_that_fills_up_stops_the_run_and_nothing_is_lost(
    undisturbed, tmp_path, monkeypatch, capsys, module, name, after
):
    """Wherever it is noticed. An agent loop goes on after an error of its search; nothing is made of what it says."""
    _, whole, expected = undisturbed
    work, done = getattr(module, name), itertools.count()

    def fills(*given):
        if next(done) >= after:
            if module is Answers:
                raise UserError("calls.sqlite: cannot be written (database or disk is full)")
            raise OSError(errno.ENOSPC, "No space left on device", "disk/file")
        return work(*given)

    with disturbed(undisturbed, tmp_path) as run:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fills)
            assert build(patch, None, run.spec) == 2
        (line,) = said(capsys.readouterr().err)
        assert line.startswith("stopped: ") and "cannot be written" in line
        assert not run.states()["failed"]
        assert build(monkeypatch, None, run.spec) == 0
        assert run.kept() >= whole and made_in(run.out) == expected
