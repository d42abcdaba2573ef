"""`python -m eval papers`: the papers' tables with our arithmetic over them: what follows from the stated formulas.

Each claim recomputes a printed column from the other columns of its row. A row follows when the difference is no
larger than what rounding of the inputs and of the printed figure can make.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from eval.benchmarks.factip import FULL, GROUPS, WEIGHTS
from eval.benchmarks.wise import Wise
from eval.papers import Printed, printed
from unify_agent.files import write_text

REORDERED = ("Seeddream-4", "Seeddream-4.5", "Seeddream-5", "Nano Banana", "Nano Banana-Pro", "Nano Banana-2")
"""Rows of Table 1 whose cells stand category by category under a header that goes measure by measure."""
OURS = "Unify-Agent (Ours)"
PICWORLD_COUNTS = {
    "mechanics": 150, "light": 200, "states": 100, "stem": 100, "culture": 50, "symbol": 50, "causality": 150,
    "space": 100, "reasoning": 200,
}  # fmt: skip
"""Prompts of each category that make the printed scores means over prompts; the figure that states them is no text."""
PICWORLD_DOMAINS = {"Physical World": 550, "Abstract Knowledge": 200, "Logic & Commonsense": 350}
PAGE = Path(__file__).with_name("page.md")
"""The page's text, with places for the figures."""
_MEASURES, _GROUPS = ("clarity", "content", "aesthetics", "relevance"), ("character", "object", "scene")


@dataclass(frozen=True)
class Row:
    """One recomputed figure."""

    model: str
    stated: float
    computed: float
    allowed: float

    @property
    def follows(self) -> bool:
        return abs(self.stated - self.computed) <= self.allowed + 1e-9


@dataclass(frozen=True)
class Claim:
    """A column of a table against a formula."""

    title: str
    formula: str
    rows: tuple[Row, ...]
    digits: int

    @property
    def broken(self) -> list[Row]:
        return [row for row in self.rows if not row.follows]


def claim(
    title: str, formula: str, rows: Sequence[Printed], column: str, compute: Callable[[Mapping[str, float]], float],
    step: float,
) -> Claim:  # fmt: skip
    """A claim whose formula may be off by `step`, what rounding of inputs and result can make."""
    made = tuple(Row(row.model, row.values[column], compute(row.values), step) for row in rows)
    return Claim(title, formula, made, 1 if max(abs(row.stated) for row in made) > 10 else 2)


def group_scores(row: Printed, category_major: bool = False) -> dict[str, float]:
    """The score of each group in Table 1 (equation 24). `category_major`: the cells stand group by group."""
    cells = [row.values[f"{m}_{g}"] for m in _MEASURES for g in _GROUPS]
    shape = np.array(cells).reshape((3, 4) if category_major else (4, 3))
    weight = np.array([WEIGHTS[m] for m in _MEASURES])
    scores = shape @ weight if category_major else weight @ shape
    return dict(zip(_GROUPS, map(float, scores), strict=True))


def fitted(rows: Sequence[Sequence[float]], totals: Sequence[float]) -> np.ndarray:
    """Non-negative weights with sum 1 under which the rows' columns best give the totals (least squares)."""
    matrix = np.array(rows)
    weight, _ = nnls(np.vstack([matrix, np.full(matrix.shape[1], 1e4)]), np.append(totals, 1e4))
    return weight / weight.sum()


def table_1() -> list[Claim]:
    """Overall from the groups: by the full benchmark's composition, and by the one that the rows agree on."""
    rows = printed("factip_groups")
    share = {group.lower(): sum(members.values()) / FULL for group, members in GROUPS.items()}
    plain = [row for row in rows if row.model not in (*REORDERED, OURS)]
    weight = fitted([list(group_scores(row).values()) for row in plain], [row.values["overall"] for row in plain])

    def made(title: str, formula: str, by: Sequence[float], read: Callable[[Printed], bool]) -> Claim:
        computed = (
            Row(row.model, row.values["overall"], float(np.dot(list(group_scores(row, read(row)).values()), by)), 0.1)
            for row in rows
        )
        return Claim(title, formula, tuple(computed), 1)

    said = ", ".join(f"{100 * w:.1f} %" for w in weight)
    return [
        made("Table 1, overall, as the text states it", "groups weighed 1500 : 615 : 347, as in Table 7",
             list(share.values()), lambda row: False),
        made("Table 1, overall, weights that fit", f"weights fitted to the 21 plain rows ({said})",
             list(weight), lambda row: False),
        made("Table 1, overall, six rows read group by group", f"the same weights; the cells of {', '.join(REORDERED)} "
             "in the order Character, Object, Scene", list(weight), lambda row: row.model in REORDERED),
    ]  # fmt: skip


