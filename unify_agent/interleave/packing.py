"""Which samples share a pack, and which packs share a step: a plan for a whole epoch, made in advance.

The plan is a pure function of what is packed (ids, slots, visible pairs), the seed, the epoch and the limits.
Every rank computes the same one without talking, a sample is in exactly one pack, resuming is a step number.

Samples are shuffled and taken in windows worth a few steps. A window is packed by best-fit-decreasing: the
longest sample first, each into the fullest pack that still takes it. The fullest packs make up the window's
steps; what lies in the others goes on to the next window, so nothing is lost and little is padded. Packs of
similar cost become one step, so that ranks wait little for one another, and the steps are shuffled.

Price: a sort and a binary search a sample; 143,000 samples take a few seconds.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from unify_agent.errors import UserError
from unify_agent.files import digest

TOO_LONG = "longer than max_tokens_per_sample"
"""Reason under which samples that no pack may hold are listed."""


@dataclass(frozen=True)
class Limits:
    """Sizes of a plan, in slots. No pack exceeds `max_tokens`; with `expected_tokens` it counts as full.

    `packs_per_step` = ranks x accumulation. `cost_of_token`, `cost_of_pair`: cost of a slot and of a visible
    pair in one unit; here BAGEL-7B's FLOPs (2 x 6.5e9 weights a slot, 4 x 28 layers x 3584 a pair).
    """

    expected_tokens: int = 40240
    max_tokens: int = 41520
    max_tokens_per_sample: int = 40240
    packs_per_step: int = 1
    window_steps: int = 4
    group_by_cost: bool = True
    cost_of_token: float = 13e9
    cost_of_pair: float = 4 * 28 * 3584

    def __post_init__(self) -> None:
        if not 0 < self.expected_tokens <= self.max_tokens:
            raise UserError(f"data.expected_tokens={self.expected_tokens}: must be 1 to data.max_tokens")
        if not 0 < self.max_tokens_per_sample <= self.max_tokens:
            raise UserError(
                f"data.max_tokens_per_sample={self.max_tokens_per_sample}: must be 1 to data.max_tokens"
            )
        for key, value in (
            ("parallel.packs_per_step", self.packs_per_step),
            ("data.window_steps", self.window_steps),
        ):
            if value < 1:
                raise UserError(f"{key}={value}: must be at least 1")


@dataclass(frozen=True)
class Plan:
    """The packs of an epoch. `packs[step * packs_per_step + slot]` lists sample indices; some may be empty.

    Slots of a step are in falling order of cost, so ranks that take neighbouring slots have about equal work.
    """

    limits: Limits
    packs: list[list[int]]
    slots: np.ndarray
    """int64 [samples]."""
    costs: np.ndarray
    """float64 [samples]."""
    skipped: list[tuple[int, str]] = field(default_factory=list)
    """(sample index, reason) of what is in no pack."""

    @property
    def steps(self) -> int:
        return len(self.packs) // self.limits.packs_per_step

    def pack(self, step: int, slot: int) -> list[int]:
        """Sample indices of one pack, in packing order; empty when a last, short step is filled up."""
        return self.packs[step * self.limits.packs_per_step + slot]

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the packs and their order."""
        flat = np.array([index for pack in self.packs for index in (*pack, -1)], dtype=np.int64)
        return digest(flat.tobytes(), self.slots.tobytes())[:16]

    @property
    def fill(self) -> float:
        """Share of the hard limit that is used, over the packs that are not empty."""
        used = [pack for pack in self.packs if pack]
        tokens = sum(int(self.slots[pack].sum()) for pack in used)
        return tokens / (len(used) * self.limits.max_tokens) if used else 0.0

    @property
    def worst_over_mean(self) -> float:
        """The costliest pack's cost over the mean pack's, averaged over steps: the price of waiting for it. Over the
        packs that are not empty, as `fill` is."""
        cost = np.array([self.costs[pack].sum() for pack in self.packs]).reshape(self.steps, -1)
        held = np.array([bool(pack) for pack in self.packs]).reshape(self.steps, -1)
        return float((cost.max(1) * held.sum(1) / cost.sum(1)).mean()) if self.steps else 1.0


def make_plan(
    ids: Sequence[str],
    slots: Sequence[int] | np.ndarray,
    pairs: Sequence[int] | np.ndarray,
    limits: Limits,
    *,
    seed: int,
    epoch: int,
) -> Plan:
    """Plan one epoch over samples with unique `ids`; the order in which they are listed does not matter."""
    slots = np.asarray(slots, dtype=np.int64)
    costs = limits.cost_of_token * slots + limits.cost_of_pair * np.asarray(pairs, dtype=np.float64)
    too_long = slots > limits.max_tokens_per_sample
    skipped = [(int(index), TOO_LONG) for index in np.flatnonzero(too_long)]

    rng = np.random.Generator(np.random.Philox(key=[seed % 2**64, epoch]))
    order = np.array(sorted(np.flatnonzero(~too_long).tolist(), key=ids.__getitem__), dtype=np.int64)
    order = rng.permutation(order)
    ends = np.cumsum(slots[order])

    per_window = limits.window_steps * limits.packs_per_step
    packs: list[list[int]] = []
    rest: list[int] = []
    carried = taken = 0
    while taken < len(order) or rest:
        before = ends[taken - 1] if taken else 0
        stop = int(np.searchsorted(ends, before + per_window * limits.max_tokens - carried)) + 1
        window = rest + order[taken:stop].tolist()
        taken = max(taken, min(stop, len(order)))
        filled = _best_fit_decreasing(window, slots, limits)
        rest = []
        if taken < len(order):
            rest = [index for pack in filled[per_window:] for index in pack]
            filled = filled[:per_window]
        carried = int(slots[rest].sum()) if rest else 0
        packs += _steps(filled, costs, limits, rng)
    return Plan(limits, packs, slots, costs, skipped)


def _best_fit_decreasing(window: list[int], slots: np.ndarray, limits: Limits) -> list[list[int]]:
    """Packs of a window, fullest first."""
    lengths = slots[window]
    order = np.lexsort((np.arange(len(window)), -lengths))
    packs: list[list[int]] = []
    left: dict[int, int] = {}
    room: list[tuple[int, int]] = []
    """(free slots, pack) of packs that still take something, ascending."""
    for position in order.tolist():
        length = int(lengths[position])
        place = bisect_left(room, (length, -1))
        if place < len(room):
            free, number = room.pop(place)
        else:
            free, number = limits.max_tokens, len(packs)
            packs.append([])
        packs[number].append(window[position])
        left[number] = free - length
        if limits.max_tokens - left[number] < limits.expected_tokens:
            insort(room, (left[number], number))
    return [packs[number] for number in sorted(left, key=left.__getitem__)]


def _steps(
    packs: list[list[int]], costs: np.ndarray, limits: Limits, rng: np.random.Generator
) -> list[list[int]]:
    """The packs of a window, cut into steps in shuffled order; a short one is filled with empty packs."""
    size = limits.packs_per_step
    if limits.group_by_cost:
        packs = sorted(packs, key=lambda pack: -costs[pack].sum())
    else:
        packs = [packs[index] for index in rng.permutation(len(packs))]
    steps = [packs[start : start + size] for start in range(0, len(packs), size)]
    whole = [step for step in steps if len(step) == size]
    short = [step + [[]] * (size - len(step)) for step in steps if len(step) < size]
    shuffled = [whole[index] for index in rng.permutation(len(whole))]
    return [pack for step in shuffled + short for pack in step]
