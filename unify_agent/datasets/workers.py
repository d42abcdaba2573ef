"""How a loader's worker takes signals: the trainer decides when it ends, and it never outlives the trainer.

A terminal's Ctrl-C, SLURM and torchrun signal whole process groups. A worker that died of it would take down the
step under way, and with it the checkpoint that the trainer is about to save. A trainer killed by SIGKILL, on the
other hand, tells nobody; its worker would wait for ever to hand over a pack.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

GRACE_SECONDS = 60
"""After SIGTERM a worker that nobody has ended by then ends itself."""

_PR_SET_PDEATHSIG = 1


def settle(trainer: int, worker: int) -> None:
    """Called first in each worker process; `trainer` is the id of the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE_SECONDS))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != trainer:  # it died before we asked to be told
            os._exit(1)
