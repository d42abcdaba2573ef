"""Several runs of one benchmark in one table, beside the papers' rows: as data, CSV and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eval.benchmarks.base import Benchmark
from eval.papers import beside
from eval.results import cells, digits_of, in_table, shown
from eval.totals import Total
from unify_agent.errors import UserError


@dataclass(frozen=True)
class Table:
    """`columns`: (level, name, measure); `rows`: (model, "run" or "paper", a total or a printed number a column)."""

    columns: tuple[tuple[str, str, str], ...]
    titles: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[Total | float | None, ...]], ...]
    digits: int


def table_of(bench: Benchmark, reports: Sequence[dict[str, Any]], paper: bool) -> Table:
    """Columns are the main measure's totals, the highest level first, then the other measures of that level.

    Raises UserError when the papers hold no row for the benchmark.
    """
    if paper and not bench.paper:
        raise UserError(f"--paper: the papers print no row for {bench.name}")
    found = [cells(report) for report in reports]
    order = ("total", "group", "category")
    places = sorted(dict.fromkeys(place for each in found for place in each), key=lambda place: order.index(place[0]))
    main, *others = [measure.name for measure in bench.measures]
    top = "total" if bench.overall else "group"
    columns = [(*place, main) for place in places]
    columns += [(*place, other) for place in places if place[0] == top for other in others
                if any(other in each.get(place, {}) for each in found)]  # fmt: skip
    titles = {measure.name: measure.title for measure in bench.measures}
    rows: list[tuple[str, str, tuple[Total | float | None, ...]]] = []
    for report, each in zip(reports, found, strict=True):
        rows.append((report["name"], "run", tuple(each.get((c[0], c[1]), {}).get(c[2]) for c in columns)))
    for model, values in beside(bench.paper) if paper else ():
        rows.append((model, "paper", tuple(values.get(c) for c in columns)))
    heads = tuple(c[1] if c[2] == main else f"{c[1]}: {titles[c[2]]}" for c in columns)
    return Table(tuple(columns), heads, tuple(rows), digits_of(bench))


def cell(value: Total | float | None, digits: int, with_interval: bool = False) -> str:
    """A number, an interval of what it could be, or a dash."""
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    return shown(value, digits, with_interval)


def as_data(table: Table) -> dict[str, Any]:
    """The table as JSON."""
    return {
        "columns": [{"level": level, "name": name, "measure": measure} for level, name, measure in table.columns],
        "rows": [
            {"model": model, "source": source,
             "values": [v.as_dict() if isinstance(v, Total) else v for v in values]}
            for model, source, values in table.rows
        ],
    }  # fmt: skip


def as_csv(table: Table) -> str:
    """One line a model. A total that is not known is an interval `low..high`."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["model", "source", *(f"{level}/{name}/{measure}" for level, name, measure in table.columns)])
    for model, source, values in table.rows:
        writer.writerow([model, source, *map(_plain, values)])
    return buffer.getvalue()


def _plain(value: Total | float | None) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value.low:.6g}..{value.high:.6g}" if value.value is None else f"{value.value:.6g}"


def markdown(table: Table) -> str:
    """Models as rows."""
    lines = ["| Model | " + " | ".join(map(in_table, table.titles)) + " |", "|---|" + "---:|" * len(table.titles)]
    for model, source, values in table.rows:
        name = model if source == "run" else f"{model} (paper)"
        lines.append(f"| {in_table(name)} | " + " | ".join(cell(value, table.digits) for value in values) + " |")
    return "\n".join([*lines, ""])
