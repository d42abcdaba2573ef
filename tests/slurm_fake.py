"""srun, scancel, scontrol and squeue as far as the job scripts use them. State lies in the folder $FAKE_SLURM.

Like SLURM with control groups, a signal reaches the processes that srun started, and none of their children.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

STATE = Path(os.environ["FAKE_SLURM"])


def srun(arguments):
    assert os.environ["SRUN_CPUS_PER_TASK"], "a step has one CPU without"
    number = next(n for n, each in enumerate(arguments) if not each.startswith("-"))
    command = arguments[number:]
    steps = STATE / "steps"
    steps.mkdir(exist_ok=True)
    tasks = []
    with open(STATE / "tasks.jsonl", "a") as log:
        for node in range(int(os.environ["SLURM_NNODES"])):
            told = {"SLURM_NODEID": str(node), "SLURM_PROCID": str(node)}
            tasks.append(subprocess.Popen(command, env=os.environ | told, start_new_session=True))
            log.write(json.dumps({"step": os.getpid(), "node": node, "command": command}) + "\n")
    pids = steps / str(os.getpid())
    pids.write_text(" ".join(str(task.pid) for task in tasks))
    codes = [task.wait() for task in tasks]
    pids.unlink()
    return max(128 - code if code < 0 else code for code in codes)


def scancel(arguments):
    name, _ = arguments
    number = signal.Signals[f"SIG{name.removeprefix('--signal=')}"]
    for step in (STATE / "steps").glob("*"):
        for pid in step.read_text().split():
            os.kill(int(pid), number)
    return 0


def scontrol(arguments):
    if arguments[:2] == ["show", "hostnames"]:
        print("127.0.0.1\n" * int(os.environ["SLURM_NNODES"]), end="")
    else:
        assert arguments == ["requeue", os.environ["SLURM_JOB_ID"]], arguments
        (STATE / "requeue").touch()
    return 0


def squeue(arguments):
    """The jobs that are not over: those that $FAKE_QUEUE names."""
    job = arguments[-1].removeprefix("--jobs=")
    if job in os.environ.get("FAKE_QUEUE", "").split():
        print(f"{job} running")
    return 0


sys.exit(globals()[sys.argv[1]](sys.argv[2:]))
