"""Progress for a person: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any


def line(row: dict[str, Any], steps: int, skipped: int) -> str:
    """One step in words, e.g. `step 120/400  loss 2.31 (ce 2.10 mse 0.21)  grad 0.80  lr 1.0e-03  9,100 tok/s  ...`.

    `skipped`: samples since the run was started.
    """
    return (
        f"step {row['step']}/{steps}  loss {row['loss']:.4f} (ce {row['ce']:.4f} mse {row['mse']:.4f})  "
        f"grad {row['grad_norm']:.2f}  lr {row['lr']:.1e}  {row['tokens_per_second']:,.0f} tok/s  "
        f"{speed(row)}  fill {row['fill']:.0%}  skipped {skipped}  wait {row['loader_seconds']:.2f}s  "
        f"{row['memory_gib']:.1f} GiB"
    )


def speed(row: dict[str, Any]) -> str:
    """`MFU 41.2%` where the card is known, else what each rank computes a second."""
    if "mfu" in row:
        return f"MFU {row['mfu']:.1%}"
    return f"{row['tflops'] * 1000:,.0f} GFLOP/s" if row["tflops"] < 1 else f"{row['tflops']:,.1f} TFLOP/s"


def duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


class Console:
    """`step` after every step, `say` for anything else. Silent on ranks other than 0."""

    def __init__(self, steps: int, first: int, every: int, active: bool) -> None:
        self.steps, self.first, self.every, self.active = steps, first, every, active
        self.started, self.skipped = time.monotonic(), 0
        self.progress = None
        if active and sys.stdout.isatty():
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), TimeRemainingColumn())
            self.progress = Progress(*columns)
            self.task = self.progress.add_task("", total=steps, completed=first)
            self.progress.start()

    def say(self, text: str) -> None:
        if not self.active:
            return
        if self.progress is not None:
            self.progress.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)

    def step(self, row: dict[str, Any]) -> None:
        if not self.active:
            return
        done = row["step"]
        self.skipped += row["skipped"]
        words = line(row, self.steps, self.skipped)
        if self.progress is not None:
            self.progress.update(self.task, completed=done, description=words)
        elif done % self.every == 0 or done == self.steps or done == self.first + 1:
            each = (time.monotonic() - self.started) / max(1, done - self.first)
            print(f"{words}  left {duration(each * (self.steps - done))}", flush=True)

    def close(self) -> None:
        if self.progress is not None:
            self.progress.stop()
