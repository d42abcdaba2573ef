"""Which edition a data set is, by its content: a table that the user keeps, `--editions FILE`.

    {"wise-legacy": "0c5e...", "wise-verified": ["71aa...", "b3d0..."]}

A name stands for one hash or several, each the SHA-256 that `check` prints. With a table a data set that is not in it
is refused, so that all who share the table score the same prompts. No table comes with the project, since none of the
official files does.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from eval.benchmarks.base import Dataset
from unify_agent.errors import UserError
from unify_agent.files import read_json


def named(dataset: Dataset, table: Path) -> Dataset:
    """The data set as the edition that the table calls its hash.

    Raises UserError when the table is none, or does not hold the hash.
    """
    editions: dict[str, str] = {}
    content = read_json(table, "table of editions")
    if not isinstance(content, dict):
        raise UserError(f"{table}: an object of hashes by the names of editions is expected")
    for name, hashes in content.items():
        for each in [hashes] if isinstance(hashes, str) else hashes if isinstance(hashes, list) else [None]:
            if not isinstance(each, str) or not re.fullmatch("[0-9a-f]{64}", each):
                raise UserError(f"{table}: {name}: a SHA-256 of 64 hexadecimal digits is expected, or a list of them")
            if editions.setdefault(each, name) != name:
                raise UserError(f"{table}: {each[:12]} is both {editions[each]} and {name}")
    if dataset.sha256 not in editions:
        raise UserError(f"these {len(dataset.items)} prompts ({dataset.variant}, sha256 {dataset.sha256}) are no "
                        f"edition of {table}, which knows {', '.join(content) or 'none'}")  # fmt: skip
    return replace(dataset, variant=editions[dataset.sha256])
