"""The figures of the report, from scores alone. A mean over runs of which one is not complete is null."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from eval.world_agent.contracts import COMPONENTS
from eval.world_agent.deduce.readouts import READOUTS
from eval.world_agent.engine import TIERS
from eval.world_agent.statistics import average, paired, pearson

Score = dict[str, Any]
Cell = tuple[str, ...]
TENTHS = 10
COMPARED = (("m1", "segment"), ("m2", "interval"), ("m2", "counterfactual"))


def cells(scores: Iterable[Score], value: Callable[[Score], str | None], *keys: str) -> dict[Cell, float]:
    """A value of each run under the keys that tell it from the player's other runs; runs without one are left out."""
    found = ((tuple(str(score[key]) for key in keys), value(score)) for score in scores)
    return {cell: float(each) for cell, each in found if each is not None}


def total_of(name: str) -> Callable[[Score], str | None]:
    """Reads a total of a maintenance run."""
    return lambda score: score["total"][name] if score["total"] else None


def readout_of(name: str) -> Callable[[Score], str | None]:
    """Reads the F1 of a readout."""
    return lambda score: score["readouts"].get(name, {}).get("f1")


def _tokens(scores: Iterable[Score]) -> int:
    return sum(score["cost"]["tokens_in"] + score["cost"]["tokens_out"] for score in scores)


def _tier(runs: Sequence[Score]) -> dict[str, Any]:
    """A player's runs in one tier."""
    unresolved = sum(run["total"] is None for run in runs)

    def over(value: Callable[[Score], str | None]) -> float | None:
        return None if unresolved else average([float(found) for run in runs if (found := value(run)) is not None])

    def share(name: str) -> Callable[[Score], str | None]:
        return lambda run: run["total"]["components"][name]["share"]

    return {
        "runs": len(runs), "unresolved": unresolved, "derailed": sum(len(run["derailed"]) for run in runs),
        "crashes": sum(run["crash"] for run in runs), "completion": over(total_of("completion")),
        "relation": over(total_of("relation")), "components": {name: over(share(name)) for name in COMPONENTS},
        "tokens": _tokens(runs),
    }  # fmt: skip


