"""`python -m eval score`: judges a folder of pictures. The same command continues a run that was stopped.

Exit codes: 0 all items have a score, 3 some have none (the total is then an interval), 2 the command is wrong, 4 the
judge cannot be reached.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from data.progress import Progress
from eval.arguments import add_data, add_judge, add_price, endpoint_of, open_data, part_of, relative
from eval.benchmarks.base import Benchmark, Dataset, Item, sha256_of
from eval.check import probe, refuse, told
from eval.pictures import Found, Survey, survey
from eval.results import INCOMPLETE, JUDGE_DOWN, assemble, markdown, spent, write_report, write_usage
from eval.run import CALLS, CHECKLISTS, Run, digests_of
from eval.scoring import Result, score_items
from unify_agent.errors import UserError
from unify_agent.judging import CallLog, ChatClient, ChatError, Endpoint, PicturePolicy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_data(parser)
    add_judge(parser, required=True)
    parser.add_argument("--images", required=True, type=Path, metavar="DIR", help="the pictures to judge")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the run")
    parser.add_argument("--name", help="of the model, for tables (default: the folder of pictures)")
    parser.add_argument("--partial", action="store_true", help="score what can be; items without a picture are missing")
    parser.add_argument("--repeats", type=int, default=1, metavar="K", help="judge each item K times (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="sent with each call (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=8, help="calls at a time (default: %(default)s)")
    parser.add_argument("--rate", type=float, metavar="N", help="at most N calls a second")
    parser.add_argument("--attempts", type=int, default=5, help="of one call (default: %(default)s)")
    parser.add_argument("--picture-longest", type=int, default=1024, metavar="PIXELS",
                        help="pictures are sent no larger (default: %(default)s)")  # fmt: skip
    parser.add_argument("--picture-format", choices=("png", "jpeg"), default="png", help="(default: %(default)s)")
    add_price(parser)
    parser.add_argument("--checklists", type=Path, metavar="FILE",
                        help="picworld: check-lists shared by several runs (default: the run's own)")  # fmt: skip


def main(args: argparse.Namespace) -> int:
    """Checks, judges, writes and prints the report."""
    for name in ("repeats", "concurrency", "attempts", "picture_longest"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(args, name)}: at least 1")
    if args.rate is not None and not 0 < args.rate < math.inf:
        raise UserError(f"--rate {args.rate:g}: more than 0")
    endpoint = endpoint_of(args)
    bench, dataset, items = open_data(args)
    if args.checklists is not None and bench.name != "picworld":
        raise UserError(f"--checklists: {bench.name} has none")
    found = survey(bench, dataset, args.images, items)
    refuse(found, args.partial)
    facts = _facts(args, bench, dataset, items, endpoint)
    Run.refuse_another(args.out, facts)
    with CallLog(args.out / CALLS) as log:
        facts["judge"]["served"] = probe(endpoint, log)
        print("\n".join(told(bench, dataset, items)))
        run = Run.start(args.out, facts)
        run.write_items(items, _with_broken_references(found), digests_of(items))
        try:
            results = _judged(run, bench, endpoint, log, args)
        finally:  # also of a run that was given up: it can be looked at
            if args.checklists is not None:
                bench.copy_kept(run.folder / CHECKLISTS, items)
    return finish(run, bench, results, args.price)


def finish(run: Run, bench: Benchmark, results: Sequence[Result], price: Sequence[float] | None) -> int:
    """Writes results, report and usage, prints the table; returns the exit code."""
    report = assemble(run, bench, results)
    run.write_results(results)
    write_report(run, report, bench)
    usage = spent(run.folder / CALLS, price)
    write_usage(run, usage)
    print(markdown(report, bench))
    cost = f", cost {usage['cost']:.2f}" if "cost" in usage else ""
    print(f"{usage['attempts']} calls, {sum(usage['failures'].values())} of them failed, {usage['prompt_tokens']} + "
          f"{usage['completion_tokens']} tokens{cost}; {run.folder}")  # fmt: skip
    return 0 if report["complete"] else INCOMPLETE


def _facts(
    args: argparse.Namespace, bench: Benchmark, dataset: Dataset, items: Sequence[Item], endpoint: Endpoint
) -> dict[str, Any]:
    """What makes the run, all but the name under which the judge is served."""
    return {
        "name": args.name or args.images.resolve().name,
        "benchmark": bench.name,
        "options": bench.chosen,
        "template_sha256": bench.template_sha256,
        "data": {
            "variant": dataset.variant, "sha256": dataset.sha256, "all": len(dataset.items),
            "chosen": part_of(dataset, items), "chosen_sha256": sha256_of(items),
        },
        "images": relative(args.images, args.out),
        "judge": {
            "model": endpoint.model, "temperature": 0.0, "seed": args.seed,
            "extra": dict(endpoint.extra),
            "pictures": asdict(PicturePolicy(args.picture_longest, args.picture_format)),
        },
        "repeats": args.repeats,
    }  # fmt: skip


def _with_broken_references(found: Survey) -> Survey:
    """An item whose reference cannot be shown to the judge is missing, whatever its picture is."""
    broken = dict(found.references)
    return replace(found, found=tuple(
        Found(each.id, problem="reference", detail=broken[each.id]) if each.id in broken and not each.problem else each
        for each in found.found
    ))  # fmt: skip


def _judged(run: Run, bench: Benchmark, endpoint: Endpoint, log: CallLog, args: argparse.Namespace) -> list[Result]:
    bench.keep_in(args.checklists or run.folder / CHECKLISTS)
    items, found, digests = run.items()
    with (
        ChatClient(endpoint, args.concurrency, args.attempts, log, args.rate) as client,
        Progress("judging", len(items), "items") as progress,
    ):
        try:
            return score_items(
                bench, items, found, client, run.policy, digests, repeats=args.repeats, seed=args.seed,
                on_result=lambda result: progress.advance(),
            )  # fmt: skip
        except ChatError as error:
            raise UserError(f"the judge at {endpoint.base_url}: {error}; what was answered is kept, run the same "
                            "command again to continue", JUDGE_DOWN) from None  # fmt: skip
