"""What stops a run by itself, before the step at fault changes a weight.

    not finite   the loss or the norm of the gradient
    first_ce     the first cross-entropy of a run from stored weights is near ln(vocabulary), which is guessing: they
                 are not the weights that were meant
    spike        the loss is a multiple of the median of the steps before it

The losses of every pack are then collected from all ranks and written to RUN/faults/step_0000012.json.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import NoReturn

from unify_agent import files
from unify_agent.errors import STOPPED, UserError
from unify_agent.training.config import Config
from unify_agent.training.parallel import World

IDS_SHOWN = 20
"""Samples named in the message; the file has all."""


class Fault(UserError):
    """A step that must not be taken. Raised on every rank, with the same words."""

    def __init__(self, message: str) -> None:
        super().__init__(message, STOPPED)


@dataclass(frozen=True)
class PackLoss:
    """A pack's ids and its share of the step's loss terms."""

    ids: list[str]
    ce: float
    mse: float

    @property
    def loss(self) -> float:
        return self.ce + self.mse


class Guards:
    """`losses`: those of the last steps; a checkpoint keeps them."""

    def __init__(self, config: Config, vocabulary: int, world: World) -> None:
        self.config, self.vocabulary, self.world = config, vocabulary, world
        self.losses: deque[float] = deque(maxlen=config.guards.spike_steps)

    def check_loss(self, step: int, loss: float, ce_mean: float | None, packs: Sequence[PackLoss]) -> None:
        """`step` from 1; `loss` and `ce_mean` (plain mean, None without text) are those of all ranks, `packs` this
        rank's. Called before the update; a collective when it stops the run.

        Raises:
            Fault: the step must not be taken; the message has the reason and the samples of the pack at fault.
        """
        reason = self._reason(step, loss, ce_mean)
        if reason is not None:
            self._stop(step, reason, {"loss": loss, "ce_mean": ce_mean}, packs)

    def check_norm(self, step: int, loss: float, grad_norm: float, packs: Sequence[PackLoss]) -> None:
        """Called with what the update returned, which leaves the weights alone when it is not finite; as
        `check_loss`."""
        if not math.isfinite(grad_norm):
            reason = f"the gradient's norm {grad_norm} is not finite"
            self._stop(step, reason, {"loss": loss, "grad_norm": grad_norm}, packs)
        self.losses.append(loss)

    def _stop(self, step: int, reason: str, numbers: dict[str, float | None], packs: Sequence[PackLoss]) -> NoReturn:
        everyone = [(rank, pack) for rank, held in enumerate(self.world.gather(list(packs))) for pack in held]
        guilty = _at_fault([pack for _, pack in everyone])
        path = Path(self.config.output) / "faults" / f"step_{step:07d}.json"
        if self.world.main:
            rows = [
                {"rank": rank, "at_fault": pack in guilty, **{k: _number(v) for k, v in asdict(pack).items()}}
                for rank, pack in everyone
            ]
            told = {key: _number(value) for key, value in numbers.items()}
            files.write_json(path, {"step": step, "reason": reason, **told, "packs": rows})
        ids = [name for pack in guilty for name in pack.ids]
        more = f" and {len(ids) - IDS_SHOWN} more" if len(ids) > IDS_SHOWN else ""
        raise Fault(
            f"step {step}: {reason}; no weight was changed; samples of the pack at fault: "
            f"{', '.join(ids[:IDS_SHOWN])}{more} ({path}); data.leave_out skips samples"
        )

    def _reason(self, step: int, loss: float, ce_mean: float | None) -> str | None:
        guards = self.config.guards
        if not math.isfinite(loss):
            return f"the loss {loss} is not finite"
        if step == 1 and self.config.model.init == "pretrained" and ce_mean is not None and guards.first_ce is not None:
            guess = math.log(self.vocabulary)
            if ce_mean > guards.first_ce * guess:
                return (
                    f"the first cross-entropy {ce_mean:.2f} is near ln(vocabulary) = {guess:.2f}, which is guessing: "
                    f"the weights in {self.config.model.path} know nothing of this data (guards.first_ce="
                    f"{guards.first_ce}; model.init=random trains from scratch)"
                )
        if guards.spike is not None and len(self.losses) >= guards.spike_steps / 5:
            usual = median(self.losses)
            if loss > guards.spike * usual > 0:
                return (
                    f"loss {loss:.4g} is {loss / usual:.1f} times the median {usual:.4g} of the last "
                    f"{len(self.losses)} steps (guards.spike={guards.spike})"
                )
        return None


def _at_fault(packs: Sequence[PackLoss]) -> list[PackLoss]:
    """Those whose loss is not finite; else the one with the largest share of the loss."""
    broken = [pack for pack in packs if not math.isfinite(pack.loss)]
    return broken or [max(packs, key=lambda pack: pack.loss)]


def _number(value: object) -> object:
    """JSON has no infinity and no NaN."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