def decline(scores: Sequence[Score]) -> dict[str, list[tuple[float, float]]]:
    """Mean completion and relation over the tenths of a run: (middle of the tenth, mean)."""
    result = {}
    for name in ("completion", "relation"):
        sums: dict[int, list[float]] = {}
        for score in scores:
            for number, round_ in enumerate(score["rounds"]):
                if round_[name] is not None:
                    sums.setdefault(number * TENTHS // len(score["rounds"]), []).append(float(round_[name]))
        result[name] = [((10 * tenth + 5) / 100, sum(v) / len(v)) for tenth, v in sorted(sums.items())]
    return result


def maintain_figures(scores: Sequence[Score]) -> dict[str, Any]:
    """Everything that the maintenance part shows."""
    players = sorted({score["player"] for score in scores})
    figures: dict[str, Any] = {}
    for player in players:
        own = [score for score in scores if score["player"] == player]
        tiers = {tier: [score for score in own if score["tier"] == tier] for tier in TIERS}
        figures[player] = {
            "tiers": {tier: _tier(runs) for tier, runs in tiers.items() if runs}, "decline": decline(own),
        }  # fmt: skip
    return {"players": figures, "contrasts": _contrasts(scores, players), "radar": _radars(figures)}


def _contrasts(scores: Sequence[Score], players: Sequence[str]) -> list[dict[str, Any]]:
    """Paired tests: two players on the same runs, and two tiers of one player on the same cases."""
    found = []
    for name in ("completion", "relation"):
        value = total_of(name)
        sides = {p: cells((s for s in scores if s["player"] == p), value, "case", "language", "tier") for p in players}
        for first, second in itertools.combinations(players, 2):
            if result := paired(sides[first], sides[second]):
                found.append({"what": name, "first": first, "second": second, **result._asdict()})
        for player, (one, two) in itertools.product(players, itertools.pairwise(TIERS)):
            own = [s for s in scores if s["player"] == player]
            first_tier, second_tier = (
                cells((s for s in own if s["tier"] == tier), value, "case", "language") for tier in (one, two)
            )
            if result := paired(first_tier, second_tier):
                names = {"first": f"{player}, {one}", "second": f"{player}, {two}"}
                found.append({"what": name, **names, **result._asdict()})
    return found


def _radars(figures: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Each player's share of a component over its tiers, relative to the mean over players."""
    result: dict[str, dict[str, float | None]] = {player: {} for player in figures}
    for name in COMPONENTS:
        own = {}
        for player, each in figures.items():
            shares = (tier["components"][name] for tier in each["tiers"].values())
            own[player] = average([share for share in shares if share is not None])
        middle = average([value for value in own.values() if value is not None])
        for player, value in own.items():
            result[player][name] = value / middle if value is not None and middle else None
    return result


def _row(own: Sequence[Score]) -> dict[str, Any]:
    """A player's folds of one family, mode and condition."""
    row: dict[str, Any] = {"episodes": len(own)}
    for name in READOUTS:
        asked = [score["readouts"][name]["f1"] for score in own if name in score["readouts"]]
        row[name] = None if None in asked else average([float(value) for value in asked])
    sets = [score["readouts"]["rules"]["path_f1"] for score in own]
    row["rule_set"] = None if row["rules"] is None else average([float(value) for value in sets])
    acts = own[0]["mode"] == "m2"
    kept = [float(value) for score in own for value in score["outcome"]["upkeep"].values()]
    row["goal"] = average([float(score["outcome"]["goal"]) for score in own]) if acts else None
    row["upkeep"] = average(kept) if acts else None
    row["rejected"] = average([float(score["rejected"]) for score in own])
    row["unanswered"] = sum(score["unanswered"] for score in own)
    return row


def deduce_figures(scores: Sequence[Score]) -> dict[str, Any]:
    """Everything that the deduction part shows."""
    groups: dict[Cell, list[Score]] = {}
    costs: dict[Cell, list[Score]] = {}
    for score in scores:
        case = score["case"] if score["language"] == "en" else f"{score['case']}.{score['language']}"
        groups.setdefault((case, score["player"], score["mode"], score["condition"]), []).append(score)
        costs.setdefault((score["player"], score["mode"]), []).append(score)
    rows = [
        dict(zip(("case", "player", "mode", "condition"), key, strict=True)) | _row(own)
        for key, own in sorted(groups.items())
    ]
    spent = []
    for (player, mode), own in sorted(costs.items()):
        answered = sum(each["answered"] for score in own for each in score["readouts"].values())
        cost: dict[str, Any] = {"player": player, "mode": mode, "tokens": _tokens(own), "readouts": answered}
        spent.append(cost | {"tokens_a_readout": cost["tokens"] / answered if answered else None})
    return {"rows": rows, "costs": spent, "comparisons": _comparisons(scores)}


def _comparisons(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Between two players: the paired test over families and folds, and Pearson's r over families."""
    found = []
    for (mode, readout), condition in itertools.product(COMPARED, ("open", "naming")):
        part = [s for s in scores if (s["mode"], s["condition"]) == (mode, condition)]
        for names in itertools.combinations(sorted({s["player"] for s in part}), 2):
            first, second = (
                cells((s for s in part if s["player"] == player), readout_of(readout), "case", "language", "fold")
                for player in names
            )
            test, r = paired(first, second), pearson(_by_family(first), _by_family(second))
            if test:
                line = {"what": f"{mode} {condition} {readout}", "first": names[0], "second": names[1]}
                found.append(line | test._asdict() | {"r": r[1] if r else None, "r_p": r[2] if r else None})
    return found


def _by_family(values: dict[Cell, float]) -> dict[str, float]:
    families: dict[str, list[float]] = {}
    for cell, value in values.items():
        families.setdefault(cell[0], []).append(value)
    return {family: sum(each) / len(each) for family, each in families.items()}
