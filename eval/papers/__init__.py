"""The papers' own tables, as printed: one CSV a table, one line a model. `report --paper` puts them beside a result.

factip_groups     papers/unify_agent.txt Table 1          kitten       Table 3        picworld   papers/picworld.txt
factip            Table 8                                 t2i_factual  Table 4                   Table 1
factip_ablation   Table 5                                 wise         Table 2
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Printed:
    """A row as printed: `values` by column, in the paper's units."""

    model: str
    family: str
    values: dict[str, float]


@cache
def printed(name: str) -> tuple[Printed, ...]:
    """The rows of a table, in the paper's order; cells that the paper leaves empty are absent."""
    with open(FOLDER / f"{name}.csv", encoding="utf-8", newline="") as file:
        return tuple(
            Printed(row.pop("model"), row.pop("family"), {key: float(cell) for key, cell in row.items() if cell})
            for row in csv.DictReader(file)
        )


_COLUMNS: dict[str, dict[str, tuple[str, str, str]]] = {
    "factip": {"overall": ("total", "Total", "score")},
    "wise": {"overall": ("total", "Total", "score")},
    "kitten": {
        "all": ("total", "Total", "score"), "text": ("total", "Total", "text"), "entity": ("total", "Total", "entity"),
    },
    "t2i_factual": {
        f"{level.lower()}_{column}": ("group", level, measure)
        for level in ("SKCM", "SKCI", "MKCC")
        for column, measure in (("concept", "concept"), ("instantiation", "instantiation"),
                                ("composition", "composition"), ("all", "score"))
    },
    "picworld": {"score": ("total", "Total", "score")},
}  # fmt: skip
_CATEGORY_NAMES = {
    "picworld": {
        "mechanics": "Mechanics & Dynamics", "light": "Light & Electromagnetism", "states": "Thermodynamics",
        "stem": "STEM", "culture": "Culture & History", "symbol": "Humanistic Symbols",
        "causality": "Causality & Temporality", "space": "Spatial", "reasoning": "Integrated Reasoning",
    },
    "wise": {name: name.capitalize() for name in ("cultural", "time", "space", "biology", "physics", "chemistry")},
}  # fmt: skip
_SCALE = {"t2i_factual": 0.01}
"""Printed in percent, computed within 0 and 1."""


def place_of(table: str, column: str) -> tuple[str, str, str]:
    """(level, name, measure) of a column in our reports."""
    if column in _COLUMNS[table]:
        return _COLUMNS[table][column]
    if table == "kitten":
        measure, domain = column.split("_")
        return "category", domain.capitalize(), measure
    return "category", _CATEGORY_NAMES.get(table, {}).get(column, column), "score"


def beside(table: str) -> list[tuple[str, dict[tuple[str, str, str], float]]]:
    """The rows of a paper's table in the places and units of our reports: (model, place -> value)."""
    scale = _SCALE.get(table, 1.0)
    rows = []
    for row in printed(table):
        values = {place_of(table, column): round(value * scale, 6) for column, value in row.values.items()}
        if table == "t2i_factual":
            values[("group", "SKCM", "score")] = values[("group", "SKCM", "concept")]
        rows.append((row.model, values))
    return rows
