"""A run folder has one run at a time, and a killed one leaves it free."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training_ranks import compose
from tests.training_toy import write_start
from unify_agent.errors import UserError
from unify_agent.training import occupied as module
from unify_agent.training.occupied import LOCK, occupied
from unify_agent.training.parallel import World
from unify_agent.training.trainer import fit

ROOT = Path(__file__).resolve().parents[1]
ALONE = World(0, 1, torch.device("cpu"), None)
HOLDER = """
import sys, fcntl
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
file.write("process 7 on elsewhere")
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process in the folder `run`."""
    (tmp_path / "run").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDER, tmp_path / "run" / LOCK], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_start_is_refused_before_it_touches_anything_and_free_once_the_first_is_killed(other, tmp_path):
    run = tmp_path / "run"
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    config = compose([*write_start(tmp_path / "start"), f"output={run}", "steps=1"])
    with pytest.raises(UserError, match=r"run: process 7 on elsewhere trains here already; .*another output"):
        fit(config)
    assert sorted(path.name for path in run.iterdir()) == [LOCK, "metrics.jsonl"]
    assert (run / "metrics.jsonl").read_text() == '{"step": 1}\n'
    other.kill()
    other.wait()
    assert fit(config) == 0
    with occupied(run, ALONE):
        assert (run / LOCK).read_text().startswith(f"process {os.getpid()} on ")


def test_a_forked_worker_does_not_keep_the_folder(tmp_path):
    waits, release = os.pipe()
    with occupied(tmp_path, ALONE):
        worker = os.fork()
        if worker == 0:
            os.close(release)
            os.read(waits, 1)
            os._exit(0)
    held = subprocess.run(
        [sys.executable, "-S", "-c", HOLDER, tmp_path / LOCK], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    os.close(release)
    os.waitpid(worker, 0)
    os.close(waits)
    assert held.stdout == b"held\n"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match=r"file/run: cannot be written \(Not a directory\)"),
        occupied(tmp_path / "file" / "run", ALONE),
    ):
        pass


def test_a_file_system_without_locks_lets_everybody_in(other, tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(module.fcntl, "lockf", none)
    with occupied(tmp_path / "run", ALONE):
        pass
