"""A run continues at exactly the next sample, whatever changed around it; where it cannot, it says why."""

import json
from collections import Counter

import pytest
from datasets_tools import rules
from hypothesis import given, settings
from hypothesis import strategies as st
from test_datasets_loader import LENGTHS, LIMITS, Texts, ids, loader

from unify_agent.datasets.loader import Loader
from unify_agent.datasets.sources import Mixture
from unify_agent.errors import UserError
from unify_agent.interleave.packing import Limits


def sources(*sizes: int) -> Mixture:
    return Mixture([Texts(name, LENGTHS[:size]) for name, size in zip("ab", sizes, strict=False)], limit=100)


def made(packs_per_step: int = 4, mixture: Mixture | None = None, **options: object) -> Loader:
    limits = Limits(110, 120, 100, packs_per_step=packs_per_step, window_steps=2)
    return Loader(mixture or sources(90, 40), limits, rules(), seed=3, **({"workers": 0} | options))


def resumed(before: Loader, done: int, packs_per_step: int = 4, **options: object) -> Loader:
    """A loader that goes on from what a checkpoint on the disk holds."""
    after = made(packs_per_step, **options)
    after.resume(json.loads(json.dumps(before.state(done))))
    return after


def test_the_next_fifty_packs_are_the_same_after_a_kill_a_second_one_and_with_other_workers() -> None:
    expected = ids(made(), 0, 30)
    assert made().plan(0).steps < 12, "the fifty packs cross epochs"
    first = resumed(made(), 5, workers=2)
    assert ids(first, 5, 18) == expected[5:18]
    second = resumed(first, 11, workers=1)
    assert ids(second, 11, 24) == expected[11:24]
    third = resumed(second, 17)
    assert ids(third, 17, 30) == expected[17:30]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_other_ranks_go_on_with_the_same_plan(world: int) -> None:
    expected = ids(made(), 0, 20)
    ranks = [ids(resumed(made(rank=1, world=2), 7, rank=rank, world=world), 7, 20) for rank in range(world)]
    together = [[ranks[slot % world][step][slot // world] for slot in range(4)] for step in range(13)]
    assert together == expected[7:]


def test_the_state_says_where_the_run_stands() -> None:
    state = made().state(made().plan(0).steps + 2)
    assert (state["epoch"], state["step"]) == (1, 2)
    assert state["sources"] == {"a": 90, "b": 40}
    assert state["packs_per_step"] == [(0, 4)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6)), max_size=4), st.integers(1, 6))
def test_no_sample_of_an_epoch_is_lost_or_repeated_when_packs_per_step_change(
    changes: list[tuple[int, int]], packs: int
) -> None:
    run, done = made(packs), 0
    drawn: dict[int, Counter] = {}

    def take(steps: int) -> None:
        for step in range(done, done + steps):
            stretch, local = run.schedule.at(step)
            for slot in range(stretch.plan.limits.packs_per_step):
                drawn.setdefault(stretch.epoch, Counter()).update(stretch.pack(local, slot))

    for steps, packs in changes:
        take(steps)
        done += steps
        run = resumed(run, done, packs)
        assert run.place(done) == made_place(run, done)
    while run.place(done)[0] < 2:
        take(1)
        done += 1
    for epoch in range(2):
        assert drawn[epoch] == Counter(run.mixture.epoch(3, epoch))


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(0, 29)), st.integers(0, 20), st.integers(1, 4))
def test_at_every_stop_a_sample_is_packed_skipped_with_a_reason_or_still_to_come(
    broken: set[int], stop: int, packs_per_step: int
) -> None:
    run = made(packs_per_step, Mixture([Texts("a", [*LENGTHS[:30], 101], tuple(broken))], limit=100))
    stop = min(stop, run.plan(0).steps)
    done = list(run.steps(0, stop))
    packed = Counter(name for data in done for batch in data.packs for name in batch.sample_ids)
    skipped = Counter(each.id for each in (*run.skipped, *(each for data in done for each in data.skipped)))
    ahead = list(run.tasks(stop, run.plan(0).steps))
    to_come = Counter(run.mixture.name(draw) for task in ahead for draw in task.draws)
    assert packed + skipped + to_come == Counter(f"a:{number}" for number in range(31))
    assert all(each.reason for data in done for each in data.skipped)


def made_place(run: Loader, done: int) -> tuple[int, int]:
    """The place of a step, counted step by step."""
    epochs = [run.schedule.at(step)[0].epoch for step in range(done + 1)]
    return epochs[-1], epochs.count(epochs[-1]) - 1


def test_what_is_left_of_an_epoch_is_planned_anew_for_other_packs_per_step() -> None:
    before = ids(made(4), 0, 2)
    after = resumed(made(4), 2, 3)
    steps = after.schedule.at(2)[0].steps
    rest = ids(after, 2, 2 + steps)
    names = [name for step in (*before, *rest) for packs in step for name in packs]
    assert Counter(names) == Counter(made().mixture.name(draw) for draw in made().mixture.epoch(3, 0))
    assert all(len(step) == 3 for step in rest)
    assert [data.step for data in after.steps(2, 5)] == [2, 3, 4]


def test_a_change_taken_back_before_a_step_leaves_no_trace() -> None:
    there = resumed(made(4), 5, 3)
    back = resumed(there, 5, 4)
    assert back.schedule.changes == [(0, 4)]
    assert ids(back, 5, 20) == ids(made(4), 5, 20)


@pytest.mark.parametrize(
    ("mixture", "says"),
    [
        (sources(85, 40), "source a had 90 samples, now 85"),
        (sources(90, 47), "source b had 40 samples, now 47"),
        (sources(90), "source b had 40 samples, now 0"),
        (Mixture([Texts("a", [*LENGTHS[:89], 9]), Texts("b", LENGTHS[:40])], limit=100), "ids, lengths or weights"),
    ],
)
def test_a_source_that_grew_shrank_or_changed_is_named(mixture: Mixture, says: str) -> None:
    with pytest.raises(UserError, match=f"its data changed since.*{says}.*choose another output"):
        resumed(made(), 5, mixture=mixture)


def test_another_seed_is_another_plan() -> None:
    with pytest.raises(UserError, match="another plan"):
        loader(seed=4).resume(loader(seed=3).state(2))


def test_fewer_samples_than_ranks_leave_ranks_with_packs_without_loss() -> None:
    mixture = Mixture([Texts("a", [50])], limit=100)
    for rank in range(4):
        (data, again) = made(4, mixture, rank=rank, world=4).steps(0, 2)
        assert [len(batch.sample_ids) for batch in data.packs] == [1 - min(rank, 1)]
        assert (data.epoch, again.epoch) == (0, 1)


def test_an_epoch_in_which_nothing_fits_is_an_error_and_not_an_endless_loop() -> None:
    mixture = Mixture([Texts("a", [120])], limit=200)
    with pytest.raises(UserError, match="max_tokens_per_sample=100: no sample"):
        made(4, mixture).plan(0)


def test_a_longer_run_plans_each_epoch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = loader()
    epochs: list[int] = []
    whole = run.mixture.epoch
    monkeypatch.setattr(run.mixture, "epoch", lambda seed, epoch: epochs.append(epoch) or whole(seed, epoch))
    ids(run, 0, 40)
    assert epochs == list(range(len(epochs))) and len(epochs) > 2
    assert run.limits == LIMITS
