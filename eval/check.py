"""`python -m eval check`: everything that can be wrong before a judge is asked, listed by id.

Exit codes: 0 all is well, 3 some items cannot be scored, 2 the data set or the command is wrong, 4 the judge is not
there or lets nobody in.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from eval.arguments import add_data, add_judge, endpoint_of, open_data
from eval.benchmarks.base import Benchmark, Dataset, Item
from eval.pictures import Survey, lines, survey
from eval.results import INCOMPLETE, JUDGE_DOWN
from unify_agent.errors import UserError
from unify_agent.judging import CallLog, ChatClient, ChatError, Endpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_data(parser)
    parser.add_argument(
        "--images", type=Path, metavar="DIR", help="the pictures to look at (default: the data set only)"
    )
    add_judge(parser, required=False)


def main(args: argparse.Namespace) -> int:
    """Checks data, pictures and judge; prints what it finds."""
    if (args.judge_url is None) != (args.judge_model is None):
        raise UserError("--judge-url and --judge-model go together")
    bench, dataset, items = open_data(args)
    print("\n".join(told(bench, dataset, items)))
    found = None
    if args.images is not None:
        found = survey(bench, dataset, args.images, items)
        good = len(items) - len({item_id for _, item_id, _ in found.problems})
        print(f"{good} of {len(items)} items have a picture that can be judged")
        for line in lines(found):
            print(line)
    if args.judge_url is not None:  # last, so that what is wrong with pictures is told too
        endpoint = endpoint_of(args)
        print(f"judge: {endpoint.base_url} serves {probe(endpoint)}")
    return INCOMPLETE if found is not None and found.problems else 0


def told(bench: Benchmark, dataset: Dataset, items: Sequence[Item]) -> list[str]:
    """What the data set is: edition, hash, items by category."""
    counts = Counter(item.category for item in items)
    return [
        f"{bench.title}: {dataset.variant}, {len(dataset.items)} items, sha256 {dataset.sha256}",
        *(f"note: {note}" for note in dataset.notes),
        f"{len(items)} items asked for: {', '.join(f'{name} {n}' for name, n in counts.items())}",
    ]


def probe(endpoint: Endpoint, log: CallLog | None = None) -> str:
    """The name under which the judge is served. What it takes to know it goes to `log`.

    Raises UserError with exit code 4.
    """
    try:
        with ChatClient(endpoint, log=log) as client:
            return client.probe()
    except ChatError as error:
        raise UserError(f"the judge at {endpoint.base_url}: {error}", JUDGE_DOWN) from None


def refuse(found: Survey, partial: bool) -> None:
    """Raises UserError when items cannot be scored and that was not allowed."""
    if found.problems and not partial:
        for line in lines(found):
            print(line, file=sys.stderr)
        count = len({item_id for _, item_id, _ in found.problems})
        raise UserError(f"{count} items cannot be scored; nothing was asked. Mend them, or give --partial")
