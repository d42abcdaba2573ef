"""`preflight=true`: what would stop a run on many machines in an hour, found in a minute, by the run's own command.

Every rank looks at its machine; rank 0 then assembles what the run will assemble (weights' headers, data and their
length index, which is kept for the run) and speaks for all (`readiness`). Only then are collectives tried, by joining
the process group as a run does (`bandwidth`). What is certain to fail ends the job with exit code 2; what is merely
slow is a warning.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

from torch.distributed import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from unify_agent import files
from unify_agent.errors import USAGE, UserError
from unify_agent.training import parallel
from unify_agent.training.bandwidth import bandwidth
from unify_agent.training.config import Config
from unify_agent.training.readiness import Note, judged, look

ARRIVAL = timedelta(minutes=10)
"""How long ranks wait for each other."""
ASSEMBLY = timedelta(hours=24)
"""How long they wait for rank 0, which may have to measure the data."""


def preflight(config: Config) -> int:
    """Returns 0 when the run can start, 2 when it cannot; rank 0 has said why. Under torchrun by all ranks alike.

    Until every rank is known to be fit for the process group, they talk through torchrun's store alone.
    """
    if config.task != "sft":
        raise UserError(f"task={config.task}: preflight=true is for task=sft")
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    store = PrefixStore("preflight", next(rendezvous("env://", timeout=ARRIVAL))[0]) if size > 1 else None
    token = _token(Path(config.output), rank, store)
    note = look(config, rank, token)
    if rank == 0:
        notes = [note, *_others(size, store)]
        token.unlink(missing_ok=True)
        report = judged(config, notes)
        report.say()
        fit = not report.errors
        if store is not None:
            store.set("verdict", str(fit))
    else:
        assert store is not None
        store.set(f"note/{rank}", json.dumps(asdict(note)))
        store.wait(["verdict"], ASSEMBLY)
        fit = store.get("verdict") == b"True"
    if not fit:
        return USAGE
    world = parallel.start(config.parallel)
    try:
        measured = bandwidth(config, world)
    finally:
        parallel.stop(world)
    if world.main:
        measured.facts.append("the run can start")
        measured.say()
    return 0


def _token(output: Path, rank: int, store: Store | None) -> Path:
    """A file that rank 0 has just written to the run folder, by the same name on all ranks."""
    name = f".preflight-{secrets.token_hex(8)}"
    if rank == 0:
        files.write_text(output / name, "")
    if store is not None:
        if rank == 0:
            store.set("token", name)
        name = store.get("token").decode()
    return output / name


def _others(size: int, store: Store | None) -> list[Note]:
    return [Note(**json.loads(store.get(f"note/{rank}"))) for rank in range(1, size)] if store is not None else []
