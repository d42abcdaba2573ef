"""The report of a run as data: totals, coverage, reasons, and tables in JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.benchmarks.base import Benchmark
from eval.run import REPORT, USAGE, Run
from eval.scoring import Result, models_of
from eval.totals import Total, noise, totals
from unify_agent.files import digest, write_json, write_text

INCOMPLETE = 3
"""Exit code of a run with unresolved or missing items."""
JUDGE_DOWN = 4
"""Exit code of a run whose judge cannot be reached or lets nobody in."""


def assemble(run: Run, benchmark: Benchmark, results: Sequence[Result]) -> dict[str, Any]:
    """The report: a function of the run's items and of results alone."""
    items, _, digests = run.items()
    shown = digest(*(digests.get(path, "") for item in sorted(items, key=lambda i: i.id) for path in item.references))
    counts = Counter(result.status for result in results)
    made: dict[str, Any] = {
        "name": run.facts["name"],
        "benchmark": benchmark.name,
        "title": benchmark.title,
        "data": run.facts["data"] | {"references_sha256": shown},
        "judge": {**run.facts["judge"], "answered_as": models_of(results)},
        "options": run.facts["options"],
        "template_sha256": run.facts["template_sha256"],
        "repeats": run.facts["repeats"],
        "coverage": {status: counts[status] for status in ("ok", "unresolved", "missing")} | {"items": len(items)},
        "complete": counts["ok"] == len(items),
        "reasons": dict(sorted(Counter(f"{r.status}: {r.kind}" for r in results if r.status != "ok").items())),
        "arithmetic_differs": sum(bool(result.differs) for result in results),
        "flags": dict(sorted(Counter(flag for result in results for flag in result.flags).items())),
        "tokens": {
            "prompt": sum(r.tokens[0] for r in results),
            "completion": sum(r.tokens[1] for r in results),
        },
        "noise": noise(benchmark, items, results),
        "totals": [total.as_dict() for total in totals(benchmark, items, results)],
    }
    made["kept"] = benchmark.kept(items)
    both = [(r.scores["score"], r.scores["direct"]) for r in results if "direct" in r.scores]
    if both:
        made["spread"] = {"PW-Agent": spread([a for a, _ in both]), "direct judge": spread([b for _, b in both])}
    return made


def spread(values: Sequence[float], low: float = 0.0, high: float = 10.0) -> dict[str, Any]:
    """Mean, variance and a histogram of ten bins: what section 4.3.2 of PicWorld compares."""
    array = np.asarray(values, np.float64)
    counts, _ = np.histogram(array, bins=10, range=(low, high))
    return {
        "n": len(array),
        "mean": round(float(array.mean()), 6),
        "variance": round(float(array.var(ddof=1)), 6) if len(array) > 1 else None,
        "least": round(float(array.min()), 6),
        "most": round(float(array.max()), 6),
        "histogram": counts.tolist(),
    }


def write_report(run: Run, report: dict[str, Any], benchmark: Benchmark) -> None:
    """Writes report.json, report.md and report.csv."""
    write_json(run.folder / REPORT, report)
    write_text(run.folder / "report.md", markdown(report, benchmark))
    write_text(run.folder / "report.csv", as_csv(report))


def cells(report: dict[str, Any]) -> dict[tuple[str, str], dict[str, Total]]:
    """(level, name) -> measure -> total, in the report's order."""
    rows: dict[tuple[str, str], dict[str, Total]] = {}
    for each in report["totals"]:
        total = Total(**each)
        rows.setdefault((total.level, total.name), {})[total.measure] = total
    return rows


def shown(total: Total | None, digits: int, with_interval: bool = True) -> str:
    """A cell: the value, with its interval where wished, or what it lies between."""
    if total is None:
        return "–"
    if total.value is None:
        return f"{total.low:.{digits}f} … {total.high:.{digits}f}"
    if not with_interval or total.ci_low is None or total.ci_high is None:
        return f"{total.value:.{digits}f}"
    return f"{total.value:.{digits}f} [{total.ci_low:.{digits}f}, {total.ci_high:.{digits}f}]"


