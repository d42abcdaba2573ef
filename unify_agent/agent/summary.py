"""The summary of a run: one line an item, in the order of categories and ids, written whole each time.

    {"id": ..., "category": ..., "status": "ok" | "partial" | "failed", "reason": ..., "error": ..., ...}

Items that were written before the summary was (the process was killed in between) are added from their records.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unify_agent.agent.batch import Outcome
from unify_agent.agent.episode import STOPS
from unify_agent.agent.requests import REFUSED
from unify_agent.errors import UserError
from unify_agent.files import write_text
from unify_agent.page import badge, escape, page, table

STATUSES = ("ok", "partial", "failed")


class Summary:
    """`shard`: which part of the requests it is of, (number, of how many); parts have a summary each."""

    def __init__(self, out: Path, shard: tuple[int, int] | None = None):
        name = f"summary.{shard[0]}-of-{shard[1]}.jsonl" if shard else "summary.jsonl"
        self.path = out / name
        self._lines: dict[str, dict[str, Any]] = {}
        if not self.path.is_file():
            return
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                record = json.loads(line)
                if record["category"] != REFUSED:  # told anew by each run
                    self._lines[f"{record['category']}/{record['id']}"] = record
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{self.path}:{number}: not a summary line; remove the file to start anew") from None

    def put(self, outcome: Outcome) -> None:
        """Takes in how an item ended."""
        self._lines[outcome.key] = outcome.line()

    def status(self, key: str) -> str | None:
        """`ok`, `partial` or `failed`; None for an item that has not ended."""
        return self._lines[key]["status"] if key in self._lines else None

    def failed(self, key: str) -> bool:
        """Whether an item failed, or had to do without evidence because a search did not answer."""
        line = self._lines.get(key, {})
        return line.get("status") == "failed" or line.get("reason") == "search_failed"

    def recall(self, key: str, record: dict[str, Any], given_id: str) -> None:
        """Adds an item that was finished before, from its trajectory, when it is not there."""
        if self.status(key) in ("ok", "partial"):
            return
        category, _, item_id = key.rpartition("/")
        stop = record.get("stop", "")
        self.put(
            Outcome(
                item_id, category, STOPS.get(stop, "failed"), stop, record.get("error") or "",
                len(record.get("references", [])), len(record.get("turns", [])), given_id=given_id,
            )
        )

    def counts(self, keys: Iterable[str]) -> Counter[str]:
        """How many of these items ended how; those that have not ended count as failed."""
        return Counter(self.status(key) or "failed" for key in keys)

    def write(self) -> None:
        """Writes the lines."""
        lines = (json.dumps(self._lines[key], ensure_ascii=False) for key in sorted(self._lines))
        write_text(self.path, "".join(line + "\n" for line in lines))

    def write_page(self) -> None:
        """Writes `index.html` beside it: every item with a link to its page."""
        rows = []
        for key in sorted(self._lines):
            line = self._lines[key]
            link = f"{line['category']}/pages/{line['id']}.html"
            there = (self.path.parent / link).is_file()
            name = escape(line.get("given_id") or line["id"])
            rows.append([
                f'<a href="{escape(link)}">{name}</a>' if there else name,
                escape(line["category"]),
                badge(line["status"] == "ok", line["status"], line["status"]),
                escape(f"{line['reason']}{': ' + line['error'] if line['error'] else ''}"),
                str(line["references"]), str(line["turns"]),
            ])  # fmt: skip
        counts = self.counts(self._lines)
        told = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
        head = ["item", "category", "", "why", "references", "turns"]
        name = self.path.with_suffix(".html").name.replace("summary", "index")
        write_text(self.path.with_name(name), page("Results", f"<p>{escape(told)}</p>", table(head, rows, 2)))
