"""The job script of 64 GPUs from end to end, on two nodes that are this machine, with one process each."""

import re
import shutil
import sys

import pytest

from tests.slurm_tools import Job, checkout
from tests.training_ranks import compose
from tests.training_toy import write_start
from unify_agent.training.checkpoint import complete
from unify_agent.training.metrics import read
from unify_agent.training.trainer import fit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("git"), reason="the code snapshot is made by git"),
]
STEPS = 6


def settings(start: list[str], source: str) -> list[str]:
    """The recipe's settings, of a size for two CPU processes."""
    small = [each for each in start if not each.startswith(("optim=", "data.sources="))]
    return [
        *small,
        f"data.sources=[{source}]",
        f"steps={STEPS}",
        "model.attention=segments",
        "parallel.dtype=fp32",
        "parallel.compile=false",
        "parallel.checkpointing=none",
        "parallel.shard=1",
    ]


def test_a_job_that_meets_its_time_limit_goes_on_where_it_was_with_the_code_it_began_with(tmp_path):
    home = checkout(tmp_path / "checkout")
    start = write_start(tmp_path / "start")
    toy = settings(start, "{kind: 'tests.training_toy:ToySource'}")
    gate, run = tmp_path / "gate", home / "outputs/sft_64xh20-41"
    gated = f"{{kind: 'tests.slurm_tools:GatedSource', options: {{metrics: {run}/metrics.jsonl, gate: {gate}}}}}"
    job = Job(
        home, "sft_64xh20.sbatch", *settings(start, gated), "parallel.replicate=2",
        nodes=2, PYTHON=sys.executable, SLURM_GPUS_ON_NODE="1",
    )  # fmt: skip
    job.start()
    job.until("the run can start")
    job.until(f"step 2/{STEPS}")
    for name in ("train.py", "slurm/common.sh", "unify_agent/errors.py"):
        (home / name).write_text("not for the job that is running\n")
    job.time_limit()
    job.until("closing signal SIGTERM", times=2)  # torchrun of either node has it
    gate.touch()
    assert job.wait() == 0 and job.requeued, job.text
    done = int(re.search(r"stopped by SIGTERM after step (\d+)", job.text)[1])
    checkpoints = run / "checkpoints"
    assert 2 < done < STEPS
    assert [(each.step, each.meta["ranks"]) for each in complete(checkpoints)] == [(done, 2)]

    job.start()
    assert job.wait() == 0 and not job.requeued, job.text
    assert f"continuing after step {done}" in job.text and f"done: {STEPS} steps" in job.text
    assert [path.name for path in (home / "outputs").iterdir()] == [run.name]
    assert complete(checkpoints)[-1].meta["commit"] == (run / "code/COMMIT").read_text().strip()
    assert not list(run.glob(".life*")) and not list(run.glob(".preflight*"))

    unbroken = tmp_path / "unbroken"
    fit(compose(["+recipe=sft_64xh20", *toy, "parallel.replicate=1", f"output={unbroken}"]))
    ours, theirs = read(run / "metrics.jsonl"), read(unbroken / "metrics.jsonl")
    assert [row["step"] for row in ours] == list(range(1, STEPS + 1))
    for mine, other in zip(ours, theirs, strict=True):
        for key in ("loss", "ce", "mse", "grad_norm"):
            assert mine[key] == pytest.approx(other[key], rel=1e-4), (mine["step"], key)
