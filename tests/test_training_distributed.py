"""One process, two replicas and two shards do the same training; any number of ranks continues a run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training_ranks import compose, uneven
from tests.training_toy import write_start
from unify_agent.model.weights import load_model
from unify_agent.training.assembly import start
from unify_agent.training.export import export_run
from unify_agent.training.metrics import read
from unify_agent.training.trainer import fit

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


def torchrun(runs: list[list[str]]) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["tests/training_ranks.py", json.dumps(runs)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Rows of metrics of every run, by name."""
    folder = tmp_path_factory.mktemp("runs")
    base = [*write_start(folder / "start"), "optim.schedule=constant", "checkpoint.every=2"]

    def settings(name: str, *more: str, steps: int = 4) -> list[str]:
        return [*base, f"output={folder / name}", f"steps={steps}", *more]

    fit(compose(settings("one")))
    uneven(compose(settings("uneven_one")))
    # weights of four steps know as little as random ones
    tuned = ("model.init=pretrained", f"model.path={folder / 'one' / 'final'}", "guards.first_ce=null")
    uneven(compose(settings("tuned_one", *tuned)))
    torchrun(
        [
            settings("replicas", "parallel.shard=1"),
            settings("shards", "parallel.shard=2", steps=2),
            ["uneven", *settings("uneven_shards", "parallel.shard=2")],
            ["uneven", *settings("uneven_replicas", "parallel.shard=1")],
            ["uneven", *settings("tuned_shards", "parallel.shard=2", *tuned)],
        ]
    )
    for name in ("shards", "replicas"):  # two ranks wrote the checkpoint, one process reads it
        config = compose(settings(name))
        os.replace(folder / name / "final", folder / name / "by_two")
        export_run(folder / name, folder / name / "again", config, start(config))
    fit(compose(settings("shards")))
    rows = {"folder": folder} | {name: read(folder / name / "metrics.jsonl") for name in ("one", "replicas", "shards")}
    for name in ("uneven_one", "uneven_shards", "uneven_replicas", "tuned_one", "tuned_shards"):
        rows[name] = json.loads((folder / name / "row.json").read_text())
    return rows


@pytest.mark.parametrize("name", ["replicas", "shards"])
def test_two_ranks_train_as_one_process_does(runs, name):
    """`shards` took its last two steps in one process: its checkpoint was read by another number of ranks."""
    assert [row["step"] for row in runs[name]] == [1, 2, 3, 4]
    for one, two in zip(runs["one"], runs[name], strict=True):
        for key in ("loss", "ce", "mse", "grad_norm"):
            assert two[key] == pytest.approx(one[key], rel=1e-4), (name, one["step"], key)
        for key in ("tokens", "samples", "ce_tokens", "mse_tokens", "fill", "lr"):
            assert two[key] == one[key]


@pytest.mark.parametrize("name", ["replicas", "shards"])
def test_one_process_exports_what_two_ranks_have_trained(runs, name):
    ours, theirs = (load_model(runs["folder"] / name / each).state_dict() for each in ("again", "by_two"))
    assert ours.keys() == theirs.keys()
    for tensor, value in ours.items():
        assert torch.equal(value, theirs[tensor]), tensor


@pytest.mark.parametrize("name", ["replicas", "shards"])
def test_a_rank_with_text_only_trains_together_with_one_that_has_pictures_only(runs, name):
    for key in ("loss", "grad_norm", "weights"):
        assert runs[f"uneven_{name}"][key] == pytest.approx(runs["uneven_one"][key], rel=1e-5)


def test_stored_weights_that_each_rank_reads_a_shard_of_train_as_in_one_process(runs):
    for key in ("loss", "grad_norm", "weights"):
        assert runs["tuned_shards"][key] == pytest.approx(runs["tuned_one"][key], rel=1e-5)
    assert runs["tuned_one"]["loss"] != pytest.approx(runs["uneven_one"]["loss"], rel=1e-6)  # other weights than random
