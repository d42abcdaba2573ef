"""`python -m eval demo`: world, trajectories, fine-tuning, agent, measures and the report, one after the other.

OUT/world/        the embedded world with the teacher's trajectories
OUT/training/     the run of `train.py +recipe=openmoji_cpu`, from the committed base
OUT/model/        what it exported
OUT/runs/         what the agent said and drew, with search and without
OUT/report.html, OUT/summary.json
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.openmoji.base import BASE, check
from eval.metrics import Figure
from eval.openmoji import store
from eval.openmoji.report import Drawn, Report, Shown, render
from eval.openmoji.results import score_chunk
from eval.openmoji.run import World
from eval.openmoji.tasks import chosen, unseen_tasks
from eval.stages import Stages, command, say, sources
from unify_agent.errors import UserError
from unify_agent.files import read_json, whole_folder, write_json, write_text
from unify_agent.training.metrics import read as read_metrics

ROOT = Path(__file__).resolve().parents[2]
TRAJECTORIES = 3000
ENTITIES = 24
VARIANTS = ("full", "closed_book", "shuffled")
LIBRARY = ("unify_agent/**/*.py", "unify_agent/**/*.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m eval demo`."""
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/demo"), help="folder of the demo (default outputs/demo)"
    )


def main(args: argparse.Namespace) -> None:
    """`python -m eval demo`."""
    if not (BASE / "unify_agent.json").is_file():
        raise UserError(
            f"{BASE}: the base model is not there; it belongs to the checkout (git status tells what is missing)"
        )
    run(args.out.resolve())


def run(out: Path) -> None:
    """All stages; what is done for the same inputs is not done again."""
    out.mkdir(parents=True, exist_ok=True)
    stages = Stages(out, total=5)
    world, training, model, runs = (out / name for name in ("world", "training", "model", "runs"))

    stages.run(
        "world",
        "build the embedded world and let the teacher work in it",
        [*sources(ROOT, "data/**/*.py", *LIBRARY), str(TRAJECTORIES)],
        world,
        lambda: command(world_command(world), ROOT),
        keep=True,
    )
    check(world, BASE)
    stages.run(
        "training",
        "fine-tune the base model on the teacher's trajectories",
        [*sources(ROOT, "train.py", "configs/**/*.yaml", "recipes/**/*.yaml"), *sorted(BASE.glob("*.*"))],
        training,
        lambda: command(train_command(training, world), ROOT),
    )
    stages.run("model", "export the model", [], model, lambda: _copy(training / "final", model))
    stages.run(
        "runs",
        f"ask about {ENTITIES} things that it has never seen, with and without search",
        sources(ROOT, "eval/**/*.py"),
        runs,
        lambda: command(eval_command(model, world, runs), ROOT),
    )
    seconds = sum(record.seconds for record in stages.records.values())
    peak = max(record.peak_gib for record in stages.records.values())
    say("[5/5] write the report")
    results = read_json(runs / "results.json", "results")
    facts = facts_of(results, {name: record.seconds for name, record in stages.records.items()}, peak, model)
    write_report(out, World(world), results, facts)
    write_json(out / "summary.json", summary(results, seconds, peak))
    say(f"report: {out / 'report.html'}")
    say(f"summary: {out / 'summary.json'}")


def world_command(world: Path) -> list[str | Path]:
    """The world and the teacher's trajectories, as a user would make them."""
    return ["-m", "data", "world", "openmoji", "--out", world, "--trajectories", str(TRAJECTORIES)]


def eval_command(model: Path, world: Path, runs: Path) -> list[str | Path]:
    """The evaluation as a user would call it."""
    places: list[str | Path] = ["--model", model, "--world", world, "--out", runs]
    return ["-m", "eval", "openmoji", *places, "--entities", str(ENTITIES), "--seeds", "1", "--variants", *VARIANTS]


