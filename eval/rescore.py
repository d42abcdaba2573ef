"""`python -m eval rescore RUN`: the report once more from what the judge answered, without a network or a key.

Scores, totals and reports are computed anew; the files are the same byte for byte unless formulas have changed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from eval.arguments import add_price
from eval.run import CALLS, CHECKLISTS, Run
from eval.score import finish
from eval.scoring import score_items
from unify_agent.judging import CallLog, ChatClient, Endpoint

NOWHERE = "http://localhost/v1"
"""The endpoint of a replay: nobody is asked."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    add_price(parser)


def main(args: argparse.Namespace) -> int:
    """Replays, writes and prints the report."""
    run = Run.open(args.run)
    bench = run.benchmark()
    items, found, digests = run.items()
    bench.keep_in(run.folder / CHECKLISTS)
    judge = run.facts["judge"]
    client = ChatClient(
        Endpoint(NOWHERE, judge["model"], extra=judge["extra"]), log=CallLog(run.folder / CALLS, replay=True)
    )
    results = score_items(
        bench, items, found, client, run.policy, digests, repeats=run.facts["repeats"], seed=judge["seed"]
    )
    return finish(run, bench, results, args.price)
