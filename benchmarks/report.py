"""How a benchmark prints its rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """One JSON list, or a line of names and values for each row."""
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
