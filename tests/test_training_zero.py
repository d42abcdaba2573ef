"""DeepSpeed's ZeRO trains the same recipe through the same trainer on two processes (docs/deepspeed.md)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training_ranks import compose
from tests.training_toy import write_start
from unify_agent.errors import UserError
from unify_agent.model.weights import load_model
from unify_agent.training.metrics import read
from unify_agent.training.trainer import fit

deepspeed = pytest.importorskip("deepspeed")
ROOT = Path(__file__).resolve().parents[1]
STAGES = (2, 3)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zero")
    base = [*write_start(folder / "start"), "optim.schedule=constant", "optim.eps=1e-6", "checkpoint.every=2"]
    base += ["ema.decay=0.5", "parallel.packs_per_step=4"]
    fit(compose([*base, f"output={folder / 'one'}", "steps=4"]))
    every = []
    for stage in STAGES:
        settings = [*base, f"output={folder / f'zero{stage}'}", f"parallel=deepspeed_zero{stage}"]
        every += [[*settings, "steps=2"], [*settings, "steps=4"]]
        every += [["infinite", *settings, f"output={folder / f'infinite{stage}'}", "parallel.dtype=bf16"]]
        every += [["infinite", *settings, f"output={folder / f'infinite{stage}fp32'}"]]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_BUILD_OPS": "0"}
    result = subprocess.run(
        [*command, "tests/training_ranks.py", json.dumps(every)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return folder, base


@pytest.mark.parametrize("stage", STAGES)
def test_zero_trains_as_one_process_does_across_a_restart(runs, stage):
    """Two packs a rank; after two steps the run ended and was continued from its checkpoint."""
    one, zero = (read(runs[0] / name / "metrics.jsonl") for name in ("one", f"zero{stage}"))
    assert [row["step"] for row in zero] == [1, 2, 3, 4]
    for ours, theirs in zip(zero, one, strict=True):
        for key in ("loss", "ce", "mse", "grad_norm"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-3), (key, ours["step"])


@pytest.mark.parametrize("stage", STAGES)
def test_the_export_holds_the_averages_of_what_was_trained(runs, stage):
    ours, theirs = (load_model(runs[0] / name / "final").state_dict() for name in (f"zero{stage}", "one"))
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-2, atol=1e-4, msg=name)


@pytest.mark.parametrize("name", [f"infinite{stage}{dtype}" for stage in STAGES for dtype in ("", "fp32")])
def test_a_gradient_that_is_not_finite_changes_no_weight(runs, name):
    """Each rank compares all it holds: weights, masters, moments and averages."""
    good, bad = (json.loads((runs[0] / name / f"step_{number}.json").read_text()) for number in (0, 1))
    assert good["changed"] and not good["says"]
    assert not bad["changed"] and "norm inf is not finite; no weight was changed" in bad["says"]


def test_an_older_deepspeed_is_refused(runs, monkeypatch):
    folder, base = runs
    monkeypatch.setattr(deepspeed, "__version__", "0.17.6+x")
    with pytest.raises(UserError, match=r"deepspeed 0\.17\.6\+x may take steps.*'deepspeed>=0\.19\.8'"):
        fit(compose([*base, f"output={folder / 'old'}", "parallel=deepspeed_zero2"]))


def test_another_number_of_ranks_is_refused(runs):
    """Of one stage only: DeepSpeed keeps a process group that the next run in this process would not have."""
    folder, base = runs
    with pytest.raises(UserError, match="written by 2 ranks; DeepSpeed continues with as many"):
        fit(compose([*base, f"output={folder / 'zero2'}", "steps=6", "parallel=deepspeed_zero2"]))
