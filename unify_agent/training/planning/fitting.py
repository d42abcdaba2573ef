"""A configuration that cannot fit is refused, and the nearest one that would is named.

What is tried, in this order, is what changes the run least: first what costs time only, then more shards, then host
memory, then what trains less: adapters, shorter packs.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from unify_agent.errors import UserError
from unify_agent.training.compose import check
from unify_agent.training.config import Config
from unify_agent.training.planning.memory import GIB
from unify_agent.training.planning.plan import Plan, mesh_of, planned, read
from unify_agent.training.planning.workload import workload

LORA_RANK = 64


def refuse(plan: Plan) -> None:
    """Raises UserError if the plan needs more memory than its card has."""
    if plan.fits:
        return
    largest = sorted(plan.memory.parts.items(), key=lambda item: -item[1])[:3]
    parts = ", ".join(f"{part} {size / GIB:.1f}" for part, size in largest)
    near = nearest(plan)
    advice = f"the nearest that fits: {near}" if near else "nothing near it fits; plan for other cards or more of them"
    raise UserError(
        f"needs {plan.memory.total / GIB:.1f} GiB of the {plan.card.gib} of {plan.card.name} ({parts}); {advice}"
    )


def nearest(plan: Plan) -> str | None:
    """Overrides, as on the command line, with which it would fit."""
    before, readings = plan.config, plan.readings
    for changes in _changes(plan):
        config = deepcopy(plan.config)
        for key, value in changes.items():
            _set(config, key, value)
        try:
            check(config)
            mesh = mesh_of(config)
            work = plan.work if config.data == plan.config.data else workload(config, plan.shape, plan.world)
            if _computed(config) != _computed(before):
                readings = read(config, plan.shape, work, plan.readings.encoding if work is plan.work else None)
        except UserError:
            continue  # not every change goes with every configuration, nor with every installation
        before = config
        if planned(config, plan.shape, plan.card, mesh, work, readings).fits:
            return " ".join(f"{key}={_text(value)}" for key, value in changes.items())
    return None


def _changes(plan: Plan) -> Iterator[dict[str, Any]]:
    """What to try, each with all that costs less."""
    settings, changes = plan.config.parallel, dict[str, Any]()
    if settings.dtype == "fp32":
        changes = changes | {"parallel.dtype": "bf16"}
        yield changes
    for mode in {"none": ("selective", "full"), "selective": ("full",), "full": ()}[settings.checkpointing]:
        changes = changes | {"parallel.checkpointing": mode}
        yield changes
    shard = plan.mesh[1]
    while shard * 2 <= plan.world and plan.world % (shard * 2) == 0:
        shard *= 2
        changes = changes | {"parallel.replicate": plan.world // shard, "parallel.shard": shard}
        yield changes
    if not settings.offload:
        yield changes | {"parallel.offload": True}
    if plan.config.lora.rank == 0:
        yield changes | {"parallel.dtype": "bf16", "lora.rank": LORA_RANK, "lora.base_dtype": "bf16"}
    data = plan.config.data
    for part in (2, 4, 8):
        tokens = data.max_tokens // part
        keys = ("data.expected_tokens", "data.max_tokens", "data.max_tokens_per_sample")
        yield changes | {key: min(tokens, getattr(data, key.partition(".")[2])) for key in keys}


def _computed(config: Config) -> tuple[Any, ...]:
    """What decides about activations."""
    return config.data, config.lora, config.parallel.dtype, config.parallel.checkpointing


def _set(config: Config, key: str, value: Any) -> None:
    node: Any = config
    *groups, name = key.split(".")
    for group in groups:
        node = getattr(node, group)
    setattr(node, name, value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
