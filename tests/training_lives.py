"""Training runs in child processes, one or several ranks, that may kill themselves at any moment.

Children are forked from a server that has imported everything already. A moment is a phase of a step, or an operation
on a file or folder of the run (opened, flushed, renamed, removed): the child counts them and ends with SIGKILL just
before the one that it was told.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import multiprocessing
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import diffusers.models.autoencoders.autoencoder_kl  # noqa: F401  (what a life would import)
import numpy as np
import torch
import torch._dynamo

from tests.training_ranks import compose
from tests.training_toy import ToySource
from unify_agent import errors, files
from unify_agent.datasets.sources import SourceContext
from unify_agent.interleave.segments import Document, Picture
from unify_agent.training import checkpoint, plots
from unify_agent.training.trainer import fit
from unify_agent.training.watchdog import Watchdog

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.training_lives"])
NOT_PERMITTED = 77
AUDITED = ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree")


@dataclass(frozen=True)
class Moment:
    """The `number`-th of all moments of rank `rank`, or of those in the thread that writes checkpoints."""

    number: int
    saving: bool = False
    rank: int = 0


class Counter:
    """Counts moments into `counts` [any thread, saving thread] and dies at `moment`."""

    def __init__(self, output: str, moment: Moment | None, counts: Any) -> None:
        self.output, self.moment, self.counts = output, moment, counts
        self.flush, self.enter = os.fsync, Watchdog.enter

    def watch(self) -> None:
        sys.addaudithook(self.audit)
        os.fsync = lambda file: (self.tick(), self.flush(file))[1]
        Watchdog.enter = lambda watchdog, phase: (self.tick(), self.enter(watchdog, phase))[1]

    def audit(self, event: str, details: tuple[Any, ...]) -> None:
        if event in AUDITED and str(details[0]).startswith(self.output):
            self.tick()

    def tick(self) -> None:
        saving = threading.current_thread().name.startswith("checkpoint")
        self.counts[0] += 1
        self.counts[1] += saving
        moment = self.moment
        if moment is not None and self.counts[moment.saving] >= moment.number and saving >= moment.saving:
            os.kill(os.getpid(), signal.SIGKILL)


class StalledSource(ToySource):
    """On rank 1 a sample waits until somebody has written to the pipe `until`."""

    def __init__(self, context: SourceContext, until: str) -> None:
        super().__init__(context)
        self.until, self.waited = until, False

    def slots(self, index: int) -> int:
        return super().document(index, np.random.default_rng(0)).slots

    def document(self, index: int, rng: np.random.Generator) -> Document:
        if os.environ["RANK"] == "1" and not self.waited:
            self.waited = bool(os.read(os.open(self.until, os.O_RDONLY), 9))
        return super().document(index, rng)


class AskedSource(ToySource):
    """Rank 1 is asked to stop while it builds its first sample, and no other rank is."""

    asked = False

    def slots(self, index: int) -> int:
        return super().document(index, np.random.default_rng(0)).slots

    def document(self, index: int, rng: np.random.Generator) -> Document:
        if os.environ["RANK"] == "1" and not self.asked:
            self.asked = True
            os.kill(os.getpid(), signal.SIGTERM)
        return super().document(index, rng)


class MoodySource(ToySource):
    """Draws on the generators of the whole process; nothing of this repository does."""

    def slots(self, index: int) -> int:
        return super().document(index, np.random.default_rng(0)).slots

    def document(self, index: int, rng: np.random.Generator) -> Document:
        document = super().document(index, rng)
        noise = int(torch.randint(100, ())) + np.random.randint(100)
        first = document.segments[0]
        if isinstance(first, Picture):
            changed = replace(first, pixels=first.pixels // 2 + noise // 2)
            document = replace(document, segments=(changed, *document.segments[1:]))
        return document


def crowded(overrides: list[str], size: int, report: str) -> None:
    """A run on a disk of its own of `size` bytes, at the run's folder; then what is there."""
    config = compose([*overrides, "parallel.threads=1"])
    folder = Path(config.output)
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    private, read_only = 1 << 18 | 1 << 14, 1 << 5 | 1
    if libc.unshare(1 << 17) or libc.mount(b"none", b"/", None, private, None):
        sys.exit(NOT_PERMITTED)
    if libc.mount(b"none", str(folder).encode(), b"tmpfs", 0, f"size={size}".encode()):
        sys.exit(NOT_PERMITTED)
    plots.losses = lambda *_: None

    def attempt() -> dict[str, Any]:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            code = errors.run(lambda: fit(config))
        found = checkpoint.complete(folder / "checkpoints")
        held = checkpoint.shapes(found[-1])
        checkpoint.read(found[-1], list(held))
        names = sorted(path.name for path in (folder / "checkpoints").iterdir())
        return {"code": code, "said": said.getvalue(), "steps": [each.step for each in found], "names": names}

    full = attempt()
    libc.mount(b"none", str(folder).encode(), None, read_only, None)
    files.write_json(report, {"full": full, "read_only": attempt()})


def live(
    overrides: list[str], environment: dict[str, str], moment: Moment | None, counts: Any, stderr: str | None
) -> None:
    os.environ.update(environment)
    if stderr is not None:
        os.dup2(os.open(stderr, os.O_WRONLY), 2)
    config = compose([*overrides, "parallel.threads=1"])
    Counter(config.output, moment, counts).watch()
    plots.losses = lambda *_: None  # seconds of each life
    sys.exit(fit(config))


def run(
    overrides: list[str], ranks: int = 1, moment: Moment | None = None, stderr: str | None = None
) -> tuple[int, list[int]]:
    """Returns the exit code (that of the first rank to fail; the others are then killed, as torchrun does) and rank 0's
    counts of moments."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    counts, processes = [], []
    for rank in range(ranks):
        environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        counts.append(SERVER.Array("q", 2, lock=False))
        own = moment if moment is not None and moment.rank == rank else None
        words = {key: str(value) for key, value in environment.items()}
        processes.append(SERVER.Process(target=live, args=(overrides, words, own, counts[-1], stderr)))
        processes[-1].start()
    code = 0
    left = {process.sentinel: process for process in processes}
    while left:
        for sentinel in wait(list(left)):
            process = left.pop(sentinel)
            process.join()
            if process.exitcode and not code:
                code = process.exitcode
                for other in left.values():
                    other.kill()
    return code, list(counts[0])