def train_command(training: Path, world: Path) -> list[str]:
    """The fine-tuning as a user would call it, on two processes where there are two cores: one thread each is faster
    than two threads in one process, and the losses are the same."""
    source = f"[{{kind: trajectories, path: '{world / 'trajectories'}'}}]"
    run = ["train.py", "+recipe=openmoji_cpu", f"output={training}", f"model.path={BASE}", f"data.sources={source}"]
    if len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)) < 2:
        return run
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*ranks, *run, "parallel.shard=1", "parallel.threads=1", "data.workers=0"]  # a worker each costs 0.5 GB


def _copy(final: Path, model: Path) -> None:
    with whole_folder(model) as work:
        shutil.copytree(final, work, dirs_exist_ok=True)


def summary(results: Mapping[str, Any], seconds: float, peak: float) -> dict[str, Any]:
    """The demo in figures, each with its n and its 95 % interval."""
    full, closed = results["variants"]["full"], results["variants"]["closed_book"]
    return {
        "seconds": round(seconds, 1),
        "peak_rss_gib": round(peak, 2),
        "identity_top1": {"full": full["identity_top1"], "closed_book": closed["identity_top1"]},
        **{key: full[key] for key in ("tool_calls_valid", "query_exact", "recaption_complete", "scene_correct")},
    }


def facts_of(results: Mapping[str, Any], seconds: Mapping[str, float], peak: float, model: Path) -> dict[str, str]:
    """What was run, for the end of the report."""
    minutes = sum(seconds.values()) / 60
    parts = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items() if value >= 1)
    size = sum(path.stat().st_size for path in model.glob("*") if path.is_file()) / 2**20
    return {
        "Time": f"{minutes:.1f} minutes on {os.cpu_count()} CPU cores ({parts})",
        "Memory": f"at most {peak:.2f} GiB",
        "Model": f"{size:.1f} MiB on the disk, its picture encoder and tokenizer included",
        "Trained on": f"{TRAJECTORIES} trajectories of the scripted teacher, all about other things",
        "Asked about": f"{results['made']['entities']} things, half of the requests in English, half in Chinese",
    }


def write_report(out: Path, world: World, results: Mapping[str, Any], facts: Mapping[str, str]) -> None:
    """OUT/report.html from the runs in OUT/runs."""
    entities = chosen(world.entities, results["made"]["entities"])
    tasks, names = unseen_tasks(entities, 0), [entity.id for entity in entities]
    sides: dict[str, list[Drawn]] = {}
    for variant in ("full", "closed_book"):
        chunk = store.load(out / "runs", variant, 0)
        if chunk is None:
            raise UserError(f"{out / 'runs'}: no run of variant {variant} with seed 0")
        kept = store.Chunk(chunk.items[: len(tasks)], chunk.pictures[: len(tasks)], chunk.seconds)
        scored = score_chunk(kept, tasks, world, names)
        sides[variant] = [
            Drawn(item, picture, score.picture)
            for item, picture, score in zip(kept.items, kept.pictures, scored, strict=True)
            if score.picture is not None  # only common things, which are not asked for here, are not scored
        ]
    shown = [
        Shown(task, world.by_id[task.entity].name["en"], full, closed, world.compose(task.scene, task.entity))
        for task, full, closed in zip(tasks, sides["full"], sides["closed_book"], strict=True)
    ]
    figures = {
        variant: {key: Figure(**value) for key, value in values.items()}
        for variant, values in results["variants"].items()
    }
    controls = {
        "with references of another thing": figures["shuffled"]["identity_top1"],
        "average of all things it was trained on": Figure(**results["controls"]["identity_blind_average"]),
        "best possible with this picture encoder": Figure(**results["controls"]["vae_round_trip"]),
    }
    page = render(
        Report(
            shown=shown, full=figures["full"], closed=figures["closed_book"], world=world.folder, controls=controls,
            curves=read_metrics(out / "training" / "metrics.jsonl"), facts=facts, candidates=len(entities),
        )
    )  # fmt: skip
    write_text(out / "report.html", page)
