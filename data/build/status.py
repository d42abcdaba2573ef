"""How a run stands: one file that is always whole, a live view on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from data.build.answers import Total
from data.build.journal import JOURNAL
from data.build.pipeline import Pipeline
from data.build.price import Job, estimate
from data.build.services import Services
from data.build.spec import Spec
from data.progress import EVERY
from unify_agent.errors import UserError
from unify_agent.files import read_json, write_json

STATUS = "status.json"
WRITTEN = 2.0
"""Seconds between two writings of the file."""
COLUMNS = {
    "calls": "calls", "cached": "known", "failures": "failed", "prompt": "tokens in", "completion": "tokens out",
    "pictures": "pictures",
}  # fmt: skip


def snapshot(pipeline: Pipeline, state: str, began: float) -> dict[str, Any]:
    """How the run stands, as the status file has it. Times are seconds since 1970; `eta` is in seconds."""
    spec, services, tally = pipeline.spec, pipeline.services, pipeline.tally
    entities, tasks = tally.left(spec.prompts.per_entity)
    rate = tally.rate()
    found = {
        "state": state, "why": pipeline.halted, "spec": spec.digest, "until": pipeline.until, "began": began,
        "updated": time.time(), **tally.record(), "reached": pipeline.reached,
        "left": {"entities": entities, "tasks": tasks}, "tasks_per_minute": round(60 * rate, 2),
        "eta": round(tasks / rate) if rate and state == "running" else None, "currency": spec.currency,
    }  # fmt: skip
    return found | taken(spec, services)


def taken(spec: Spec, services: Services) -> dict[str, Any]:
    """What the services took in all runs into this folder, what was known already in this one, and what is allowed."""
    cached, budgets = services.cached(), services.budgets()
    totals = services.totals()
    rows = {}
    for name, total in totals.items():
        bounds = {key: value for key, value in budgets[name].model_dump().items() if value is not None}
        rows[name] = asdict(total) | {"cached": cached.get(name, 0)} | ({"budget": bounds} if bounds else {})
    return {"services": rows, "money": sum(total.money for total in totals.values())}


class View:
    """`with View(pipeline, folder) as view:`; call it now and then. The file is written at the end, too."""

    def __init__(self, pipeline: Pipeline, folder: Path) -> None:
        self.pipeline, self.file = pipeline, folder / STATUS
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=2, transient=True, auto_refresh=False)

    def __enter__(self) -> View:
        self._began, self._written, self._told = time.time(), 0.0, time.monotonic()
        if self._console.is_terminal:
            self._live.start()
        self()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._written < WRITTEN:
            return
        self._written = now
        found = self.write("running")
        if self._console.is_terminal:
            self._live.update(table(found), refresh=True)
        elif now - self._told >= EVERY:
            self._told = now
            print(line(found), file=sys.stderr, flush=True)

    def write(self, state: str) -> dict[str, Any]:
        """Writes the file; returns what it says."""
        found = snapshot(self.pipeline, state, self._began)
        write_json(self.file, found)
        return found


def line(found: Mapping[str, Any]) -> str:
    """How a run stands, in one line."""
    tasks, entities, left = found["tasks"], found["entities"], found["left"]
    told = (
        f"build: {tasks['done']} done, {tasks['dropped']} dropped, {tasks['failed']} failed, {tasks['waiting']} waiting"
        f" ({tasks['held_out']} held out); entities {entities['done']}/{entities['listed']}, "
        f"{entities['dropped']} dropped; {left['tasks']} tasks left"
    )
    if found["eta"] is not None:
        told += f", {found['tasks_per_minute']:.1f} a minute, {duration(found['eta'])} to go"
    return told + (f"; {found['money']:.2f} {found['currency']}" if found["money"] else "")


def duration(seconds: float) -> str:
    """`3.2 h`, `12 min` or `40 s`."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def table(found: Mapping[str, Any]) -> Group:
    """The same for a terminal: what became of items, for which reasons, and what the services took."""
    parts: list[Any] = [Text(line(found))]
    for state in ("dropped", "failed", "waiting"):
        if found[state]:
            parts.append(Text(f"  {state}: " + ", ".join(f"{why} {number}" for why, number in found[state].items())))
    return Group(*parts, services_table(found["services"], found["currency"]))


def services_table(rows: Mapping[str, Mapping[str, Any]], currency: str) -> Table:
    """Calls, tokens and money by service."""
    made = Table("service", *COLUMNS.values(), currency, box=None)
    for column in made.columns[1:]:
        column.justify = "right"
    for name, row in rows.items():
        figures = [f"{row.get(key, 0):,}" for key in COLUMNS]
        bound = row.get("budget", {})
        allowed = f" of {bound['money']:g}" if "money" in bound else f" of {bound['calls']:,} calls" if bound else ""
        made.add_row(name, *figures, f"{row['money']:.2f}{allowed}")
    return made


def comparison(spec: Spec, services: Services, ended: int, entities: int) -> str:
    """What the build took, and how far the estimate was off; `ended`: tasks that came to an end."""
    took = sum(total.money for total in services.totals().values())
    calls = sum(total.calls for total in services.totals().values())
    guess: Mapping[str, Total] = estimate(spec, Job(entities, ended))
    guessed = sum(total.money for total in guess.values()), sum(total.calls for total in guess.values())
    told = f"took {calls:,} calls and {took:.2f} {spec.currency}"
    for what, was, thought in (("calls", calls, guessed[1]), ("money", took, guessed[0])):
        if thought:
            told += f"; {what} {was / thought:.2f} x the estimate"
    return told


def read_status(folder: Path) -> dict[str, Any]:
    """The status file. A run that was killed is told as such. Raises UserError where no run was."""
    found = read_json(folder / STATUS, "status of a build") if folder.is_dir() else None
    if not isinstance(found, dict):
        raise UserError(f"{folder / STATUS}: no such status of a build")
    if found.get("state") == "running" and not _is_written(folder / JOURNAL):
        found["state"], found["why"] = "killed", "run the same command again to continue"
    return found


def _is_written(journal: Path) -> bool:
    """Whether a process has the journal."""
    try:
        with open(journal, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
