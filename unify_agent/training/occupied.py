"""One run at a time in a run folder: a second start of the same command would write over what the first one writes."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unify_agent.errors import UserError
from unify_agent.training.parallel import World

LOCK = ".lock"
"""File of the run folder that the first rank's process holds; it names that process."""


@contextmanager
def occupied(folder: Path, world: World) -> Iterator[None]:
    """Inside the block no other process, on this machine or another, enters `folder`. A collective.

    The system lets go of the lock when its process ends, however it ends, and workers do not inherit it. A file system
    that has no locks lets everybody in.

    Raises:
        UserError: on every rank, when another run is in there, or the folder cannot be written to.
    """
    handle, refused = _taken(folder) if world.main else (None, None)
    try:
        refused = world.gather(refused)[0]
        if refused is not None:
            raise UserError(f"{folder}: {refused}")
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _taken(folder: Path) -> tuple[int | None, str | None]:
    """An open file to close in the end, and why this process may not enter, if so."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        return None, f"cannot be written ({error.strerror})"
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            return handle, None
        holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
        return handle, f"{holder} trains here already; wait for it, end it, or choose another output"
    with suppress(OSError):  # a full disk is for others to tell
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return handle, None
