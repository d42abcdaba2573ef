"""One optimiser step over this rank's packs.

    loss = ce_weight  * sum(ce_i * w_i) / sum(w)   +   mse_weight * sum(mse_j) / M

with both denominators summed over all ranks *and* the whole accumulation window before the first backward. How a
step's packs are spread over ranks and accumulation thus changes nothing (normalising each micro-batch by its own
counts, as BAGEL's code does, weighs tokens of short packs more).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unify_agent.interleave.batch import CLEAN, ROLES, PackedBatch
from unify_agent.model.attention import FlexAttention
from unify_agent.model.losses import timesteps
from unify_agent.training import metrics, optimiser, parallel
from unify_agent.training.config import Config
from unify_agent.training.ema import Ema
from unify_agent.training.engine import Engine
from unify_agent.training.guards import Guards, PackLoss
from unify_agent.training.parallel import World


@dataclass
class Stepper:
    """Holds what a step changes: weights, optimiser (in its engine) and EMA.

    `encode(batch)` -> clean latents [Q, 64] of a pack, from the frozen VAE. `guards` may refuse a step; `phase`
    is told what comes next.
    """

    model: nn.Module
    engine: Engine
    ema: Ema
    encode: Callable[[PackedBatch], Tensor]
    config: Config
    world: World
    guards: Guards | None = None
    phase: Callable[[str], None] = lambda _: None

    def step(self, number: int, batches: Sequence[PackedBatch], skipped: int = 0, stop: bool = False) -> dict:
        """Train step `number` (from 0) on this rank's packs and return its row of metrics, the same on all ranks.

        `skipped` and `stop` travel with the step's sums: how many samples could not be built, and whether this
        rank was asked to stop.

        Raises `guards.Fault`, before any weight changes, when the step must not be taken.
        """
        config, world = self.config, self.world
        self.phase("counts")
        ce_total, mse_total = world.sum(
            [sum(float(b.ce_weights.double().sum()) for b in batches), sum(len(b.mse_at) for b in batches)]
        )
        self.engine.begin()
        sums = metrics.Sums(ROLES)
        losses: list[PackLoss] = []
        for index, batch in enumerate(batches):
            self.phase("forward")
            batch = batch.to(world.device)
            with torch.no_grad():
                latents = self.encode(batch)
            flex = config.model.attention == "flex"
            attend = FlexAttention(batch.spans, batch.length, world.device) if flex else None
            out = self.model(batch, latents, attend)
            ce = out.ce * (config.loss.ce_weight / ce_total if ce_total else 0.0)
            mse = out.mse * (config.loss.mse_weight / mse_total if mse_total else 0.0)
            self.phase("backward")
            self.engine.backward(ce + mse, last=index + 1 == len(batches))
            losses.append(PackLoss(batch.sample_ids, float(ce.detach()), float(mse.detach())))
            sums.add(ce=losses[-1].ce, mse=losses[-1].mse, tokens=_tokens(batch))
            sums.add(samples=len(batch.sample_ids), packs=1)
            sums.add_ce(out.ce_tokens.detach(), batch.ce_roles)
            noised = batch.timestep_logits[batch.timestep_logits > CLEAN]
            t = timesteps(noised, config.loss.timestep_shift)
            sums.add_mse(out.mse_tokens.detach(), t)
        sums.add(stop=stop, skipped=skipped)

        self.phase("sums")
        total = sums.over_ranks(world)
        loss = total["ce"] + total["mse"]
        means = metrics.row(total, ROLES)
        if self.guards is not None:
            self.guards.check_loss(number + 1, loss, means.get("ce_mean"), losses)
        self.phase("update")
        rate = optimiser.learning_rate(config.optim, number, config.steps)
        norm = self.engine.update(rate)
        if self.guards is not None:
            self.guards.check_norm(number + 1, loss, norm, losses)
        with parallel.one_thread(world.device):
            self.ema.step(number)
        return {
            "step": number + 1,
            "loss": loss,
            "ce": total["ce"],
            "mse": total["mse"],
            "grad_norm": norm,
            "lr": rate,
            "tokens": int(total["tokens"]),
            "samples": int(total["samples"]),
            "fill": total["tokens"] / (total["packs"] * config.data.max_tokens),
            "skipped": int(total["skipped"]),
            **means,
            "stop": total["stop"] > 0,
        }


def _tokens(batch: PackedBatch) -> int:
    """Slots that belong to a sample; padding is the document after the last sample."""
    return sum(span.stop - span.start for span in batch.spans if span.document < len(batch.sample_ids))
