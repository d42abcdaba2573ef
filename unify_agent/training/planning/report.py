"""A plan as tables for people and as one JSON object for programs; both say the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from unify_agent.training.planning.memory import GIB, MOMENTS
from unify_agent.training.planning.parameters import by_group
from unify_agent.training.planning.plan import Plan

DAY = 86400
WORDS = {
    "weights": "weights, as stored",
    "gradients": "gradients",
    "optimiser": "optimiser (AdamW)",
    "ema": "moving average, fp32",
    "vae": "VAE, frozen",
    "activations": "activations kept",
    "logits": "logits of a chunk, their gradients",
    "block": "one block computed again, gradients",
    "masks": "attention masks",
    "batch": "the pack itself",
    "working_set": "gathered units, buffers",
    "allowance": "allowance for CUDA and NCCL",
}
IN_HOST = WORDS | {"checkpoint": "copy of a checkpoint that is being written"}
"""What may lie in host memory."""


def as_json(plan: Plan) -> dict[str, Any]:
    """All figures, in the units that the keys name. `memory_gib` is the worst moment's; its parts add up to `total`."""
    *groups, whole = by_group(plan.parameters)
    memory, network, tokens = plan.memory, plan.network, plan.tokens
    config, data = plan.config, plan.work.data
    replicate, shard = plan.mesh
    return {
        "recipe": config.recipe,
        "model": config.model.arch or config.model.path,
        "world_size": plan.world,
        "mesh": {"replicate": replicate, "shard": shard, "strategy": config.parallel.strategy},
        "parameters": {
            "total": whole.parameters,
            "trainable": whole.trained,
            "frozen": whole.parameters - whole.trained,
            "groups": {row.group: {"total": row.parameters, "trainable": row.trained} for row in groups},
        },
        "tokens": {
            "origin": plan.work.origin,
            "per_pack": round(tokens),
            "packs_per_step": config.parallel.packs_per_step,
            "accumulation": plan.accumulation,
            "per_step": round(tokens * config.parallel.packs_per_step),
            "samples_per_step": round(plan.samples * config.parallel.packs_per_step, 1),
            "steps": config.steps,
            "per_run": round(tokens * config.parallel.packs_per_step * config.steps),
            "epoch": None
            if data is None
            else {
                "samples": data.samples,
                "skipped": data.skipped,
                "tokens": data.tokens,
                "steps": data.steps,
                "fill": round(data.fill, 4),
                "worst_over_mean": round(data.worst_over_mean, 4),
            },
        },
        "card": {"name": plan.card.name, "gib": plan.card.gib, "tflops": plan.card.tflops},
        "memory_gib": {part: _gib(size) for part, size in memory.parts.items()}
        | {"total": sum(_gib(size) for size in memory.parts.values())},
        "memory_moment": memory.worst,
        "activations_gib_per_layer": {"decoder": _gib(memory.decoder), "vit": _gib(memory.vit)},
        "memory_gib_by_moment": {
            moment: sum(_gib(size) for size in memory.moments[moment].values()) for moment in MOMENTS
        },
        "host_gib": {part: _gib(size) for part, size in memory.host.items()},
        "host_gib_per_node": _gib(plan.host),
        "fits": plan.fits,
        "flops_per_token": {part: value / tokens for part, value in plan.flops.parts.items()}
        | {"total": plan.flops.total / tokens},
        "recomputed_flops_per_token": plan.flops.recomputed / tokens,
        "visible_pairs_per_pack": round(sum(load.pairs for load in plan.loads) / len(plan.loads)),
        "seconds_per_step": {f"{mfu:g}": plan.seconds(mfu) for mfu in config.planning.mfu},
        "network": {
            "gathered_gib": network.gathered / GIB,
            "scattered_gib": network.scattered / GIB,
            "summed_gib": network.summed / GIB,
            "total_gib": network.total / GIB,
            "seconds_unhidden": network.seconds,
            "host_gib": network.host / GIB,
        },
    }


def _gib(size: float) -> float:
    return size / GIB


def lines(plan: Plan) -> Iterator[str]:
    """The plan as tables."""
    yield from _head(plan)
    yield from _parameters(plan)
    yield from _tokens(plan)
    yield from _memory(plan)
    yield from _flops(plan)
    yield from _network(plan)


def _head(plan: Plan) -> Iterator[str]:
    config, (replicate, shard) = plan.config, plan.mesh
    settings = config.parallel
    yield (
        f"{config.recipe or config.model.arch or config.model.path}: {plan.world} ranks of {plan.card.name} "
        f"({plan.card.gib} GiB, {plan.card.tflops:g} TFLOP/s), {replicate} replicas x {shard} shards, "
        f"{settings.strategy}, {settings.dtype}, checkpointing {settings.checkpointing}"
    )


