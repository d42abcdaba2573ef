"""Workers: every item is accounted for whatever becomes of them, and a killed run goes on where it was."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import fleet_tools
import pytest
import torch
from datasets_tools import tokenizer
from generation_tools import tiny
from test_search_index import small_index

from unify_agent.agent import fleet
from unify_agent.agent.crew import Setup
from unify_agent.agent.fleet import Fleet, devices
from unify_agent.agent.requests import Request
from unify_agent.errors import UserError
from unify_agent.interleave.transforms import Transform
from unify_agent.model.weights import Description, save_folder

ROOT = Path(__file__).parent.parent


def requests(count, deaths=()):
    """`deaths`: item -> how often its worker dies over it."""
    return [Request(f"r{n}", "Draw it.", "en", country=str(dict(deaths).get(n, 0))) for n in range(count)]


@pytest.fixture
def outcomes(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet, "_work", fleet_tools.work)

    def run(asked, seen, batch=3, model="some", told=lambda item, what: None):
        return list(Fleet(Setup(model), tmp_path, seen, batch, told).run(asked))

    return run


def test_every_item_is_run_once_each_worker_on_its_device(outcomes, tmp_path):
    events = []
    found = outcomes(requests(8), ["4", "7"], told=lambda item, what: events.append(item))
    assert sorted(each.id for each in found) == sorted(events) == [f"r{n}" for n in range(8)]
    seen = {tuple(each.error.split()[:2]) for each in found}  # a quick worker may leave nothing to a slow one
    assert {device for device, _ in seen} <= {"4", "7"} and len({device for device, _ in seen}) == len(seen)


def test_what_a_dead_worker_had_in_hand_is_run_again_alone(outcomes):
    found = {each.id: each for each in outcomes(requests(5, {1: 1}), [None])}
    assert {each.status for each in found.values()} == {"ok"} and len(found) == 5
    assert found["r1"].error.split()[2] == found["r2"].error.split()[2] == "1"


def test_an_item_over_which_workers_die_is_given_up_and_the_others_are_done(outcomes):
    found = {each.id: each for each in outcomes(requests(5, {1: 9, 3: 9}), [None])}
    assert {name: each.reason for name, each in found.items()} == {
        "r0": "direct", "r1": "crashed", "r2": "direct", "r3": "crashed", "r4": "direct"}  # fmt: skip
    assert "exit code -9" in found["r1"].error


def test_a_device_that_is_lost_takes_nothing_with_it(outcomes):
    found = outcomes(requests(12, {0: 1}), ["4", "7"], batch=1, model="lost")
    others = {each.status for each in found if each.id != "r0"}
    assert sorted(each.id for each in found) == sorted(f"r{n}" for n in range(12)) and others == {"ok"}


def test_without_a_worker_left_every_item_is_accounted_for(outcomes):
    told = []
    found = outcomes(requests(4, {1: 1}), ["4"], model="lost", told=lambda *what: told.append(what))
    assert {each.id: each.reason for each in found} == {
        "r0": "direct", "r1": "not_run", "r2": "not_run", "r3": "not_run"}  # fmt: skip
    assert all(not each.down and "no worker is left" in each.error for each in found if each.reason == "not_run")
    assert ("device 4", "lost") in told


@pytest.mark.parametrize(("model", "said"), [("refused", "no such folder"), ("dead", "died as it loaded the model")])
def test_a_worker_that_cannot_begin_ends_the_run(outcomes, model, said):
    with pytest.raises(UserError, match=said):
        outcomes(requests(2), [None], model=model)


@pytest.mark.parametrize(
    ("visible", "count", "found"),
    [("3,5,6", 2, ["3", "5"]), ("GPU-ab, GPU-cd", 2, ["GPU-ab", "GPU-cd"]), ("2,-1,3", 1, ["2"]),
     ("", 3, [None] * 3), ("-1", 2, [None] * 2)],
)  # fmt: skip
def test_workers_take_the_devices_that_are_visible(monkeypatch, visible, count, found):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices(count) == found


def test_more_workers_than_devices_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    with pytest.raises(UserError, match="--gpus 3: CUDA_VISIBLE_DEVICES=3,5 has 2"):
        devices(3)


@pytest.mark.parametrize("visible", ["0,1,1", "GPU-ab,GPU-ab"])
def test_a_device_that_is_named_twice_is_refused(monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(UserError, match="names a device twice"):
        devices(2)


def test_devices_that_the_machine_does_not_have_are_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)  # as torch counts it for this list
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,7,2")
    assert devices(2) == ["0", "1"]
    with pytest.raises(UserError, match="--gpus 3: CUDA_VISIBLE_DEVICES=0,1,7,2 has 2"):
        devices(3)


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_and_repeats_nothing(tmp_path):
    model, vae = tiny()
    (tmp_path / "tokenizer").mkdir()
    tokenizer().save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    transforms = {"vae": Transform(32, 32, 16), "vit": Transform(28, 28, 14)}
    save_folder(tmp_path / "model", model.state_dict(), model.config, vae, tmp_path / "tokenizer",
                Description("paper", transforms, "compact"))  # fmt: skip
    small_index(tmp_path)
    (tmp_path / "asked.txt").write_text("".join(f"Draw thing {number}.\n" for number in range(6)))
    command = [sys.executable, str(ROOT / "infer.py"), "--prompts", "asked.txt", "--model", "model", "--search",
               "index:index", "--out", "out", "--steps", "2", "--max-new", "6", "--gpus", "1",
               "--batch", "1"]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    running = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    for line in running.stderr:
        if line.startswith("2/6"):
            break
    running.send_signal(signal.SIGKILL)
    running.wait()
    running.stderr.close()
    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*_trajectory.json")}
    assert len(done) >= 2
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert again.returncode == 3, again.stderr
    assert "of 6 were done before" in again.stderr
    lines = [json.loads(line) for line in (tmp_path / "out/summary.jsonl").read_text().splitlines()]
    assert len(lines) == 6 and {line["status"] for line in lines} <= {"ok", "partial"}
    assert {path: path.stat().st_mtime_ns for path in done} == done
