"""What a run was and how it went, as one page: RUN/summary.md, with losses.png beside it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from unify_agent import files
from unify_agent.training import metrics, plots
from unify_agent.training.config import Config
from unify_agent.training.console import duration, speed
from unify_agent.training.samples import PROMPTS

SHOWN = 3
"""Sets of samples on the page: the first, one from the middle, the last."""


def write(run: Path, config: Config, definition: str) -> None:
    """Write the page from the run's metrics and samples; `definition` says how speed is counted."""
    rows = metrics.read(run / "metrics.jsonl")
    if not rows:
        return
    plots.losses(rows, run / "losses.png")
    parts = [_facts(run, rows, config), "![losses](losses.png)", _losses(rows), _speed(rows, definition)]
    parts += [_skipped(rows), _samples(run)]
    files.write_text(run / "summary.md", "\n\n".join(part for part in parts if part) + "\n")


def _facts(run: Path, rows: Sequence[dict[str, Any]], config: Config) -> str:
    start = config.model.path if config.model.init == "pretrained" else "random weights"
    seconds = sum(row["seconds"] for row in rows)
    return (
        f"# {run.name}\n\n"
        f"{rows[-1]['step']} of {config.steps} steps (recipe {config.recipe or 'none'}, layout {config.layout}, seed "
        f"{config.seed}) from {start}: {sum(row['samples'] for row in rows):,} samples, "
        f"{sum(row['tokens'] for row in rows):,} tokens, {duration(seconds)} in steps."
    )


def _losses(rows: Sequence[dict[str, Any]]) -> str:
    """Means over the first and last tenth of the steps."""
    part = max(1, len(rows) // 10)
    keys = ["loss", "ce", "mse", "ce_mean", *_named(rows, "ce_role/"), *_named(rows, "mse_t/"), "grad_norm"]
    lines = [f"| mean of | first {part} steps | last {part} |", "|---|---:|---:|"]
    for key in keys:
        first, last = (_mean(some, key) for some in (rows[:part], rows[-part:]))
        lines.append(f"| {key} | {first} | {last} |")
    return "\n".join(lines)


def _speed(rows: Sequence[dict[str, Any]], definition: str) -> str:
    usual = {key: median(row[key] for row in rows if key in row) for key in ("seconds", "tokens_per_second", "fill")}
    waited = sum(row["loader_seconds"] for row in rows) / sum(row["seconds"] for row in rows)
    usual_flops = sorted(rows, key=lambda row: row["tflops"])[len(rows) // 2]
    return (
        f"A usual step (median): {usual['seconds']:.2f} s, {usual['tokens_per_second']:,.0f} tokens/s, packs "
        f"{usual['fill']:.0%} full; {waited:.1%} of the time went into waiting for data. "
        f"Memory of the fullest rank: at most {max(row['memory_gib'] for row in rows):.1f} GiB. "
        f"{speed(usual_flops)}: {definition}"
    )


def _skipped(rows: Sequence[dict[str, Any]]) -> str:
    counts = {key.partition("/")[2]: sum(row.get(key, 0) for row in rows) for key in _named(rows, "skipped/")}
    if not counts:
        return "No sample was skipped while training."
    return "Samples skipped while training: " + ", ".join(f"{count} {reason}" for reason, count in counts.items()) + "."


def _samples(run: Path) -> str:
    folders = sorted((run / "samples").glob("step_*"))
    if not folders:
        return ""
    shown = [folders[n * (len(folders) - 1) // (SHOWN - 1)] for n in range(SHOWN)] if len(folders) > SHOWN else folders
    lines = ["| prompt | " + " | ".join(folder.name.replace("_", " ") for folder in shown) + " |"]
    lines.append("|---" * (len(shown) + 1) + "|")
    for number, prompt in enumerate(files.read_json(shown[-1] / PROMPTS), 1):
        pictures = (f"![](samples/{folder.name}/{number}.png)" for folder in shown)
        lines.append(f"| {_cell(prompt)} | {' | '.join(pictures)} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """One line that is no markup."""
    return html.escape(" ".join(text.split())).replace("|", "&#124;")


def _named(rows: Sequence[dict[str, Any]], prefix: str) -> list[str]:
    return sorted({key for row in rows for key in row if key.startswith(prefix)})


def _mean(rows: Sequence[dict[str, Any]], key: str) -> str:
    values = [row[key] for row in rows if key in row]
    return f"{sum(values) / len(values):.4g}" if values else ""