def in_table(text: str) -> str:
    """A name as a cell of a Markdown table."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def digits_of(benchmark: Benchmark) -> int:
    """Decimals that suit the scale: one to 100, two to 10, three to 1."""
    high = benchmark.measures[0].high
    return 1 if high > 10 else 2 if high > 1 else 3


def markdown(report: dict[str, Any], benchmark: Benchmark) -> str:
    """The table and what stands around it."""
    measures = [m for m in benchmark.measures if any(t["measure"] == m.name for t in report["totals"])]
    lines = [f"# {report['title']}: {report['name']}", "", *summary(report), ""]
    lines += [
        "| Level | | n | resolved | " + " | ".join(m.title for m in measures) + " |",
        "|---|---|---:|---:|" + "---:|" * len(measures),
    ]
    digits = digits_of(benchmark)
    for (level, name), row in cells(report).items():
        n, resolved = max(t.n for t in row.values()), max(t.resolved for t in row.values())
        values = " | ".join(shown(row.get(m.name), digits, m is measures[0]) for m in measures)
        lines.append(f"| {level} | {in_table(name)} | {n} | {resolved} | {values} |")
    lines += ["", "In brackets: 95 % bootstrap intervals over items. `low … high`: some items have no score; the total "
              "lies between all of them at their worst and all at their best.", ""]  # fmt: skip
    return "\n".join(lines)


def summary(report: dict[str, Any]) -> list[str]:
    """What a reader must know beside the numbers, a line each."""
    coverage, judge, data = report["coverage"], report["judge"], report["data"]
    part = "" if data["chosen"] is None else f", a part of {data['all']}: totals are of this part"
    lines = [
        f"Data: {data['variant']} ({data['sha256'][:12]}), {coverage['items']} items{part}.",
        f"Judge: {judge['served']} (asked as {judge['model']}), questions {report['template_sha256'][:12]}, "
        f"pictures {judge['pictures']['format']} up to {judge['pictures']['longest']}, seed {judge['seed']}.",
        f"{coverage['ok']} ok, {coverage['unresolved']} unresolved, {coverage['missing']} missing.",
    ]
    if len(judge["answered_as"]) > 1:
        lines.append(f"Several judges answered, their scores are mixed: {', '.join(judge['answered_as'])}.")
    if report["reasons"]:
        lines.append("Without a score: " + "; ".join(f"{kind} {n}" for kind, n in report["reasons"].items()) + ".")
    lines.append(f"The judge's own sums differ from ours in {report['arithmetic_differs']} items.")
    if report["flags"]:
        lines.append("Flags: " + "; ".join(f"{flag} {n}" for flag, n in report["flags"].items()) + ".")
    if report["noise"]:
        noise = report["noise"]
        lines.append(f"Judge's noise over {noise['repeats']} repeats: {noise['agreement']:.0%} of the items alike, "
                     f"mean deviation of an item {noise['item_sd']:.3f}.")  # fmt: skip
    if "spread" in report:
        told = (
            f"{who}: mean {s['mean']:.2f}, variance {_number(s['variance'])}" for who, s in report["spread"].items()
        )
        lines.append("Spread of scores: " + "; ".join(told) + ".")
    return [f"- {line}" for line in lines]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def as_csv(report: dict[str, Any]) -> str:
    """One line a total."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(report["totals"][0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(report["totals"])
    return buffer.getvalue()


def spent(calls: Path, price: Sequence[float] | None) -> dict[str, Any]:
    """What the log of calls says was spent: attempts, failures by kind, tokens, and cost at `price` a million."""
    attempts, failures, prompt, completion = 0, Counter[str](), 0, 0
    with open(calls, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break  # torn by a kill
            record = json.loads(line)
            attempts += 1
            if "error" in record:
                failures[record["error"]["kind"]] += 1
            reply = record.get("answer") or record.get("reply") or {}
            prompt += reply.get("prompt_tokens") or 0
            completion += reply.get("completion_tokens") or 0
    made: dict[str, Any] = {
        "attempts": attempts, "failures": dict(sorted(failures.items())), "prompt_tokens": prompt,
        "completion_tokens": completion,
    }  # fmt: skip
    if price is not None:
        made["cost"] = round((prompt * price[0] + completion * price[1]) / 1e6, 4)
    return made


def write_usage(run: Run, usage: dict[str, Any]) -> None:
    """Writes usage.json."""
    write_json(run.folder / USAGE, usage)
