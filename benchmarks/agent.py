"""How long the agent takes for requests of the embedded world: seconds by stage, tokens a second, memory.

    python -m benchmarks.agent --world WORLD [--model MODEL] [--requests 16] [--batch 8] [--json]

Stages of the run: `reply` (the model writes), `tools` (waiting for searches and judging), `draw`, `write` (files).
What goes on in `tools` runs in threads; `search`, `open` and `judge` are sums over them, so their sum is more than the
waiting where they ran at the same time. The last figures compare the first turn of all requests, in the words for large
models, with its shared beginnings computed once and for each request anew.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import torch

from data.openmoji.base import BASE
from data.openmoji.entities import load_entities
from eval.openmoji.tasks import chosen, unseen_tasks
from unify_agent.agent.batch import Runner
from unify_agent.agent.crew import Crew, Setup, assemble
from unify_agent.agent.record import Recorder
from unify_agent.agent.requests import Request
from unify_agent.agent.wording import load_prompts
from unify_agent.errors import UserError, run
from unify_agent.generation import prefix
from unify_agent.generation.session import Session

Figures = dict[str, float]


class Writing(Recorder):
    """A recorder that knows how long it wrote and how many ids it wrote down."""

    seconds, tokens = 0.0, 0

    def write(self, episode) -> Path:
        began = time.perf_counter()
        path = super().write(episode)
        self.seconds += time.perf_counter() - began
        self.tokens += sum(len(turn.ids or ()) for turn in episode.turns)
        return path


def requests_of(world: Path, count: int) -> list[Request]:
    """Requests about things of the world that no model has seen."""
    tasks = unseen_tasks(chosen(load_entities(world), count), 0)[:count]
    return [Request(task.id, task.request, task.language) for task in tasks]


def whole_run(crew: Crew, requests: Sequence[Request], batch: int) -> Figures:
    """Seconds by stage of running the requests, and rates."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Writing(Path(folder), crew.policy.name, pages=True)
        runner = Runner(crew, recorder)
        began = time.perf_counter()
        for start in range(0, len(requests), batch):
            list(runner.run(requests[start : start + batch]))
        seconds = time.perf_counter() - began
    stages = runner.loop.seconds | runner.loop.tools.seconds | {"write": recorder.seconds}
    figures = {f"{stage} s": round(value, 3) for stage, value in stages.items()}
    return figures | {
        "all s": round(seconds, 3),
        "s a request": round(seconds / len(requests), 3),
        "tokens/s": round(recorder.tokens / max(stages["reply"], 1e-9), 1),
    }


def beginnings(crew: Crew, requests: Sequence[Request]) -> Figures:
    """Seconds of reading the first turn, its shared beginnings computed once and anew for each request."""
    painter, words = crew.painter, load_prompts("full")
    ids = [painter.grammar.encode_user(words.first(each.prompt, each.language)) for each in requests]

    def read() -> float:
        session = Session(painter.model, painter.vae, painter.grammar, painter.pixels, rows=len(ids))
        began = time.perf_counter()
        session.add_text(range(len(ids)), ids)
        if session.device.type == "cuda":
            torch.cuda.synchronize(session.device)
        return time.perf_counter() - began

    shared = min(read() for _ in range(2))
    with mock.patch.object(prefix, "LEAST", sys.maxsize):
        apart = min(read() for _ in range(2))
    return {"first turn s": round(shared, 3), "first turn, nothing shared, s": round(apart, 3)}


def peak_gib() -> Figures:
    """Most memory so far: of the process, and of the first card where there is one."""
    found = {"peak GiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)}
    if torch.cuda.is_available():
        found["peak GiB of the card"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agent", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", type=Path, required=True, help="folder that `python -m data world openmoji` built")
    parser.add_argument("--model", type=Path, default=BASE, help="model folder (default: the base, %(default)s)")
    parser.add_argument("--requests", type=int, default=16, help="how many (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="requests that run together (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    args = parser.parse_args(arguments)
    for name in ("requests", "batch", "threads"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: at least 1")
    torch.set_num_threads(args.threads)
    crew = assemble(Setup(str(args.model), search=f"index:{args.world / 'search'}"))
    requests = requests_of(args.world, args.requests)
    figures = whole_run(crew, requests, args.batch) | beginnings(crew, requests) | peak_gib()
    if args.json:
        print(json.dumps({"requests": len(requests), "batch": args.batch, "torch": torch.__version__, **figures}))
        return 0
    for name, value in figures.items():
        print(f"{name:32} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
