"""What a step did, as one JSON row: sums over ranks, then means.

`metrics.jsonl` has a row for every step. `ce` and `mse` are the two loss terms as they are optimised (weighted and
normalised globally); `ce_role/*` are plain means per trained token of a role, `mse_t/*` plain means per timestep
bucket (an average hides that a model draws coarse shapes well and details badly).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unify_agent.training.parallel import World

BUCKETS = 4
"""Equal parts of [0, 1] by which the flow loss is reported."""


class Sums:
    """Named sums that are added up over the packs of a step and then over ranks. All ranks use the same names."""

    def __init__(self, roles: tuple[str, ...]) -> None:
        self.roles = roles
        names = ["ce", "mse", "tokens", "samples", "packs", "skipped", "stop"]
        names += [f"{kind}/{role}" for role in roles for kind in ("ce_sum", "ce_count")]
        names += [f"{kind}/{bucket}" for bucket in range(BUCKETS) for kind in ("mse_sum", "mse_count")]
        self.values: dict[str, float] = dict.fromkeys(names, 0.0)

    def add(self, **more: float) -> None:
        for name, value in more.items():
            self.values[name] += float(value)

    def add_ce(self, ce: Tensor, roles: Tensor) -> None:
        """ce: [C] unweighted cross-entropies; roles: [C] indices into `roles`."""
        counts = torch.bincount(roles, minlength=len(self.roles)).tolist()
        sums = torch.bincount(roles, weights=ce.double(), minlength=len(self.roles)).tolist()
        for role, count, total in zip(self.roles, counts, sums, strict=True):
            self.values[f"ce_count/{role}"] += count
            self.values[f"ce_sum/{role}"] += total

    def add_mse(self, mse: Tensor, t: Tensor) -> None:
        """mse: [M] means over a token's 64 numbers; t: [M] their timesteps."""
        bucket = (t * BUCKETS).long().clamp(0, BUCKETS - 1)
        counts = torch.bincount(bucket, minlength=BUCKETS).tolist()
        sums = torch.bincount(bucket, weights=mse.double(), minlength=BUCKETS).tolist()
        for index in range(BUCKETS):
            self.values[f"mse_count/{index}"] += counts[index]
            self.values[f"mse_sum/{index}"] += sums[index]

    def over_ranks(self, world: World) -> dict[str, float]:
        return dict(zip(self.values, world.sum(list(self.values.values())), strict=True))


def row(total: dict[str, float], roles: tuple[str, ...]) -> dict[str, float]:
    """The means of a step's global sums; roles and buckets that did not occur are left out."""
    result: dict[str, float] = {}
    ce_tokens = sum(total[f"ce_count/{role}"] for role in roles)
    mse_tokens = sum(total[f"mse_count/{bucket}"] for bucket in range(BUCKETS))
    if ce_tokens:
        result["ce_mean"] = sum(total[f"ce_sum/{role}"] for role in roles) / ce_tokens
    for role in roles:
        if total[f"ce_count/{role}"]:
            result[f"ce_role/{role}"] = total[f"ce_sum/{role}"] / total[f"ce_count/{role}"]
    for bucket in range(BUCKETS):
        if total[f"mse_count/{bucket}"]:
            name = f"mse_t/{bucket / BUCKETS:.2f}-{(bucket + 1) / BUCKETS:.2f}"
            result[name] = total[f"mse_sum/{bucket}"] / total[f"mse_count/{bucket}"]
    result |= {"ce_tokens": int(ce_tokens), "mse_tokens": int(mse_tokens)}
    return result


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; a last line cut short by a kill is not one of them."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def totals(rows: list[dict[str, Any]], last: int = 50) -> dict[str, float]:
    """Means over the last rows of a run, for its provenance."""
    tail = rows[-last:]
    keys = ("loss", "ce", "mse", "ce_mean", "tokens_per_second")
    result = {key: sum(r[key] for r in tail if key in r) / max(1, sum(key in r for r in tail)) for key in keys}
    return {key: round(value, 6) for key, value in result.items()} | {"tokens": sum(r["tokens"] for r in rows)}
