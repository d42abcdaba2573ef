"""What a run shows: its logs, its page, its pace, and where its ranks are."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.planning_tools import SHORT, SMALL, packed, trained
from unify_agent.datasets.loader import StepData
from unify_agent.errors import UserError
from unify_agent.training import logs, meter, summary, watchdog
from unify_agent.training.config import Config
from unify_agent.training.console import line
from unify_agent.training.logs import RunLog
from unify_agent.training.metrics import read
from unify_agent.training.parallel import World
from unify_agent.training.planning.cards import Card
from unify_agent.training.planning.flops import flops
from unify_agent.training.planning.parameters import parameters_of
from unify_agent.training.planning.workload import Load
from unify_agent.training.samples import Sample
from unify_agent.training.watchdog import Watchdog


def configured(folder, **logging) -> Config:
    config = Config(output=str(folder), steps=6)
    for key, value in logging.items():
        setattr(config.logging, key, value)
    return config


@pytest.fixture
def no_key(monkeypatch, tmp_path):
    """No key of Weights & Biases, wherever one may lie."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


def picture(tmp_path) -> Sample:
    return Sample("a disc", tmp_path / "1.png", np.full((8, 8, 3), 9, np.uint8))


def test_rows_of_steps_that_are_trained_again_are_dropped(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3)) + '{"step": 4, "lo')
    log = RunLog(configured(tmp_path), 2, {})
    log.write({"step": 3, "loss": 1.0})
    log.close()
    assert read(file) == [{"step": 1}, {"step": 2}, {"step": 3, "loss": 1.0}]


def test_wandb_without_a_key_is_written_offline_and_goes_on_under_the_same_id(tmp_path, no_key):
    pytest.importorskip("wandb")
    run = tmp_path / "run"
    log = RunLog(configured(run, wandb=True), 0, {})
    log.pictures([picture(tmp_path)], 1)
    log.write({"step": 1, "loss": 2.0})
    log.close()
    kept = log.ids["wandb"]
    (run / logs.WANDB_ID).unlink()  # the checkpoint has it too
    again = RunLog(configured(run, wandb=True), 1, {"wandb": kept})
    again.write({"step": 2, "loss": 1.0})
    again.close()
    files = sorted(path.name for path in run.glob("wandb/offline-run-*/run-*.wandb"))
    assert files == [f"run-{kept}.wandb"] * len(files) and files
    assert (run / logs.WANDB_ID).read_text() == kept
    assert list(run.glob("wandb/offline-run-*/files/media/images/samples*.png"))


def test_a_service_that_cannot_be_reached_is_one_line_with_the_way_out(tmp_path, no_key, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    asked = {}

    def unreachable(**settings):
        asked.update(settings)
        raise wandb.errors.CommError("no route\nto host")

    monkeypatch.setattr(wandb, "init", unreachable)
    with pytest.raises(UserError, match=r"no route to host; WANDB_MODE=offline") as caught:
        RunLog(configured(tmp_path / "run", wandb=True), 0, {})
    assert asked["mode"] is None and asked["resume"] == "allow" and "kkk" not in str(caught.value)


def test_a_key_left_by_wandb_login_counts(no_key, tmp_path, monkeypatch):
    assert not logs.has_wandb_key()
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / "home" / ".netrc").chmod(0o600)
    assert logs.has_wandb_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not logs.has_wandb_key()


def test_tensorboard_has_every_step_once_and_the_pictures(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = configured(tmp_path, tensorboard=True)
    for done, steps in ((0, (1, 2, 3)), (1, (2, 3))):  # killed after step 3, its last checkpoint that of step 1
        log = RunLog(config, done, {})
        log.pictures([picture(tmp_path)], steps[0])
        for step in steps:
            log.write({"step": step, "loss": float(step)})
        log.close()
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(each.step, each.value) for each in found.Scalars("loss")] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert [each.step for each in found.Images("samples/1")] == [1, 2]


