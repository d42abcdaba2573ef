"""A cluster of nodes that are all this machine: commands of SLURM for the PATH, and jobs that live more than once."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.training_toy import ToySource

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ("srun", "scancel", "scontrol", "squeue")
CODE = ("train.py", "infer.py", "unify_agent", "configs", "recipes", "slurm")


class GatedSource(ToySource):
    """Builds nothing more once a run has two rows of metrics, until the file `gate` is there."""

    def __init__(self, context, size=12, metrics="", gate=""):
        super().__init__(context, size)
        self.metrics, self.gate = Path(metrics), Path(gate)

    def document(self, index, rng):
        while self.metrics.exists() and self.metrics.read_text().count("\n") >= 2 and not self.gate.exists():
            time.sleep(0.05)
        return super().document(index, rng)


def checkout(folder: Path) -> Path:
    """A git checkout of this code, which a test may change."""
    skip = shutil.ignore_patterns("__pycache__")
    for name in CODE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=skip)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / "tests").mkdir()
    for name in ("slurm_tools.py", "training_toy.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests" / name)
    (folder / ".gitignore").write_text("__pycache__/\noutputs/\n")
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "code"]):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)
    return folder


def directives(script: Path) -> dict[str, str]:
    """The options in a script's #SBATCH lines."""
    found = re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", script.read_text(), re.M)
    assert len(found) == script.read_text().count("#SBATCH")
    return dict(found)


class Job:
    """A job of one of the scripts. Every life is a run of the script's copy, as SLURM keeps one."""

    def __init__(
        self, home: Path, script: str, *arguments: str, number: int = 41, nodes: int | None = None, **env: str
    ) -> None:
        self.home, self.number, self.lives = home, number, 0
        self.options = directives(ROOT / "slurm" / script)
        self.state = home.parent / f"job-{number}"
        self.state.mkdir()
        self.script = shutil.copy(ROOT / "slurm" / script, self.state / "slurm_script")
        self.arguments = arguments
        self.log = self.state / "log"
        commands = home.parent / "bin"
        commands.mkdir(exist_ok=True)
        for name in COMMANDS:
            (commands / name).write_text(
                f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S {ROOT}/tests/slurm_fake.py {name} "$@"\n'
            )
            (commands / name).chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PYTHON"))},
            "PATH": f"{commands}:{os.environ['PATH']}",
            "FAKE_SLURM": str(self.state),
            "OMP_NUM_THREADS": "1",
            "SLURM_JOB_ID": str(number),
            "SLURM_JOB_NAME": self.options["job-name"],
            "SLURM_NNODES": str(nodes or self.options["nodes"]),
            "SLURM_JOB_NODELIST": "node[1-N]",
            "SLURM_CPUS_PER_TASK": self.options["cpus-per-task"],
            "SLURM_GPUS_ON_NODE": self.options["gpus-per-node"],
            **env,
        }

    def start(self) -> None:
        """The next life."""
        (self.state / "requeue").unlink(missing_ok=True)
        environment = self.environment | ({"SLURM_RESTART_COUNT": str(self.lives)} if self.lives else {})
        self.lives += 1
        assert self.options["open-mode"] == "append"
        command = ["bash", self.script, *self.arguments]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.home, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def time_limit(self) -> None:
        """What SLURM does some time before it: with `B:` the batch shell alone is signalled."""
        to, name = re.fullmatch(r"(B:)?(\w+)@\d+", self.options["signal"]).groups()
        assert to == "B:"
        self.process.send_signal(signal.Signals[f"SIG{name}"])

    def cancel(self) -> None:
        """What scancel does first: SIGTERM to the batch shell and to every task."""
        self.process.send_signal(signal.SIGTERM)
        subprocess.run([self.home.parent / "bin" / "scancel", "--signal=TERM", "41"], env=self.environment, check=True)

    def until(self, text: str, times: int = 1, seconds: float = 900) -> None:
        """Returns when the log has `text`; raises with the log when the job ends without."""
        deadline = time.monotonic() + seconds
        while self.text.count(text) < times:
            ended = self.process.poll() is not None
            if (ended and self.text.count(text) < times) or time.monotonic() > deadline:
                raise AssertionError(f"no {text!r} in:\n{self.text}")
            time.sleep(0.02)

    def wait(self) -> int:
        """The exit code of the batch script."""
        return self.process.wait(timeout=900)

    @property
    def requeued(self) -> bool:
        return (self.state / "requeue").exists()

    @property
    def text(self) -> str:
        return self.log.read_text()

    @property
    def steps(self) -> list[dict]:
        """What each task of each job step was given: step, node, command."""
        path = self.state / "tasks.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