def _parameters(plan: Plan) -> Iterator[str]:
    yield ""
    yield f"{'parameters':20}{'tensors':>8}{'all':>16}{'trained':>16}{'frozen':>16}"
    for row in by_group(plan.parameters):
        frozen = row.parameters - row.trained
        yield f"{row.group:20}{row.tensors:8,}{row.parameters:16,}{row.trained:16,}{frozen:16,}"
    yield "the VAE is frozen and not counted here"


def _tokens(plan: Plan) -> Iterator[str]:
    config, data = plan.config, plan.work.data
    packs = config.parallel.packs_per_step
    yield ""
    yield f"packs: {plan.work.origin}"
    yield (
        f"a step: {packs} packs ({plan.accumulation} a rank), {plan.tokens * packs:,.0f} tokens, "
        f"{plan.samples * packs:,.1f} samples"
    )
    if data is not None:
        skipped = f", {data.skipped:,} skipped" if data.skipped else ""
        yield (
            f"an epoch: {data.samples:,} samples{skipped}, {data.tokens:,} tokens, {data.steps:,} steps, "
            f"fill {data.fill:.1%}, costliest pack of a step over the mean {data.worst_over_mean:.2f}"
        )
        yield f"the run: {config.steps:,} steps, {config.steps / data.steps:.2f} epochs"
    else:
        yield f"the run: {config.steps:,} steps, {plan.tokens * packs * config.steps / 1e9:,.2f}e9 tokens"


def _memory(plan: Plan) -> Iterator[str]:
    memory = plan.memory
    yield ""
    yield f"{'GiB on the fullest rank':38}" + "".join(f"{moment:>10}" for moment in MOMENTS)
    for part, words in WORDS.items():
        yield f"{words:38}" + "".join(f"{memory.moments[moment][part] / GIB:10.2f}" for moment in MOMENTS)
    totals: Sequence[float] = [sum(memory.moments[moment].values()) / GIB for moment in MOMENTS]
    yield f"{'all':38}" + "".join(f"{total:10.2f}" for total in totals)
    if memory.host:
        held = ", ".join(f"{IN_HOST[part]} {size / GIB:.1f}" for part, size in memory.host.items())
        yield f"in host memory, GiB for each rank: {held}"
        yield f"the machine needs {plan.host / GIB:.0f} GiB for it, and what Python and the loader take"
    yield (
        f"of the activations each decoder layer keeps {memory.decoder / GIB:.3f} and each ViT layer "
        f"{memory.vit / GIB:.3f}"
    )
    verdict = f"fits ({memory.total / GIB / plan.card.gib:.0%})" if plan.fits else "does not fit"
    yield f"{memory.total / GIB:.1f} of {plan.card.gib} GiB: {verdict}"


def _flops(plan: Plan) -> Iterator[str]:
    yield ""
    yield f"{'GFLOP a token, forward and backward':38}{'':>10}"
    for part, value in plan.flops.parts.items():
        yield f"{part:38}{value / plan.tokens / 1e9:10.3f}"
    yield f"{'all':38}{plan.flops.total / plan.tokens / 1e9:10.3f}"
    if plan.flops.recomputed:
        yield f"{'computed again, not in the MFU':38}{plan.flops.recomputed / plan.tokens / 1e9:10.3f}"
    yield ""
    yield f"{'MFU':>6}{'s a step':>12}{'tokens/s a card':>18}{'days for the run':>18}"
    for mfu in plan.config.planning.mfu:
        seconds = plan.seconds(mfu)
        rate = plan.tokens * plan.accumulation / seconds
        yield f"{mfu:6.0%}{seconds:12.1f}{rate:18,.0f}{seconds * plan.config.steps / DAY:18.2f}"


def _network(plan: Plan) -> Iterator[str]:
    network = plan.network
    yield ""
    yield (
        f"a rank sends in a step: {network.gathered / GIB:.1f} GiB to gather, {network.scattered / GIB:.1f} to reduce "
        f"over {plan.mesh[1]} shards ({network.shard_link:g} GB/s), {network.summed / GIB:.1f} to sum over "
        f"{plan.mesh[0]} replicas ({network.replica_link:g} GB/s): {network.seconds:.2f} s if nothing hides it"
    )
    if network.host:
        yield f"offloading moves {network.host / GIB:.1f} GiB a step between card and host memory"
