"""`python -m eval report RUN [RUN...]`: one static page, and tables as JSON, CSV and Markdown.

Several runs stand side by side when one judge scored them all on the same data.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from eval.compare import same_judge
from eval.run import Run
from eval.tables import as_csv, as_data, markdown, table_of
from eval.viewer import write_page
from unify_agent.errors import UserError
from unify_agent.files import write_json, write_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the page (default: RUN/page of the first)")
    parser.add_argument("--paper", action="store_true", help="put the papers' rows beside the results")


def main(args: argparse.Namespace) -> None:
    """Writes the page and says where it is."""
    out = args.out or args.runs[0] / "page"
    index = write([Run.open(path) for path in args.runs], out, args.paper)
    print((out / "table.md").read_text(encoding="utf-8"))
    print(index)


def write(runs: Sequence[Run], out: Path, paper: bool) -> Path:
    """Writes tables and page of the runs to `out`; returns the path of index.html.

    Raises UserError for runs that may not stand side by side.
    """
    reports = [run.report() for run in runs]
    names = [report["name"] for report in reports]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"two runs are called {twice!r}; give one of them another --name when it is scored")
    same_judge(reports)
    bench = runs[0].benchmark()
    table = table_of(bench, reports, paper)
    write_json(out / "table.json", as_data(table))
    write_text(out / "table.csv", as_csv(table))
    write_text(out / "table.md", markdown(table))
    return write_page(out, bench, runs, reports, table)
