"""Requests over several worker processes, one a device; a worker that dies takes nothing with it.

The parent hands out batches over a pipe to each worker and hears of each item as it is written. What a dead worker had
in hand and had not written is run again, item by item, in a new one; an item on which a worker dies twice has failed.
A device on which no new worker can begin is left out; the others go on.
Workers end when their parent does, however it ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from unify_agent.agent.batch import Outcome
from unify_agent.agent.crew import Setup
from unify_agent.agent.episode import Episode
from unify_agent.agent.requests import Request
from unify_agent.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
SOME_NOT = 3
"""Exit code of a run after which some items are not ok."""
DEATHS = 2
"""Deaths of workers over one item after which it is given up."""


def devices(count: int) -> list[str | None]:
    """What each of `count` workers may see: one of the visible devices; None on a machine without any (CPU workers).

    Raises UserError when there are fewer devices than workers, or one is named twice.
    """
    import torch

    listed, found = os.environ.get(VISIBLE), torch.cuda.device_count()
    if listed is None:
        visible = [str(number) for number in range(found)]
    else:
        visible = []
        for name in (each.strip() for each in listed.split(",")):
            if not name or name == "-1":  # as CUDA reads it: nothing after such an entry is visible
                break
            visible.append(name)
        if len(set(visible)) < len(visible):
            raise UserError(f"{VISIBLE}={listed} names a device twice, and so CUDA sees none; name each once")
        if found:  # one that the machine does not have hides those after it
            del visible[found:]
    if not visible:
        return [None] * count
    if count > len(visible):
        shown = f"{VISIBLE}={listed}" if listed is not None else "this machine"
        raise UserError(f"--gpus {count}: {shown} has {len(visible)}")
    return list(visible[:count])


@dataclass
class _Worker:
    device: str | None
    process: Any
    pipe: Connection
    left: dict[str, Request] = field(default_factory=dict)
    ready: bool = False
    again: bool = False
    """Takes the place of one that died."""


class Fleet:
    """Runs requests with `setup` in workers on `devices`, `batch` at a time each, into the folder `out`.

    `on_event` is told (item, what happens to it).
    """

    def __init__(
        self,
        setup: Setup,
        out: Path,
        devices: Sequence[str | None],
        batch: int,
        on_event: Callable[[str, str], None] = lambda item, what: None,
    ):
        self.setup, self.out, self.devices, self.batch, self.on_event = setup, out, devices, batch, on_event
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        self._waiting: deque[Request] = deque()
        self._suspects: deque[Request] = deque()
        self._deaths: Counter[str] = Counter()

    def run(self, requests: Sequence[Request]) -> Iterator[Outcome]:
        """Outcomes as they come. Raises UserError when one of the first workers cannot be set up."""
        self._waiting = deque(requests)
        count = min(len(self.devices), -(-len(requests) // self.batch)) or 1
        try:
            for device in self.devices[:count]:
                self._start(device)
            while self._workers:
                ends = [each.pipe for each in self._workers]
                for pipe in wait(ends):
                    worker = next(each for each in self._workers if each.pipe is pipe)
                    yield from self._heard(worker)
        finally:
            for worker in self._workers:
                worker.process.terminate()
                worker.process.join()

    def _start(self, device: str | None, again: bool = False) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_work, args=(theirs, self.setup, self.out, device, os.getpid()), daemon=True
        )
        process.start()
        theirs.close()
        self._workers.append(_Worker(device, process, ours, again=again))

    def _heard(self, worker: _Worker) -> Iterator[Outcome]:
        """Takes in one message of a worker, or its death."""
        try:
            kind, value = worker.pipe.recv()
        except (EOFError, OSError):
            yield from self._died(worker)
            return
        if kind == "event":
            self.on_event(*value)
        elif kind == "refused":
            if not worker.again:
                raise UserError(*value)
            yield from self._died(worker)
        elif kind == "outcome":
            worker.left.pop(value.key, None)
            yield value
        elif kind == "idle":
            worker.ready = True
            self._hand_out(worker)

    def _hand_out(self, worker: _Worker) -> None:
        """The next batch: first what has to run alone. A worker without work is sent home."""
        if self._suspects:
            batch = [self._suspects.popleft()]
        else:
            batch = [self._waiting.popleft() for _ in range(min(self._share(), len(self._waiting)))]
        worker.left = {request.key: request for request in batch}
        with contextlib.suppress(OSError):  # a dead worker is heard of soon
            worker.pipe.send(batch)
        if not batch:
            self._workers.remove(worker)
            worker.process.join()

    def _share(self) -> int:
        """Requests of the next batch: near the end fewer, so that all workers end at about the same time."""
        return max(1, min(self.batch, -(-len(self._waiting) // max(1, len(self._workers)))))

    def _died(self, worker: _Worker) -> Iterator[Outcome]:
        worker.process.join()
        self._workers.remove(worker)
        code = worker.process.exitcode
        if not worker.ready:
            where = worker.device or "the CPU"
            what = f"a worker on {where} died as it loaded the model (exit code {code})"
            if not worker.again:
                raise UserError(what, SOME_NOT)
            self.on_event(f"device {where}", "lost")
            while not self._workers and (self._suspects or self._waiting):
                request = (self._suspects or self._waiting).popleft()
                yield Outcome.failed(request, "not_run", f"no worker is left: {what}")
            return
        for request in worker.left.values():
            self._deaths[request.key] += 1
            if self._deaths[request.key] >= DEATHS:
                yield Outcome.failed(request, "crashed", f"the worker died twice (exit code {code})")
            else:
                self._suspects.append(request)
        if self._suspects or self._waiting:
            self._start(worker.device, again=True)


def _work(pipe: Connection, setup: Setup, out: Path, device: str | None, parent: int) -> None:
    """The life of a worker."""
    if device is not None:
        os.environ[VISIBLE] = device
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()

    from unify_agent.agent.batch import Runner
    from unify_agent.agent.crew import assemble
    from unify_agent.agent.record import Recorder

    try:
        crew = assemble(setup)
    except UserError as error:
        pipe.send(("refused", (str(error), error.code)))
        return
    def told(episode: Episode, what: str) -> None:
        pipe.send(("event", (episode.id, what)))

    runner = Runner(crew, Recorder(out, crew.policy.name, pages=True), told)
    while True:
        pipe.send(("idle", None))
        batch: list[Request] = pipe.recv()
        if not batch:
            return
        for outcome in runner.run(batch):
            pipe.send(("outcome", outcome))


def _end_with(parent: int) -> None:
    """Ends this process when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