def groups_within() -> Claim:
    """The groups of Table 1, each row read in its order, against the categories of Table 8 that they are means of."""
    rows = {row.model: row.values for row in printed("factip")}
    made = []
    for row in printed("factip_groups"):
        for group, score in group_scores(row, row.model in REORDERED).items():
            parts = [rows[row.model][category] for category in GROUPS[group.capitalize()]]
            made.append(Row(f"{row.model}, {group}", score, min(max(score, min(parts)), max(parts)), 0.1))
    formula = "a group's score lies between the least and the greatest of its categories in Table 8"
    return Claim("Table 1, groups against Table 8", formula, tuple(made), 1)


def table_8() -> list[Claim]:
    """Overall from the twelve categories."""
    rows = printed("factip")
    columns = [column for column in rows[0].values if column != "overall"]
    counts = {name: n for members in GROUPS.values() for name, n in members.items()}
    weight = fitted([[row.values[c] for c in columns] for row in rows], [row.values["overall"] for row in rows])
    fit = dict(zip(columns, map(float, weight), strict=True))
    return [
        claim("Table 8, overall, as the text states it", "categories weighed by the counts of Table 7", rows, "overall",
              lambda v: sum(v[c] * counts[c] for c in columns) / FULL, 0.1),
        claim("Table 8, overall, weights that fit", "fitted shares of 500: "
              + ", ".join(f"{c} {500 * fit[c]:.0f}" for c in columns), rows, "overall",
              lambda v: sum(v[c] * fit[c] for c in columns), 0.1),
    ]  # fmt: skip


def table_5() -> list[Claim]:
    """The ablation's overall and its changes."""
    rows = printed("factip_ablation")
    base = rows[0].values
    formula = "0.05 clarity + 0.10 content + 0.10 aesthetics + 0.75 relevance of the row"
    claims = [claim("Table 5, overall", formula, rows, "overall",
                    lambda v: sum(WEIGHTS[m] * v[m] for m in _MEASURES), 0.1)]  # fmt: skip

    def change(measure: str) -> Callable[[Mapping[str, float]], float]:
        return lambda v: v[measure] - base[measure]

    for measure in (*_MEASURES, "overall"):
        claims.append(claim(f"Table 5, change of {measure}", "row less baseline", rows[1:], f"{measure}_change",
                            change(measure), 0.0))  # fmt: skip
    return claims


def table_5_columns() -> Claim:
    """Baseline and full agent of Table 5 against plain means of their rows in Table 1."""
    rows = {row.model: row.values for row in printed("factip_groups")}
    ablation = printed("factip_ablation")
    made = [
        Row(f"{name}, {measure}", short.values[measure], sum(rows[name][f"{measure}_{g}"] for g in _GROUPS) / 3, 0.1)
        for name, short in (("Bagel", ablation[0]), (OURS, ablation[-1]))
        for measure in _MEASURES
    ]
    return Claim("Table 5, columns", "plain mean of the three groups in Table 1", tuple(made), 1)


def table_2() -> list[Claim]:
    """WISE: the benchmark's weights, and the plain mean."""
    rows, weight = printed("wise"), {name.lower(): w for name, w in Wise.mean.items()}  # type: ignore[union-attr]
    return [
        claim("Table 2, overall, weighted", "0.4, 0.167, 0.133, 0.1, 0.1, 0.1", rows, "overall",
              lambda v: sum(w * v[name] for name, w in weight.items()), 0.01),
        claim("Table 2, overall, unweighted", "plain mean of the six", rows, "overall",
              lambda v: sum(v[name] for name in weight) / 6, 0.01),
    ]  # fmt: skip