def row(step: int, **more) -> dict:
    values = {"step": step, "loss": 3.0 / step, "ce": 2.0 / step, "mse": 1.0 / step, "ce_mean": 2.0 / step, "lr": 1e-3}
    values |= {"ce_role/think": 2.5 / step, "mse_t/0.00-0.25": 1.5 / step, "grad_norm": 1.0, "tokens": 90, "samples": 3}
    values |= {"fill": 0.9, "skipped": 0, "seconds": 2.0, "loader_seconds": 0.5, "memory_gib": 7.5, "tflops": 0.25}
    return values | {"tokens_per_second": 45.0} | more


def test_a_line_says_how_fast_full_and_large_a_run_is():
    words = line(row(4), 10, skipped=3)
    for part in ("step 4/10", "45 tok/s", "250 GFLOP/s", "fill 90%", "skipped 3", "wait 0.50s", "7.5 GiB"):
        assert part in words
    assert "MFU 41.2%" in line(row(4, mfu=0.412), 10, skipped=0)
    assert "2.5 TFLOP/s" in line(row(4, tflops=2.5), 10, skipped=0)


def test_the_page_of_a_run_says_what_it_was_and_shows_its_losses_and_samples(tmp_path):
    rows = [row(step) for step in range(1, 5)]
    rows[1] |= {"skipped": 2, "skipped/picture missing": 2}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    for step in (2, 4):
        folder = tmp_path / "samples" / f"step_{step:07d}"
        folder.mkdir(parents=True)
        (folder / "prompts.json").write_text(json.dumps(["a | <b>\n`x`"]))
        (folder / "1.png").touch()
    summary.write(tmp_path, configured(tmp_path), "what it means.")
    text = (tmp_path / "summary.md").read_text()
    assert "4 of 6 steps" in text and "360 tokens" in text and "![losses](losses.png)" in text
    assert "| ce_role/think | 2.5 | 0.625 |" in text and "| mse_t/0.00-0.25 | 1.5 | 0.375 |" in text
    assert "25.0% of the time" in text and "250 GFLOP/s: what it means." in text and "2 picture missing" in text
    assert "| a &#124; &lt;b&gt; `x` | ![](samples/step_0000002/1.png) | ![](samples/step_0000004/1.png) |" in text
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA H20", "h20"),
        ("NVIDIA H100 80GB HBM3", "h100_80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100_80gb"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 3060", None),
    ],
)
def test_a_card_is_known_by_what_its_driver_calls_it(name, card):
    found = meter.card_named(name)
    assert (found and found.name.partition("_")[0]) == (card and card.partition("_")[0])


def test_mfu_is_what_the_model_needs_over_what_the_ranks_cards_could_do(monkeypatch):
    """Not counted: what checkpointing computes again. Counted: the wait for data, of all ranks."""
    model, batch = trained(), packed(*SHORT)
    monkeypatch.setattr(meter, "card_here", lambda device: Card("small", 1.0, 2e-3, 1.0))  # 2 GFLOP/s
    read = meter.Meter(World(0, 1, torch.device("cpu"), None), model, SMALL)
    row = read.read(StepData([batch], epoch=0, step=0, wait=0.25), 500, 4.0)
    needed = flops(SMALL, parameters_of(model), Load.of(batch), "full")
    assert needed.recomputed > 0
    assert row["mfu"] == pytest.approx(needed.total / 4.0 / 2e9, abs=1e-5)
    assert row["tflops"] == pytest.approx(needed.total / 4.0 / 1e12, abs=1e-6)
    assert (row["tokens_per_second"], row["loader_seconds"]) == (125.0, 0.25)
    assert "over the 0 TFLOP/s of a small" in read.definition and "visible pairs" in read.definition


def test_the_memory_of_a_cpu_process_is_what_it_holds():
    before = meter.memory(torch.device("cpu"))
    held = torch.ones(1 << 26)  # 256 MiB
    assert meter.memory(torch.device("cpu")) - before > held.nbytes // 2


