"""`python -m eval compare RUN_A RUN_B`: what B does better or worse than A, and whether that is chance.

Only runs of the same items by the same judge are compared: same data, questions, options, served model, parameters and
frozen check-lists. Items without a score in either run are left out and counted.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.benchmarks.base import Benchmark, Item
from eval.results import digits_of, in_table
from eval.run import Run, differences
from eval.statistics import Paired, middle, paired
from eval.totals import weights
from unify_agent.errors import UserError
from unify_agent.files import write_json, write_text

PINNED = (
    "benchmark", "data.sha256", "data.references_sha256", "judge", "template_sha256", "options", "repeats", "kept",
)  # fmt: skip
"""What must agree in two reports for their scores to mean the same."""
MOST = 20
"""Items listed as flipped in each direction."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("a", type=Path, metavar="RUN_A", help="folder of a run")
    parser.add_argument("b", type=Path, metavar="RUN_B", help="folder of another run on the same items")
    parser.add_argument("--pass-at", type=float, metavar="SCORE",
                        help="an item passes from this score on, for flips (default: the middle)")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="write compare.json and compare.md there too")


def main(args: argparse.Namespace) -> None:
    """Prints the comparison."""
    if args.pass_at is not None and not math.isfinite(args.pass_at):
        raise UserError(f"--pass-at {args.pass_at:g}: a score is expected")
    made = compare(Run.open(args.a), Run.open(args.b), args.pass_at)
    text = markdown(made)
    print(text)
    if args.out is not None:
        write_json(args.out / "compare.json", made)
        write_text(args.out / "compare.md", text)


def same_judge(reports: Sequence[dict[str, Any]]) -> None:
    """Raises UserError naming the first thing in which reports differ that makes their scores incomparable."""
    first = reports[0]
    for other in reports[1:]:
        for key in differences(first, other):
            if any(key == pinned or key.startswith(f"{pinned}.") for pinned in PINNED):
                raise UserError(f"{first['name']} and {other['name']} cannot be compared: {key} differs; score both "
                                "with the same data, judge and options")  # fmt: skip


def compare(a: Run, b: Run, pass_at: float | None = None) -> dict[str, Any]:
    """The comparison as data. Raises UserError for runs that must not be compared."""
    reports = [a.report(), b.report()]
    same_judge(reports)
    bench = a.benchmark()
    measure = bench.measures[0]
    at = middle(measure) if pass_at is None else pass_at
    first, second = ({r.id: r.scores[measure.name] for r in run.results() if r.status == "ok"} for run in (a, b))
    items = a.items()[0]
    both = [item for item in items if item.id in first and item.id in second]
    if not both:
        raise UserError(f"{a.folder} and {b.folder} have no scored item in common")
    change = {item.id: second[item.id] - first[item.id] for item in both}
    ordered = sorted(change, key=lambda item_id: (change[item_id], item_id))
    return {
        "a": reports[0]["name"],
        "b": reports[1]["name"],
        "benchmark": bench.name,
        "title": bench.title,
        "measure": measure.title,
        "digits": digits_of(bench),
        "left_out": len({i.id for i in items} | {i.id for i in b.items()[0]}) - len(both),
        "pass_at": at,
        "rows": {name: p.as_dict() for name, p in _rows(bench, both, first, second, at).items()},
        "worse": [[i, round(change[i], 6)] for i in ordered[:MOST] if change[i] < 0],
        "better": [[i, round(change[i], 6)] for i in reversed(ordered[-MOST:]) if change[i] > 0],
        "gained": [i for i in change if first[i] < at <= second[i]],
        "lost": [i for i in change if second[i] < at <= first[i]],
    }


def _rows(
    bench: Benchmark, items: Sequence[Item], a: dict[str, float], b: dict[str, float], at: float
) -> dict[str, Paired]:
    parts: dict[str, list[Item]] = {}
    for item in items:
        parts.setdefault(item.category, []).append(item)
    rows = {name: paired(some, a, b, {i.id: 1 / len(some) for i in some}, False, at) for name, some in parts.items()}
    weighed = weights(items, bench.mean) if bench.overall else None
    if weighed is not None:
        rows["Mean of items" if bench.composed else "Total"] = paired(items, a, b, weighed, bench.mean != "items", at)
    return rows


def markdown(made: dict[str, Any]) -> str:
    """The comparison as a table and lists."""
    digits = made["digits"]
    lines = [
        f"# {made['title']}: {made['b']} against {made['a']}",
        "",
        f"{made['measure']}; an item passes from {made['pass_at']:g} on. "
        f"{made['left_out']} items without a score in either run are left out.",
        "",
        f"| | n | {in_table(made['a'])} | {in_table(made['b'])} | difference | p Wilcoxon "
        "| gained | lost | p McNemar |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in made["rows"].items():
        interval = "" if row["low"] is None else f" [{row['low']:+.{digits}f}, {row['high']:+.{digits}f}]"
        lines.append(
            f"| {in_table(name)} | {row['n']} | {row['a']:.{digits}f} | {row['b']:.{digits}f} | "
            f"{row['difference']:+.{digits}f}{interval} | {_p(row['wilcoxon'])} | {row['gained']} | {row['lost']} | "
            f"{_p(row['mcnemar'])} |"
        )
    for title, key in (("Most improved", "better"), ("Most worsened", "worse")):
        if made[key]:
            listed = ", ".join(f"{item_id} {change:+.{digits}f}" for item_id, change in made[key])
            lines += ["", f"{title}: {listed}."]
    for title, key in (("Pass now", "gained"), ("Fail now", "lost")):
        if made[key]:
            lines += [
                "",
                f"{title} ({len(made[key])}): {', '.join(made[key][:MOST])}{'…' if len(made[key]) > MOST else ''}.",
            ]
    return "\n".join([*lines, ""])


def _p(value: float | None) -> str:
    return "–" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"
