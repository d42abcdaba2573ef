"""Sharded checkpoints that exist whole or not at all, written while training goes on.

A checkpoint is a folder `checkpoints/step_0000123/` written by `torch.distributed.checkpoint` (each rank its own
shards, readable by any number of ranks) under a hidden name, closed by `commit.json` and then renamed. A folder
without that marker is not a checkpoint. Older ones are deleted only after a newer one is complete.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from unify_agent import files
from unify_agent.errors import STOPPED, UserError
from unify_agent.training.parallel import World

MARKER = "commit.json"
_NAME = re.compile(r"step_(\d{7,})")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its folder, the number of finished steps and what `save` was told besides tensors."""

    path: Path
    step: int
    meta: dict[str, Any]


def complete(folder: Path) -> list[Checkpoint]:
    """Every complete checkpoint in `folder`, oldest first."""
    found = []
    for path in folder.glob("step_*"):
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        try:
            meta = json.loads((path / MARKER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        found.append(Checkpoint(path, int(match[1]), meta))
    return sorted(found, key=lambda each: each.step)


def latest(folder: Path) -> Checkpoint | None:
    found = complete(folder)
    return found[-1] if found else None


class Saver:
    """Writes a run's checkpoints, one at a time: by default in the background, while training goes on.

    A save copies every tensor to host memory before it returns, so the next step may change them. The write, the
    marker and the deletion of older checkpoints happen in a thread, over a process group of its own. With
    `background` false, `save` returns when the checkpoint is complete, and no copy is made.

    `save` and `wait` are collectives. What goes wrong while writing is raised by the next of them, on every rank.
    """

    def __init__(self, folder: Path, world: World, keep: int, background: bool = True) -> None:
        self.folder, self.world, self.keep = folder, world, keep
        self._group = dist.new_group(backend="gloo") if world.mesh is not None else None
        cuda = world.device.type == "cuda"
        # On a GPU into page-locked memory that is kept from save to save, all copies under way at once.
        self._stager = DefaultStager(StagingOptions(cuda, False, False, cuda)) if background else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: tuple[Path, Future[str | None]] | None = None

    def save(self, step: int, tensors: dict[str, Tensor], meta: dict[str, Any], prune: bool = True) -> Path:
        """Write a checkpoint of `step` finished steps, after the one under way; then delete all but the newest `keep`.

        Raises UserError when this one cannot be begun, or the one before could not be written (a full disk, say).
        Earlier checkpoints stay as they are and nothing half-written remains.
        """
        self.wait()
        path = self.folder / f"step_{step:07d}"
        work = self.folder / f".{path.name}.tmp"
        failure = None
        try:
            if self.world.main:
                self.folder.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(work, ignore_errors=True)
                work.mkdir()
        except OSError as error:
            failure = _reason(error)
        self._agree(path, failure)
        copied = self._copied(tensors)
        self._pending = path, self._thread.submit(self._write, path, work, copied, {"step": step, **meta}, prune)
        if self._stager is None:
            self.wait()
        return path

    def _copied(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the next step may not change."""
        if self._stager is None:
            return tensors
        copied = self._stager.stage(tensors)
        return copied.result() if isinstance(copied, Future) else copied

    @property
    def failed(self) -> bool:
        """Whether this rank knows already that the save under way has failed; `wait` tells it to all ranks."""
        return self._pending is not None and self._pending[1].done() and self._pending[1].result() is not None

    def wait(self) -> None:
        """Return when no save is under way. Raises UserError, on every rank, when the last one has failed."""
        if self._pending is None:
            return
        (path, future), self._pending = self._pending, None
        self._agree(path, future.result())

    def close(self) -> None:
        """End the thread, after the save under way. No collective; a failure is no longer told."""
        self._thread.shutdown()
        if self._stager is not None:
            self._stager.close()

    def _write(
        self, path: Path, work: Path, tensors: dict[str, Tensor], meta: dict[str, Any], prune: bool
    ) -> str | None:
        """Returns what went wrong, None when the checkpoint is complete."""
        _silence()
        try:
            # Returns once every rank's shards are flushed to the disk, or raises on every rank.
            dcp.save(tensors, checkpoint_id=work, process_group=self._group, no_dist=self._group is None)
            if self.world.main:
                _commit(work, path, meta)
                if prune:
                    _prune(self.folder, self.keep)
        except (CheckpointException, OSError, RuntimeError) as error:
            if self.world.main:
                shutil.rmtree(work, ignore_errors=True)
            return _reason(error)
        return None

    def _agree(self, path: Path, failure: str | None) -> None:
        if self.world.any(failure is not None):
            last = latest(self.folder)
            kept = f"the last good one is {last.path}" if last else "there is no earlier one"
            why = failure or "another rank failed"
            raise UserError(f"{path}: checkpoint cannot be written ({why}); {kept}", STOPPED)


def load(checkpoint: Checkpoint, tensors: dict[str, Tensor], world: World) -> None:
    """Read a checkpoint into `tensors`, in place (a collective). The number of ranks may differ from the saving one.

    Raises UserError when files are missing or do not fit.
    """
    with _readable(checkpoint):
        dcp.load(tensors, checkpoint_id=checkpoint.path, no_dist=world.mesh is None)


def shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor in a checkpoint. Raises UserError as `load`."""
    with _readable(checkpoint):
        return {name: tuple(each.size) for name, each in _held(checkpoint).items()}


def read(checkpoint: Checkpoint, names: Sequence[str]) -> dict[str, Tensor]:
    """Whole tensors of a checkpoint, read by this process alone. Raises UserError as `load`."""
    with _readable(checkpoint):
        held = _held(checkpoint)
        into = {name: torch.empty(held[name].size, dtype=held[name].properties.dtype) for name in names}
        dcp.load(into, checkpoint_id=checkpoint.path, no_dist=True)
    return into


def _held(checkpoint: Checkpoint) -> dict[str, TensorStorageMetadata]:
    held = dcp.FileSystemReader(checkpoint.path).read_metadata().state_dict_metadata
    return {name: each for name, each in held.items() if isinstance(each, TensorStorageMetadata)}


@contextmanager
def _readable(checkpoint: Checkpoint) -> Iterator[None]:
    _silence()
    try:
        yield
    except (CheckpointException, OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{checkpoint.path}: this checkpoint cannot be read ({_reason(error)}); "
            f"delete it to continue from the one before, or choose another output"
        ) from None


def _silence() -> None:
    """A single process is what we mean; torch warns of it at every call."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")


def _commit(work: Path, path: Path, meta: dict[str, Any]) -> None:
    files.write_json(work / MARKER, meta)
    shutil.rmtree(path, ignore_errors=True)  # what is left of one that was being deleted
    os.replace(work, path)


def _prune(folder: Path, keep: int) -> None:
    for old in complete(folder)[:-keep]:
        (old.path / MARKER).unlink()  # first: a half-deleted folder must not look complete
        shutil.rmtree(old.path, ignore_errors=True)
    newest = latest(folder)
    for path in folder.glob("*"):
        stale = _NAME.fullmatch(path.name) and not (path / MARKER).exists()
        if path.name.endswith(".tmp") or (stale and newest is not None):
            shutil.rmtree(path, ignore_errors=True)


def _reason(error: BaseException) -> str:
    """The first cause in one line; `torch.distributed.checkpoint` wraps what each rank raised."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    while (cause := error.__cause__ or error.__context__) is not None:
        if error.__cause__ is None and not isinstance(cause, OSError):
            break
        error = cause
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__
