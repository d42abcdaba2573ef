"""The packing plan loses nothing, depends on nothing but its arguments, and fills its packs."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unify_agent.errors import UserError
from unify_agent.interleave.packing import TOO_LONG, Limits, Plan, make_plan

lengths = st.lists(st.integers(1, 130), max_size=120)
limits = st.builds(
    Limits,
    expected_tokens=st.integers(1, 100),
    max_tokens=st.integers(100, 120),
    max_tokens_per_sample=st.integers(50, 100),
    packs_per_step=st.integers(1, 5),
    window_steps=st.integers(1, 4),
    group_by_cost=st.booleans(),
)


def planned(slots: list[int], rules: Limits, seed: int = 0, epoch: int = 0) -> Plan:
    ids = [f"sample {index}" for index in range(len(slots))]
    return make_plan(ids, slots, [n * n for n in slots], rules, seed=seed, epoch=epoch)


@settings(max_examples=80, deadline=None)
@given(lengths, limits, st.integers(0, 3), st.integers(0, 3))
def test_every_sample_is_in_one_pack_or_skipped_with_a_reason(
    slots: list[int], rules: Limits, seed: int, epoch: int
) -> None:
    plan = planned(slots, rules, seed, epoch)
    inside = Counter(index for pack in plan.packs for index in pack)
    outside = Counter(index for index, _ in plan.skipped)
    assert inside + outside == Counter(range(len(slots)))
    assert all(
        reason == TOO_LONG and slots[index] > rules.max_tokens_per_sample for index, reason in plan.skipped
    )
    assert len(plan.packs) == plan.steps * rules.packs_per_step
    assert all(sum(slots[index] for index in pack) <= rules.max_tokens for pack in plan.packs)


@settings(max_examples=40, deadline=None)
@given(lengths, limits, st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_the_list(slots: list[int], rules: Limits, random) -> None:
    ids = [f"sample {index}" for index in range(len(slots))]
    order = list(range(len(slots)))
    random.shuffle(order)
    first = make_plan(ids, slots, [n * n for n in slots], rules, seed=1, epoch=2)
    shuffled = [slots[index] for index in order]
    second = make_plan(
        [ids[index] for index in order], shuffled, [n * n for n in shuffled], rules, seed=1, epoch=2
    )
    assert first.packs == [[order[index] for index in pack] for pack in second.packs]


@settings(max_examples=40, deadline=None)
@given(lengths, limits)
def test_only_the_last_step_holds_empty_packs(slots: list[int], rules: Limits) -> None:
    plan = planned(slots, rules)
    if plan.steps:
        assert all(plan.packs[: -rules.packs_per_step])
        assert any(plan.packs[-rules.packs_per_step :])


def test_seed_and_epoch_change_the_order_and_nothing_else_does() -> None:
    slots = np.random.default_rng(0).integers(5, 60, 200).tolist()
    rules = Limits(90, 100, 60, packs_per_step=2)
    same = planned(slots, rules, 3, 4).fingerprint
    assert planned(slots, rules, 3, 4).fingerprint == same
    assert planned(slots, rules, 3, 5).fingerprint != same
    assert planned(slots, rules, 4, 4).fingerprint != same


def test_packs_of_a_step_cost_about_the_same_when_grouped() -> None:
    slots = np.random.default_rng(0).integers(8000, 40000, 1600).tolist()
    grouped = planned(slots, Limits(packs_per_step=16, window_steps=8))
    apart = planned(slots, Limits(packs_per_step=16, window_steps=8, group_by_cost=False))
    assert grouped.worst_over_mean < 1.1 < apart.worst_over_mean


def test_packs_of_a_step_stand_in_falling_order_of_cost() -> None:
    slots = np.random.default_rng(0).integers(10, 60, 100).tolist()
    plan = planned(slots, Limits(90, 100, 60, packs_per_step=4))
    for step in range(plan.steps):
        costs = [plan.costs[plan.pack(step, slot)].sum() for slot in range(4)]
        assert costs == sorted(costs, reverse=True)


def test_short_samples_fill_the_hard_limit() -> None:
    slots = np.random.default_rng(0).integers(500, 6000, 4000).tolist()
    assert planned(slots, Limits(packs_per_step=16)).fill > 0.98


def test_a_pack_that_is_full_takes_no_more() -> None:
    plan = planned([50] * 10 + [10] * 10, Limits(50, 100, 100))
    assert all(sum(plan.slots[pack]) == 50 for pack in plan.packs)
    assert len(plan.packs) == 12


def test_nothing_to_pack_is_an_empty_plan() -> None:
    plan = planned([], Limits())
    assert (plan.steps, plan.packs, plan.fill) == (0, [], 0.0)


@pytest.mark.parametrize("wrong", [{"expected_tokens": 0}, {"max_tokens": 10}, {"packs_per_step": 0}])
def test_impossible_limits_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError, match=r"=\d+: must be"):
        Limits(**wrong)
