"""A worker without a model, for tests of the fleet: it must be importable in another process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from unify_agent.agent.batch import Outcome


def work(pipe, setup, out: Path, device, parent: int) -> None:
    """Draws nothing: says which device it saw. A prompt can ask for its death, as often as `deaths` in it says."""
    if setup.model == "refused":
        pipe.send(("refused", ("no such folder", 2)))
        return
    dead = out / f"{device}.dead"
    if setup.model == "lost" and dead.is_file():  # a card that is gone after a death
        os.kill(os.getpid(), signal.SIGKILL)
    if setup.model == "dead":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        pipe.send(("idle", None))
        batch = pipe.recv()
        if not batch:
            return
        for request in batch:
            mark = out / f"{request.id}.begun"
            begun = len(mark.read_text()) if mark.is_file() else 0
            mark.write_text("x" * (begun + 1))
            pipe.send(("event", (request.id, "reply")))
            if begun < int(request.country or 0):
                dead.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            seen = f"{device} {os.getpid()} {len(batch)}"
            pipe.send(("outcome", Outcome(request.id, request.category, "ok", "direct", seen)))
