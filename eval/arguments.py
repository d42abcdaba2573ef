"""What the commands have in common: which data, which pictures, which judge."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.benchmarks import BENCHMARKS, benchmark
from eval.benchmarks.base import Benchmark, Dataset, Item
from eval.editions import named
from eval.run import chosen
from unify_agent.errors import UserError
from unify_agent.judging import Endpoint


def add_data(parser: argparse.ArgumentParser) -> None:
    """Benchmark and data set, or a part of it."""
    parser.add_argument("--bench", required=True, metavar="NAME", help=f"benchmark: {', '.join(BENCHMARKS)}")
    parser.add_argument("--data", required=True, type=Path, metavar="PATH",
                        help="the official files, or manifest.jsonl in the neutral schema")  # fmt: skip
    parser.add_argument(
        "--references", type=Path, metavar="DIR", help="true pictures, where they are not beside the data"
    )
    parser.add_argument("--editions", type=Path, metavar="FILE", help="table of hashes that the data must be one of")
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="of the benchmark (picworld)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only N items, spread over the categories")
    parser.add_argument("--ids", metavar="ID,ID", help="only these items")


def open_data(args: argparse.Namespace) -> tuple[Benchmark, Dataset, list[Item]]:
    """The benchmark, its data set and the items that are asked for. Raises UserError."""
    options: dict[str, str] = {}
    for each in args.option:
        key, sign, value = each.partition("=")
        if not sign:
            raise UserError(f"--option {each}: KEY=VALUE is expected")
        options[key] = value
    bench = benchmark(args.bench, options)
    dataset = bench.load(args.data, args.references)
    if args.editions is not None:
        dataset = named(dataset, args.editions)
    ids = args.ids.split(",") if args.ids is not None else None
    return bench, dataset, chosen(dataset.items, args.limit, ids)


def add_judge(parser: argparse.ArgumentParser, required: bool) -> None:
    """The endpoint that judges."""
    parser.add_argument("--judge-url", required=required, metavar="URL", help="of an OpenAI-compatible endpoint")
    parser.add_argument("--judge-model", required=required, metavar="NAME", help="model at that endpoint")
    parser.add_argument("--judge-key-env", metavar="VAR",
                        help="variable that holds the key (default: OPENAI_API_KEY, for openai.com only)")  # fmt: skip
    parser.add_argument("--judge-extra", metavar="JSON", help="merged into each call, such as '{\"top_p\": 1}'")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds of one attempt (default: %(default)s)")


def endpoint_of(args: argparse.Namespace) -> Endpoint:
    """The judge's endpoint. Raises UserError."""

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no number of JSON")

    try:
        extra: Any = json.loads(args.judge_extra or "{}", parse_constant=constant)
    except ValueError as error:
        raise UserError(f"--judge-extra: not JSON ({error})") from None
    if not isinstance(extra, dict):
        raise UserError("--judge-extra: an object is expected")
    if not 0 < args.timeout < math.inf:
        raise UserError(f"--timeout {args.timeout:g}: more than 0")
    return Endpoint.parse(
        args.judge_url, args.judge_model, key_env=args.judge_key_env, timeout=args.timeout, extra=extra
    )


def add_price(parser: argparse.ArgumentParser) -> None:
    """What tokens cost."""
    parser.add_argument("--price", type=price, nargs=2, metavar=("IN", "OUT"), help="of a million tokens, for the cost")


def price(text: str) -> float:
    """A price of a million tokens. Raises ArgumentTypeError, or ValueError for what is no number."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: a price is a number from 0 on")
    return value


def part_of(dataset: Dataset, items: Sequence[Item]) -> list[str] | None:
    """The ids that are judged, None when it is all of them."""
    return None if len(items) == len(dataset.items) else [item.id for item in items]


def relative(path: Path | None, folder: Path) -> str | None:
    """A path as it is written in the folder's files."""
    return None if path is None else Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
