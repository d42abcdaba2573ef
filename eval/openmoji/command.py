"""`python -m eval openmoji`: runs variants over unseen things and writes results.json, results.md and results.png.

Chunks (one variant, one seed) that were made before with the same model and world are read back, so an interrupted
run goes on and a finished one only measures again.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from data.openmoji.base import BASE
from eval.openmoji.results import Encode, pixel_controls, plot, score_chunk, summarise, to_markdown
from eval.openmoji.run import Runner, World
from eval.openmoji.score import Scored
from eval.openmoji.tasks import unseen_tasks
from eval.openmoji.variants import VARIANTS, Variant, select
from unify_agent.errors import UserError
from unify_agent.files import write_bytes, write_json, write_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m eval openmoji`."""
    parser.add_argument("--model", type=Path, required=True, help="BAGEL-layout folder of the fine-tuned model")
    parser.add_argument("--world", type=Path, required=True, help="folder that `python -m data world openmoji` built")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; an unfinished run is continued")
    parser.add_argument("--entities", type=int, default=100, help="unseen test entities (default 100)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ...: other scenes, other noise (default 3)")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), metavar="NAME",
                        help=f"what to compare (default all): {', '.join(VARIANTS)}")  # fmt: skip
    parser.add_argument("--base", type=Path, default=BASE, help="model folder before fine-tuning, for the variant base")


def measure(runner: Runner, variants: list[Variant], seeds: list[int], round_trip: Encode | None, command: str) -> dict:
    """Run what is missing, score everything, write results.json, results.md and results.png; returns the results."""
    names = [entity.id for entity in runner.entities]
    scored: dict[str, list[Scored]] = {}
    seconds, stages = 0.0, {"think": 0.0, "draw": 0.0}
    for variant in variants:
        for seed in seeds:
            chunk = runner.chunk(variant, seed)
            seconds += chunk.seconds
            for stage, value in chunk.stages.items():
                stages[stage] += value
            found = score_chunk(chunk, runner.tasks(variant, seed), runner.world, names)
            scored.setdefault(variant.name, []).extend(found)
    tasks = [task for seed in seeds for task in unseen_tasks(runner.entities, seed)]
    controls = pixel_controls(tasks, runner.world, names, round_trip)
    made = {
        "command": command, "entities": len(names), "seeds": seeds, "seconds": round(seconds, 1),
        "stages": {name: round(value, 1) for name, value in stages.items()}, "world": runner.world.fingerprint,
        "model": runner.model_key,
    }  # fmt: skip
    results = summarise(scored, controls, made)
    write_json(runner.out / "results.json", results)
    write_text(runner.out / "results.md", to_markdown(results))
    write_bytes(runner.out / "results.png", plot(results))
    return results


def command_line() -> str:
    """The command that was called, for the record."""
    return shlex.join(["python", "-m", "eval", *sys.argv[1:]])


def main(args: argparse.Namespace) -> None:
    """`python -m eval openmoji`."""
    for name in ("entities", "seeds"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: at least 1")
    variants = select(args.variants)
    world = World(args.world)

    from eval.openmoji.model import policy_of, round_trip_of  # torch: only when there is something to run

    runner = Runner(world, args.out, args.model, args.base, policy_of, args.entities)
    measure(runner, variants, list(range(args.seeds)), round_trip_of(args.model), command_line())
    print(f"results: {args.out / 'results.md'}, results.json, results.png")
