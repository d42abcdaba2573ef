"""From a step of a run to the plan that it belongs to: epochs one after another, each planned when it is reached.

A run may go on with another number of packs per step, so that it divides among another number of ranks. Steps that
are done stay as they were, what is left of their epoch is planned anew for the new number, and later epochs are
planned for it from the start. So within an epoch nothing is lost or repeated, and all of it is a function of
(mixture, limits, seed, changes).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from unify_agent.datasets.sources import Draw, Mixture
from unify_agent.errors import UserError
from unify_agent.interleave.packing import Limits, Plan, make_plan

Change = tuple[int, int]
"""(step of the run, packs per step from there on)."""


@dataclass(frozen=True)
class Stretch:
    """Steps under one plan: an epoch, or a part of it before or after a change."""

    epoch: int
    first: int
    """Step of the run with which it begins."""
    before: int
    """Steps of its epoch that are done when it begins."""
    steps: int
    """Fewer than the plan's when a change ends it early."""
    plan: Plan
    draws: list[Draw]

    def pack(self, step: int, slot: int) -> tuple[Draw, ...]:
        """The draws of one pack; `step` counts from the beginning of the stretch."""
        return tuple(self.draws[index] for index in self.plan.pack(step, slot))


@dataclass(frozen=True)
class _Beginning:
    epoch: int
    first: int
    before: int
    left: list[Draw] | None
    """What is left of the epoch; None when it is whole."""


class Schedule:
    """`changes` begin with step 0 and end with the packs per step of `limits`."""

    def __init__(self, mixture: Mixture, limits: Limits, seed: int, changes: Sequence[Change] | None = None) -> None:
        self.mixture, self.limits, self.seed = mixture, limits, seed
        self.changes: list[Change] = list(changes or [(0, limits.packs_per_step)])
        self._beginnings = [_Beginning(0, 0, 0, None)]
        self._planned = lru_cache(maxsize=2)(self._plan)

    def at(self, step: int) -> tuple[Stretch, int]:
        """The stretch that holds a step of the run, and the step's number within it."""
        while True:
            number = bisect_right([each.first for each in self._beginnings], step) - 1
            stretch = self._planned(number)  # the last known one tells where the next begins
            if number + 1 < len(self._beginnings) and step < self._beginnings[number + 1].first:
                return stretch, step - stretch.first

    def _plan(self, number: int) -> Stretch:
        begin = self._beginnings[number]
        draws = self.mixture.epoch(self.seed, begin.epoch) if begin.left is None else begin.left
        packs_per_step = next(packs for first, packs in reversed(self.changes) if first <= begin.first)
        mixture, limits = self.mixture, replace(self.limits, packs_per_step=packs_per_step)
        plan = make_plan(
            [f"{mixture.name(draw)}@{draw.epoch}" for draw in draws],
            [mixture.slots[draw.source][draw.index] for draw in draws],
            [mixture.pairs[draw.source][draw.index] for draw in draws],
            limits,
            seed=self.seed,
            epoch=begin.epoch,
        )
        if not plan.steps:
            raise UserError(
                f"data.max_tokens_per_sample={limits.max_tokens_per_sample}: no sample of epoch {begin.epoch} fits"
            )
        steps = min([plan.steps, *(first - begin.first for first, _ in self.changes if first > begin.first)])
        stretch = Stretch(begin.epoch, begin.first, begin.before, steps, plan, draws)
        if number + 1 == len(self._beginnings):
            after = _Beginning(begin.epoch + 1, begin.first + steps, 0, None)
            if steps < plan.steps:
                packs = plan.packs[steps * packs_per_step :]
                left = [draws[index] for pack in packs for index in pack]
                after = replace(after, epoch=begin.epoch, before=begin.before + steps, left=left)
            self._beginnings.append(after)
        return stretch
