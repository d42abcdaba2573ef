"""A run that is killed at any moment, on one rank or several, or goes on with others, trains as if nothing had been."""

import json
import os
import random
import select
import signal
import time
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from PIL import Image

from tests.training_lives import NOT_PERMITTED, SERVER, Moment, crowded, run
from tests.training_toy import write_start
from unify_agent.training.checkpoint import complete
from unify_agent.training.metrics import read

KEYS = ("loss", "ce", "mse", "grad_norm", "lr", "tokens", "samples")
KILLED = -9


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    settings = ["checkpoint.every=1", "checkpoint.keep_last=1", "steps=4", "parallel.packs_per_step=4"]
    settings += ["logging.samples.every=2", "logging.samples.prompts=[a disc, a square]", "logging.samples.steps=3"]
    return [*write_start(folder), *settings, "optim.schedule=constant"]


@pytest.fixture(scope="module")
def unbroken(base, tmp_path_factory):
    """Rows of a run that nothing happens to, how many moments it has, and the pictures it drew last."""
    output = tmp_path_factory.mktemp("runs") / "unbroken"
    code, counts = run([*base, f"output={output}"])
    assert code == 0
    return rows(output), counts, pictures(output)


def rows(output: Path) -> list[dict]:
    return [{key: row[key] for key in ("step", *KEYS)} for row in read(output / "metrics.jsonl")]


def pictures(output: Path) -> np.ndarray:
    files = sorted((output / "samples" / "step_0000004").glob("*.png"))
    assert [file.name for file in files] == ["1.png", "2.png"]
    return np.stack([np.asarray(Image.open(file)) for file in files]).astype(int)


def newest(output: Path) -> int:
    found = complete(output / "checkpoints")
    assert len(found) <= 2  # the newest, and one that was being replaced
    return found[-1].step if found else 0


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_moment_it_repeats_the_same_losses_bit_for_bit(base, unbroken, tmp_path, seed):
    expected, (moments, saving_moments), drawn = unbroken
    chance = random.Random(seed)
    command = [*base, f"output={tmp_path / 'run'}"]
    before = 0
    for saving in (False, True, False, True):
        moment = Moment(chance.randrange(1, saving_moments if saving else moments), saving)
        code, _ = run(command, moment=moment)
        assert code == KILLED or newest(tmp_path / "run") == 4, moment
        assert newest(tmp_path / "run") >= before, moment
        before = newest(tmp_path / "run")
    assert run(command)[0] == 0
    assert rows(tmp_path / "run") == expected
    assert np.array_equal(pictures(tmp_path / "run"), drawn)


def test_a_rank_killed_while_saving_costs_two_ranks_nothing(base, unbroken, tmp_path):
    expected, _, drawn = unbroken
    command = [*base, f"output={tmp_path / 'run'}"]
    code, _ = run(command, ranks=2, moment=Moment(4, saving=True, rank=1))
    assert code == KILLED
    assert run(command, ranks=2)[0] == 0
    same(rows(tmp_path / "run"), expected, 1e-6)
    assert abs(pictures(tmp_path / "run") - drawn).max() <= 1  # both ranks took part in drawing from sharded weights


def test_generators_of_the_whole_process_go_on_where_they_were(base, tmp_path):
    source = "data.sources=[{kind: 'tests.training_lives:MoodySource'}]"
    assert run([*base, source, f"output={tmp_path / 'whole'}"])[0] == 0
    for steps in (2, 4):
        assert run([*base, source, f"output={tmp_path / 'parts'}", f"steps={steps}"])[0] == 0
    whole, parts = rows(tmp_path / "whole"), rows(tmp_path / "parts")
    assert parts == whole and len({row["loss"] for row in whole}) == 4


def test_when_one_rank_is_asked_to_stop_all_save_the_same_step_and_end(base, unbroken, tmp_path):
    source = "data.sources=[{kind: 'tests.training_lives:AskedSource'}]"
    command = [*base, f"output={tmp_path / 'run'}", "checkpoint.every=100"]
    code, _ = run([*command, source], ranks=2)
    assert code == 128 + signal.SIGTERM
    assert [each.step for each in complete(tmp_path / "run" / "checkpoints")] == [1]
    assert len(rows(tmp_path / "run")) == 1
    assert run(command, ranks=2)[0] == 0
    same(rows(tmp_path / "run"), unbroken[0], 1e-6)


def test_two_ranks_then_one_then_four_go_on_with_the_same_losses(base, unbroken, tmp_path):
    expected = unbroken[0]
    command = [*base, f"output={tmp_path / 'run'}"]
    for steps, ranks in ((1, 2), (2, 1), (4, 4)):
        assert run([*command, f"steps={steps}"], ranks=ranks)[0] == 0
    same(rows(tmp_path / "run"), expected, 1e-4)


def same(ours: list[dict], theirs: list[dict], tolerance: float) -> None:
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        for key in KEYS:
            assert mine[key] == pytest.approx(other[key], rel=tolerance), (other["step"], key)


def test_a_full_or_unwritable_disk_is_one_line_and_the_last_checkpoint_stays(base, tmp_path):
    report = tmp_path / "report.json"
    room = 5 << 19  # one checkpoint of 1.6 MB, and not two
    child = SERVER.Process(target=crowded, args=([*base, f"output={tmp_path / 'run'}"], room, str(report)))
    child.start()
    child.join()
    if child.exitcode == NOT_PERMITTED:
        pytest.skip("no file system can be mounted here")
    assert child.exitcode == 0
    found = json.loads(report.read_text())
    for way, says in (("full", "No space left on device"), ("read_only", "Read-only file system")):
        assert found[way]["code"] in (1, 2) and found[way]["steps"] == [1], found
        assert found[way]["names"] == ["step_0000001"], found
        assert found[way]["said"].startswith("error: ") and found[way]["said"].count("\n") == 1, found
        assert says in found[way]["said"], found
    assert "last good one is" in found["full"]["said"]


def test_when_a_rank_stalls_the_ranks_and_their_phases_are_printed(base, tmp_path):
    stalled, told = str(tmp_path / "stalled"), str(tmp_path / "told")
    os.mkfifo(stalled)
    os.mkfifo(told)
    source = f"data.sources=[{{kind: 'tests.training_lives:StalledSource', options: {{until: {stalled}}}}}]"
    command = [*base, source, f"output={tmp_path / 'run'}", "steps=1", "logging.stuck_after=1"]
    codes: list[int] = []
    pipe, release = os.open(told, os.O_RDWR), os.open(stalled, os.O_RDWR)  # so that both open at once
    work = Thread(target=lambda: codes.append(run(command, ranks=2, stderr=told)[0]))
    work.start()
    stacks = tmp_path / "run" / "ranks" / "rank_0001.stack"
    text, where, until = "", "", time.monotonic() + 200
    while work.is_alive() and time.monotonic() < until:
        if select.select([pipe], [], [], 1)[0]:
            text += os.read(pipe, 1 << 16).decode()
        where = stacks.read_text() if stacks.exists() else ""
        if {("0", "counts"), ("1", "loader")} <= placed(text) and "in document" in where:
            break
    os.write(release, b"go on")
    os.close(release)
    work.join()
    os.close(pipe)
    assert codes == [0], text
    assert {("0", "counts"), ("1", "loader")} <= placed(text), text
    assert "no progress: rank" in text and "in document" in where


def placed(text: str) -> set[tuple[str, str]]:
    """(rank, phase) of the last table in `text`."""
    lines = [line.split() for line in text.rpartition("no progress")[2].splitlines()[2:]]
    return {(line[0], line[3]) for line in lines if len(line) > 4}
