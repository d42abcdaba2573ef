"""A run that was killed, stopped or refused: what remains, and what the same command does next."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training_ranks import compose
from tests.training_toy import write_start
from unify_agent.errors import UserError
from unify_agent.training import trainer
from unify_agent.training.checkpoint import complete
from unify_agent.training.logs import RunLog
from unify_agent.training.metrics import read
from unify_agent.training.trainer import fit

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ("seconds", "loader_seconds", "tokens_per_second", "memory_gib", "tflops")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    return [*write_start(folder), "checkpoint.every=2", "steps=6", "data.workers=1"]


@pytest.fixture(scope="module")
def unbroken(base, tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "unbroken"
    assert fit(compose([*base, f"output={output}"])) == 0
    return output


def start(*overrides: str) -> subprocess.Popen:
    command = [sys.executable, "train.py", *overrides]
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def until(process: subprocess.Popen, words: str) -> list[str]:
    """Lines printed up to the one that starts with `words`."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(words):
            return lines
    raise AssertionError("".join(lines))


def rows(output: Path) -> list[dict]:
    return [{key: value for key, value in row.items() if key not in MEASURED} for row in read(output / "metrics.jsonl")]


def test_a_killed_run_goes_on_as_if_it_had_never_been_killed(base, unbroken, tmp_path):
    output = tmp_path / "killed"
    process = start(*base, f"output={output}")
    until(process, "step 3/6")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [os.pidfd_open(int(child)) for child in children]
    process.kill()
    process.wait()
    for worker in workers:
        assert select.select([worker], [], [], 60)[0], "a worker outlived its trainer"
        os.close(worker)
    assert all(each.step < 6 for each in complete(output / "checkpoints"))
    assert fit(compose([*base, f"output={output}"])) == 0
    assert rows(output) == rows(unbroken)  # every loss and norm, bit for bit


def test_sigterm_to_the_whole_group_saves_and_says_how_to_continue(base, unbroken, tmp_path):
    output = tmp_path / "stopped"
    process = start(*base, f"output={output}")
    until(process, "step 1/6")
    os.killpg(process.pid, signal.SIGTERM)
    rest = process.stdout.read()
    assert process.wait() == 128 + signal.SIGTERM
    assert "stopped by SIGTERM after step" in rest and "same command continues" in rest
    done = len(rows(output))
    assert done < 6 and [each.step for each in complete(output / "checkpoints")][-1] == done
    assert fit(compose([*base, f"output={output}"])) == 0
    assert rows(output) == rows(unbroken)


def test_a_finished_run_trains_nothing_when_called_again(base, unbroken):
    before = rows(unbroken)
    assert fit(compose([*base, f"output={unbroken}"])) == 0
    assert rows(unbroken) == before


def test_a_run_goes_on_with_another_number_of_packs_per_step(base, tmp_path):
    output = f"output={tmp_path}"
    assert fit(compose([*base, output, "steps=2"])) == 0
    assert fit(compose([*base, output, "steps=8", "parallel.packs_per_step=1"])) == 0
    made = rows(tmp_path)
    first = [row for row in made if row["epoch"] == 0]
    assert len(made) == 8 and sum(row["samples"] for row in first) == 12
    changes = complete(tmp_path / "checkpoints")[-1].meta["data"]["packs_per_step"]
    assert changes == [[0, 2], [2, 1]]


def test_ids_of_the_run_at_services_come_back_from_the_checkpoint(base, tmp_path, monkeypatch):
    given = []

    class Log(RunLog):
        def __init__(self, config, done, ids):
            given.append(dict(ids))
            super().__init__(config, done, ids or {"wandb": "0a1b2c3d"})

    monkeypatch.setattr(trainer, "RunLog", Log)
    for steps in (2, 3):
        assert fit(compose([*base, f"output={tmp_path}", f"steps={steps}"])) == 0
    assert given == [{}, {"wandb": "0a1b2c3d"}]


def test_a_run_on_other_data_does_not_continue_silently(base, unbroken):
    with pytest.raises(UserError, match="another plan"):
        fit(compose([*base, f"output={unbroken}", "seed=1"]))
    larger = "data.sources=[{kind: 'tests.training_toy:ToySource', options: {size: 13}}]"
    with pytest.raises(UserError, match="source toy had 12 samples, now 13"):
        fit(compose([*base, f"output={unbroken}", larger]))
    with pytest.raises(UserError, match="more steps than steps=3"):
        fit(compose([*base, f"output={unbroken}", "steps=3"]))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["data.sources=[]"], "data.sources is empty"),
        (["model.init=pretrained"], "model.path is not set"),
        (["model.attention=flex"], "model.attention=flex trains on a GPU only"),
        (["model.vae=null"], "model.vae is not set"),
        (["model.arch=tini"], "model.arch=tini.*tiny"),
        (["model.vae=/nowhere"], "no autoencoder here.*openmoji_vae"),
        (["model.tokenizer=/nowhere"], "/nowhere: no tokenizer here"),
        (["data.sources=[{kind: trajectories, path: /nowhere}]"], "/nowhere: no such folder"),
        (["data.sources=[{kind: trajectories}]"], r"data.sources\[0\].path is not set"),
        (["data.sources=[{kind: 'tests.training_toy:ToySource', options: {sise: 3}}]"], r"data.sources\[0\].options"),
        (["data.vae_transform.max=2048"], "data.vae_transform.max=2048.*position table"),
        (["data.vae_transform.stride=14"], "data.vae_transform.stride=14"),
        (["parallel.shard=3"], "does not make 1 ranks"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_one_clear_line(base, tmp_path, overrides, says):
    with pytest.raises(UserError, match=says) as caught:
        fit(compose([*base, f"output={tmp_path / 'run'}", *overrides]))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_folder_without_trajectories_is_one_clear_line(base, tmp_path):
    (tmp_path / "empty").mkdir()
    source = f"data.sources=[{{kind: trajectories, path: {tmp_path / 'empty'}}}]"
    with pytest.raises(UserError, match="no trajectories here"):
        fit(compose([*base, f"output={tmp_path / 'run'}", source]))


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_samples(base, tmp_path):
    output = tmp_path / "run"
    with pytest.raises(UserError, match=r"not finite.*toy:s\d"):
        fit(compose([*base, f"output={output}", "loss.ce_weight=1e39"]))
    assert rows(output) == [] and complete(output / "checkpoints") == []