class Clock:
    """Stands in for the module `time`: both clocks show `now`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


def test_the_first_living_rank_that_waits_too_long_prints_where_all_are(tmp_path, monkeypatch):
    clock, said = Clock(), []
    monkeypatch.setattr(watchdog, "time", clock)
    zero, one = (Watchdog(tmp_path, World(r, 3, torch.device("cpu"), None), 10, said.append) for r in (0, 1))
    zero.step = one.step = 7
    one.enter("loader")
    clock.now += 4
    zero.enter("backward")
    clock.now += 9
    zero.look()
    assert said == []
    one.look()  # stuck for 13 seconds, but rank 0 lives: it will tell
    assert said == [] and "test_the_first_living" in (tmp_path / "ranks" / "rank_0001.stack").read_text()
    clock.now += 2
    zero.look()
    (table,) = said
    assert table.startswith('no progress: rank 0 is in "backward" of step 7 for 11 s')
    lines = [each.split()[:1] + each.split()[2:6] for each in table.splitlines()[2:]]
    assert lines[:2] == [["0", "7", "backward", "11", "s"], ["1", "7", "loader", "15", "s"]]
    assert "has left no sign" in table.splitlines()[4]
    clock.now += 5
    zero.look()
    assert len(said) == 1  # told again only after twice the time
    clock.now += 10
    one.look()  # rank 0 has shown no sign for a while
    assert len(said) == 2 and said[1].startswith("no progress: rank 1")
    zero.enter("forward")
    zero.look()
    assert len(said) == 2


def test_a_run_that_ends_takes_its_notes_away(tmp_path):
    with Watchdog(tmp_path, World(0, 1, torch.device("cpu"), None), 60) as dog:
        dog.look()
        assert dog.notes()[0].phase == "start"
    assert not (tmp_path / "ranks").exists()


def ranks(tmp_path, said: list[str]) -> list[Watchdog]:
    """Those of three ranks, in phase `sums`."""
    dogs = [Watchdog(tmp_path, World(rank, 3, torch.device("cpu"), None), 300, said.append) for rank in range(3)]
    for dog in dogs:
        dog.enter("sums")
    return dogs


def fail(dog: Watchdog, error: Exception) -> None:
    with pytest.raises(type(error)), dog:
        raise error


def test_a_rank_that_waits_for_one_that_failed_ends_and_one_that_moves_does_not(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(watchdog, "time", clock)
    zero, one, two = ranks(tmp_path, [])
    clock.now += 5
    fail(one, MemoryError("out of memory"))
    assert zero.left_behind() is None
    clock.now += watchdog.GRACE + 1
    two.enter("export")
    assert zero.left_behind() == {"rank": 1, "error": "MemoryError: out of memory", "at": 1005.0}
    assert two.left_behind() is None
    later = Watchdog(tmp_path, World(2, 3, torch.device("cpu"), None), 300)  # of the next life
    clock.now += 2 * watchdog.GRACE
    assert later.left_behind() is None and two.left_behind() is not None
    with zero:
        pass
    assert not (tmp_path / "ranks").exists()  # a life that ends well leaves nothing


STUCK = """
import sys, threading
import torch
from pathlib import Path
from unify_agent.training import watchdog
from unify_agent.training.parallel import World
watchdog.GRACE = 0.0
with watchdog.Watchdog(Path(sys.argv[1]), World(0, 2, torch.device("cpu"), None), 0.4):
    print("waits", flush=True)
    threading.Event().wait()
"""


def test_a_process_in_a_collective_ends_when_another_rank_has_failed(tmp_path):
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-c", STUCK, str(tmp_path)]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "waits\n"
    told = {"rank": 1, "error": "MemoryError: none left", "at": time.time() + 1}
    (tmp_path / "ranks").mkdir(exist_ok=True)
    (tmp_path / "ranks" / watchdog.FAILED).write_text(json.dumps(told))
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "rank 1 has failed (MemoryError: none left); the other ranks end too" in said
