"""`python -m unify_agent export RUN OUT`: a run's newest checkpoint becomes a model folder in BAGEL's layout."""

from __future__ import annotations

import argparse
from pathlib import Path

from unify_agent.errors import UserError
from unify_agent.training.compose import read_config
from unify_agent.training.config import DTYPES, WEIGHTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is not said is as the run's configuration has it."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder (config.yaml, checkpoints/)")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to write; an existing one must be a model's")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--weights", choices=WEIGHTS, help="their moving average, or the weights themselves")
    which.add_argument("--ema", dest="weights", action="store_const", const="ema", help="short for --weights ema")
    parser.add_argument("--shard-gib", type=float, metavar="N", help="largest file of weights; more become several")


def main(args: argparse.Namespace) -> int:
    """Runs the command."""
    run, out = args.run, args.out
    if not run.is_dir():
        raise UserError(f"{run}: no such run folder")
    if args.shard_gib is not None and args.shard_gib <= 0:
        raise UserError(f"--shard-gib {args.shard_gib}: must be above 0")
    if out.exists() and not (out / "llm_config.json").is_file():
        raise UserError(f"{out}: exists and is no model folder; name another, or remove it")
    config = read_config(run / "config.yaml")
    if config.task != "sft":
        raise UserError(
            f"{run}: trained task={config.task}, whose result is in the run folder already; nothing to export"
        )
    for key in ("dtype", "weights", "shard_gib"):
        if getattr(args, key) is not None:
            setattr(config.export, key, getattr(args, key))

    from unify_agent.training.assembly import start  # torch: only once the arguments are right
    from unify_agent.training.export import export_run

    export_run(run, out, config, start(config))
    print(f"{config.export.weights} weights in {config.export.dtype}: {out}")
    return 0