def table_3() -> list[Claim]:
    """KiTTEN: plain means over domains, and the mean of the two."""
    rows = printed("kitten")
    claims = []

    def mean(measure: str) -> Callable[[Mapping[str, float]], float]:
        columns = [c for c in rows[0].values if c.startswith(f"{measure}_")]
        return lambda v: sum(v[c] for c in columns) / 8

    for measure in ("text", "entity"):
        title = f"Table 3, {measure}"
        claims.append(claim(title, "plain mean of the eight domains", rows, measure, mean(measure), 0.01))
    claims.append(claim("Table 3, all", "mean of text and entity", rows, "all",
                        lambda v: (v["text"] + v["entity"]) / 2, 0.01))  # fmt: skip
    return claims


def table_4() -> list[Claim]:
    """T2I-FactualBench: means of two and of three."""
    rows = printed("t2i_factual")
    return [
        claim("Table 4, SKCI", "mean of concept and instantiation", rows, "skci_all",
              lambda v: (v["skci_concept"] + v["skci_instantiation"]) / 2, 0.1),
        claim("Table 4, MKCC", "mean of concept, instantiation and composition", rows, "mkcc_all",
              lambda v: (v["mkcc_concept"] + v["mkcc_instantiation"] + v["mkcc_composition"]) / 3, 0.1),
    ]  # fmt: skip


def picworld() -> list[Claim]:
    """PicWorld: the mean of domains by their stated sizes, and the mean over prompts that fits."""
    rows = printed("picworld")
    columns = list(PICWORLD_COUNTS)
    sizes = [n / 3 for n in PICWORLD_DOMAINS.values() for _ in range(3)]

    def by(counts: Sequence[float]) -> Callable[[Mapping[str, float]], float]:
        return lambda v: sum(v[c] * n for c, n in zip(columns, counts, strict=True)) / sum(counts)

    said = ", ".join(f"{c} {n}" for c, n in PICWORLD_COUNTS.items())
    return [
        claim("PicWorld Table 1, score, as the text states it", "domains weighed 550 : 200 : 350, categories alike",
              rows, "score", by(sizes), 0.01),
        claim("PicWorld Table 1, score, counts that fit", f"mean over prompts: {said}", rows, "score",
              by(list(PICWORLD_COUNTS.values())), 0.005),
    ]  # fmt: skip


def scenes() -> tuple[float, float, float]:
    """Unify-Agent's Scene score by Table 1, and the two of Table 8 that it must lie between."""
    ours = next(row for row in printed("factip_groups") if row.model == OURS)
    parts = next(row for row in printed("factip") if row.model == OURS).values
    return group_scores(ours)["scene"], parts["landmark"], parts["festival"]


def claims() -> list[Claim]:
    """All claims, table by table."""
    return [
        *table_1(), groups_within(), *table_8(), *table_2(), *table_3(), *table_4(), *table_5(), table_5_columns(),
        *picworld(),
    ]  # fmt: skip


def page() -> str:
    """The page of docs/ as Markdown."""
    made = claims()
    scene, landmark, festival = scenes()
    rows = [
        f"| {each.title} | {each.formula} | {len(each.rows) - len(each.broken)} | {len(each.broken)} |" for each in made
    ]
    broken = [
        f"| {each.title} | {row.model} | {row.stated:.{each.digits}f} | {row.computed:.{each.digits + 1}f} |"
        for each in made
        if len(each.broken) <= len(each.rows) / 2
        for row in each.broken
    ]
    return PAGE.read_text(encoding="utf-8").format(
        rows="\n".join(rows), broken="\n".join(broken), reordered=", ".join(REORDERED), scene=f"{scene:.1f}",
        table_1=printed("factip_groups")[-1].values["overall"], table_8=printed("factip")[-1].values["overall"],
        landmark=landmark, festival=festival,
    )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the page there (default: print it)")


def main(args: argparse.Namespace) -> None:
    """Prints or writes the page."""
    if args.out is None:
        print(page(), end="")
    else:
        write_text(args.out, page())
