"""Stands for `python` in a job: writes down its arguments, and trains and draws in name only.

What it does follows from $STUB: words separated by spaces.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

STUB = os.environ.get("STUB", "").split()


def run_folder() -> Path:
    return Path(next(each for each in sys.argv if each.startswith("output=")).removeprefix("output=").strip("'"))


def save(folder: Path) -> None:
    step = folder / "checkpoints" / f"step_{time.time_ns():07d}"
    step.mkdir(parents=True, exist_ok=True)
    (step / "commit.json").write_text("{}")


with open(Path(os.environ["FAKE_SLURM"]) / "calls.jsonl", "a") as log:
    log.write(json.dumps({"arguments": sys.argv[1:], "environment": dict(os.environ)}) + "\n")
if "preflight=true" in sys.argv:
    sys.exit(2 if "unfit" in STUB else 0)
if "fails" in STUB:
    sys.exit(7)
if "waits" in STUB:

    def stopped(number, frame):
        if "saves" in STUB:
            save(run_folder())
        sys.exit(1)

    signal.signal(signal.SIGTERM, stopped)
    print("training", flush=True)
    while True:
        signal.pause()
