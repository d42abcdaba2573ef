"""The report over scored runs: one page, and the same figures as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eval.charts import lines, radar
from eval.world_agent.contracts import COMPONENT_NAMES, COMPONENTS
from eval.world_agent.deduce.readouts import READOUTS
from eval.world_agent.figures import Score, deduce_figures, maintain_figures
from unify_agent.errors import UserError
from unify_agent.files import read_json, write_json, write_text
from unify_agent.page import escape, page, table, tag


def read_scores(paths: Iterable[Path]) -> list[Score]:
    """The scores of runs. Raises UserError where one is missing, or where judges are mixed."""
    scores = [read_json(path / "score.json", "score (run `score` first)") for path in paths]
    judges = {str(each["judge"]) for each in scores if each["track"] == "maintain"}
    if len(judges) > 1:
        raise UserError(f"these runs have different judges, which are never mixed: {'; '.join(sorted(judges))}")
    return scores


def _number(value: Any, digits: int = 3) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}f}" if isinstance(value, float) else escape(value)


def _rows(records: Iterable[dict[str, Any]], columns: dict[str, int]) -> list[list[str]]:
    """Cells of a table; `columns`: key -> digits of its numbers."""
    return [[_number(record[key], digits) for key, digits in columns.items()] for record in records]


def _radar(player: str, values: dict[str, float | None]) -> str:
    """A player's components; the rim is twice the mean over players."""
    there = {name: value for name, value in values.items() if value is not None}
    best = sorted(there, key=lambda name: -there[name])[:3]
    axes = [f"{'★ ' if name in best else ''}{name} {value:.2f}" for name, value in there.items()]
    return radar(axes, {player: [min(value / 2, 1.0) for value in there.values()]}, size=370)


def _maintain_part(figures: dict[str, Any]) -> str:
    columns = {"player": 0, "tier": 0, "runs": 0, "completion": 3, "relation": 3, **dict.fromkeys(COMPONENTS, 3),
               "derailed": 0, "crashes": 0, "unresolved": 0, "tokens": 0}  # fmt: skip
    records = [
        {"player": player, "tier": tier, **each, **each["components"]}
        for player, own in figures["players"].items()
        for tier, each in own["tiers"].items()
    ]
    head = [COMPONENT_NAMES.get(key, key) for key in columns]
    charts = [
        lines(
            f"{name.capitalize()} over the run",
            {player: own["decline"][name] for player, own in figures["players"].items()},
            "share of the rounds",
        )
        for name in ("completion", "relation")
    ]
    names = ", ".join(f"{key} {name}" for key, name in COMPONENT_NAMES.items())
    legend = f"The second ring is the mean over players, the rim twice that. {names}; a star marks the three strongest."
    radars = [_radar(player, values) for player, values in figures["radar"].items()]
    tests = {"what": 0, "first": 0, "second": 0, "n": 0, "difference": 3, "p": 4}
    return "".join([
        tag("h2", "Maintenance"), table(head, _rows(records, columns), len(head) - 2),
        tag("h2", "Decline over rounds"), tag("div", "".join(charts), "charts"),
        tag("h2", "Components relative to the mean over players"), tag("p", escape(legend), "lead"),
        tag("div", "".join(radars), "charts"),
        tag("h2", "Paired contrasts (two-sided Wilcoxon)"),
        table(["measure", "first", "second", "pairs", "mean difference", "p"], _rows(figures["contrasts"], tests), 3),
    ])  # fmt: skip


def _deduce_part(figures: dict[str, Any]) -> str:
    parts = [tag("h2", "Deduction")]
    columns = {"player": 0, "mode": 0, "condition": 0, "episodes": 0, **dict.fromkeys((*READOUTS, "rule_set"), 3),
               "goal": 2, "upkeep": 2, "rejected": 1, "unanswered": 0}  # fmt: skip
    for case in sorted({row["case"] for row in figures["rows"]}):
        own = [row for row in figures["rows"] if row["case"] == case]
        parts += [tag("h3", escape(case)), table(list(columns), _rows(own, columns), len(columns) - 3)]
    costs = {"player": 0, "mode": 0, "tokens": 0, "readouts": 0, "tokens_a_readout": 1}
    head = ["player", "mode", "tokens", "readouts", "tokens a readout"]
    parts += [tag("h2", "Cost per readout"), table(head, _rows(figures["costs"], costs), 3)]
    tests = {"what": 0, "first": 0, "second": 0, "n": 0, "difference": 3, "p": 4, "r": 2, "r_p": 4}
    head = ["readout", "first", "second", "pairs", "mean difference", "p (Wilcoxon)", "Pearson r (families)", "p (r)"]
    parts += [tag("h2", "Players against each other"), table(head, _rows(figures["comparisons"], tests), 5)]
    return "".join(parts)


def write_report(paths: list[Path], out: Path) -> Path:
    """Write report.json and report.html into `out`; returns the page. Raises UserError."""
    scores = read_scores(paths)
    kept = [score for score in scores if score["track"] == "maintain"]
    predicted = [score for score in scores if score["track"] == "deduce"]
    figures: dict[str, Any] = {"runs": len(scores)}
    body = ""
    if kept:
        figures["maintain"] = maintain_figures(kept)
        body += _maintain_part(figures["maintain"])
    if predicted:
        figures["deduce"] = deduce_figures(predicted)
        body += _deduce_part(figures["deduce"])
    engines = sorted({f"{score['track']} {score['digests']['engine'][:12]}" for score in scores})
    judge = kept[0]["judge"]["judge"] if kept and kept[0]["judge"] else "none"
    about = f"<p>{len(scores)} runs. Judge: {escape(judge)}. Engines: {escape(', '.join(engines))}.</p>"
    write_json(out / "report.json", figures)
    write_text(out / "report.html", page("WorldAgent-Benchmark", about, body))
    return out / "report.html"
