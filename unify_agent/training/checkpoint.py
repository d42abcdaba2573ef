"""Sharded checkpoints that exist whole or not at all.

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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from unify_agent import files
from unify_agent.errors import UserError
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


def save(folder: Path, step: int, tensors: dict[str, Tensor], meta: dict[str, Any], world: World, keep: int) -> Path:
    """Write a checkpoint of `step` finished steps (a collective) and delete all but the newest `keep`.

    Raises UserError on every rank when it cannot be written (a full disk, say); earlier checkpoints stay as
    they are and nothing half-written remains.
    """
    path = folder / f"step_{step:07d}"
    work = folder / f".{path.name}.tmp"
    if world.main:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
    world.barrier()
    failure: BaseException | None = None
    try:
        with _quiet():
            dcp.save(tensors, checkpoint_id=work, no_dist=world.mesh is None)
    except (CheckpointException, OSError, RuntimeError) as error:
        failure = error
    if world.main and failure is None:
        try:
            _commit(work, path, {"step": step, **meta})
            _prune(folder, keep)
        except OSError as error:
            failure = error
    if world.any(failure is not None):
        if world.main:
            shutil.rmtree(work, ignore_errors=True)
        last = latest(folder)
        kept = f"the last good one is {last.path}" if last else "there is no earlier one"
        raise UserError(f"{path}: checkpoint cannot be written ({_reason(failure)}); {kept}")
    return path


def load(checkpoint: Checkpoint, tensors: dict[str, Tensor], world: World) -> None:
    """Read a checkpoint into `tensors`, in place (a collective). The number of ranks may differ from the saving one.

    Raises UserError when files are missing or do not fit.
    """
    with _readable(checkpoint), _quiet():
        dcp.load(tensors, checkpoint_id=checkpoint.path, no_dist=world.mesh is None)


def shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor in a checkpoint. Raises UserError as `load`."""
    with _readable(checkpoint):
        held = dcp.FileSystemReader(checkpoint.path).read_metadata().state_dict_metadata
    return {name: tuple(each.size) for name, each in held.items() if isinstance(each, TensorStorageMetadata)}


def read(checkpoint: Checkpoint, names: Sequence[str]) -> dict[str, Tensor]:
    """Whole tensors of a checkpoint, read by this process alone. Raises UserError as `load`."""
    with _readable(checkpoint), _quiet():
        held = dcp.FileSystemReader(checkpoint.path).read_metadata().state_dict_metadata
        into = {name: torch.empty(held[name].size, dtype=held[name].properties.dtype) for name in names}
        dcp.load(into, checkpoint_id=checkpoint.path, no_dist=True)
    return into


@contextmanager
def _readable(checkpoint: Checkpoint) -> Iterator[None]:
    try:
        yield
    except (CheckpointException, OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{checkpoint.path}: this checkpoint cannot be read ({_reason(error)}); "
            f"delete it to continue from the one before, or choose another output"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """A single process is what we mean; torch warns of it at every save."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _commit(work: Path, path: Path, meta: dict[str, Any]) -> None:
    for file in work.iterdir():
        handle = os.open(file, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    files.write_json(work / MARKER, meta)
    shutil.rmtree(path, ignore_errors=True)
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


def _reason(error: BaseException | None) -> str:
    """The first cause in one line; `torch.distributed.checkpoint` wraps what each rank raised."""
    if error is None:
        return "another rank failed"
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    while error.__cause__ is not None or isinstance(error.__context__, OSError):
        error = error.__cause__ or error.__context__
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__
