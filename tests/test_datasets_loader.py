"""Mixtures and the loader: shares, epochs, and an order that depends on the seed alone."""

import multiprocessing
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets_tools import add_sample, context, rules

from unify_agent.datasets.folder import TrajectorySource
from unify_agent.datasets.loader import Dropout, Loader
from unify_agent.datasets.sources import Mixture, Source
from unify_agent.errors import UserError
from unify_agent.interleave.batch import PackedBatch
from unify_agent.interleave.layout import PARTS, PRESETS
from unify_agent.interleave.packing import TOO_LONG, Limits
from unify_agent.interleave.segments import Document, Drawing, Text, Unusable


class Texts(Source):
    """Texts of given lengths; the content comes from the generator."""

    def __init__(self, name: str, lengths: list[int], broken: tuple[int, ...] = (), drawn: bool = False) -> None:
        self.name, self.lengths, self.broken, self.drawn = name, lengths, broken, drawn

    @property
    def fingerprint(self) -> str:
        return repr((self.name, self.lengths))

    def ids(self) -> list[str]:
        return [str(number) for number in range(len(self.lengths))]

    def slots(self, index: int) -> int:
        return self.lengths[index] + (6 if self.drawn else 0)

    def document(self, index: int, rng: np.random.Generator) -> Document:
        if index in self.broken:
            raise Unusable("picture missing", "gone.png")
        ids = tuple(int(token) for token in rng.integers(10, 200, self.lengths[index] - 2))
        text = Text(ids, loss=True, name="caption")
        extra = (Drawing(np.zeros((32, 32, 3), np.uint8), sees=("caption",)),) if self.drawn else ()
        return Document(str(index), (text, *extra))


LENGTHS = np.random.default_rng(0).integers(5, 60, 90).tolist()
LIMITS = Limits(expected_tokens=110, max_tokens=120, max_tokens_per_sample=100, packs_per_step=4, window_steps=2)


def loader(mixture: Mixture | None = None, limits: Limits = LIMITS, seed: int = 3, **options) -> Loader:
    mixture = mixture or Mixture([Texts("a", LENGTHS)], limit=limits.max_tokens_per_sample)
    return Loader(mixture, limits, rules(), seed=seed, **({"workers": 0} | options))


def ids(made: Loader, start: int, stop: int) -> list[list[list[str]]]:
    return [[batch.sample_ids for batch in data.packs] for data in made.steps(start, stop)]


def test_an_epoch_holds_every_sample_once() -> None:
    made = loader()
    for epoch in range(2):
        first = sum(made.plan(e).steps for e in range(epoch))
        names = [n for step in ids(made, first, first + made.plan(epoch).steps) for p in step for n in p]
        assert Counter(names) == Counter(f"a:{number}" for number in range(len(LENGTHS)))


def test_any_step_can_be_the_first() -> None:
    made = loader()
    whole = ids(made, 0, 25)
    assert made.plan(0).steps < 20, "the range crosses an epoch"
    for start in (1, made.plan(0).steps - 1, made.plan(0).steps, 20):
        assert ids(loader(), start, 25) == whole[start:]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_share_the_packs_of_one_plan(world: int) -> None:
    alone = ids(loader(), 0, 12)
    ranks = [ids(loader(rank=rank, world=world), 0, 12) for rank in range(world)]
    together = [[ranks[slot % world][step][slot // world] for slot in range(4)] for step in range(12)]
    assert together == alone


def test_workers_change_nothing_but_speed() -> None:
    alone = [batch for data in loader().steps(0, 6) for batch in data.packs]
    made = [batch for data in loader(workers=2).steps(0, 6) for batch in data.packs]
    for left, right in zip(alone, made, strict=True):
        for name, value in vars(left).items():
            other = getattr(right, name)
            assert torch.equal(value, other) if isinstance(value, torch.Tensor) else repr(value) == repr(other)


def test_loading_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    ids(loader(workers=1), 0, 2)
    assert torch.equal(torch.get_rng_state(), state)


def test_seeds_and_epochs_give_other_packs_and_other_noise() -> None:
    made = loader()
    steps = made.plan(0).steps
    assert ids(made, 0, 3) != ids(loader(seed=4), 0, 3)
    assert ids(made, 0, 3) != ids(made, steps, steps + 3)


def test_an_unusable_sample_is_counted_and_replaced_by_nothing() -> None:
    mixture = Mixture([Texts("a", LENGTHS, broken=(7, 11))], limit=100)
    steps = list(loader(mixture).steps(0, loader().plan(0).steps))
    skipped = [(each.id, each.reason) for data in steps for each in data.skipped]
    assert sorted(skipped) == [("a:11", "picture missing"), ("a:7", "picture missing")]
    names = [name for data in steps for batch in data.packs for name in batch.sample_ids]
    assert len(names) == len(set(names)) == len(LENGTHS) - 2


def test_a_sample_longer_than_promised_is_skipped() -> None:
    class Growing(Texts):
        def slots(self, index: int) -> int:
            return self.lengths[index] - (index == 5)

    made = loader(Mixture([Growing("a", LENGTHS)], limit=100))
    skipped = [each for data in made.steps(0, made.plan(0).steps) for each in data.skipped]
    assert [(each.id, each.reason) for each in skipped] == [("a:5", "longer than when it was indexed")]


def test_samples_over_the_limit_are_listed_before_training() -> None:
    made = loader(Mixture([Texts("a", [*LENGTHS, 101, 500])], limit=100))
    assert [(each.id, each.reason) for each in made.skipped] == [("a:90", TOO_LONG), ("a:91", TOO_LONG)]


def test_a_last_short_step_is_filled_with_packs_without_loss() -> None:
    made = loader(Mixture([Texts("a", [50, 50, 50])], limit=100))
    (data,) = made.steps(0, 1)
    assert [len(batch.sample_ids) for batch in data.packs] == [2, 1, 0, 0]
    assert not len(data.packs[3].ce_at) and data.packs[3].length == 1
    assert data.fill == pytest.approx(150 / 480)


def test_dropout_hides_the_condition_from_the_drawing() -> None:
    source = Texts("a", [20] * 40, drawn=True)
    hidden = 0
    made = loader(Mixture([source], limit=100), dropout=Dropout(text=0.5))
    for data in made.steps(0, made.plan(0).steps):
        hidden += sum(span.sees == () for batch in data.packs for span in batch.spans)
    assert 8 < hidden < 32
    plain = loader(Mixture([source], limit=100))
    assert all(span.sees != () for data in plain.steps(0, 3) for b in data.packs for span in b.spans)


@pytest.mark.parametrize("weights", [[1, 1], [3, 1], [1, 9]])
def test_a_weight_is_a_share_of_the_tokens_drawn(weights: list[float]) -> None:
    mixture = Mixture([Texts("a", LENGTHS), Texts("b", LENGTHS[:40])], weights, limit=100)
    tokens = np.zeros(2)
    for epoch in range(6):
        for draw in mixture.epoch(0, epoch):
            tokens[draw.source] += mixture.slots[draw.source][draw.index]
    assert tokens[0] / tokens.sum() == pytest.approx(weights[0] / sum(weights), abs=0.01)


@pytest.mark.parametrize("weights", [[1, 1], [3, 1], [1, 9]])
def test_each_source_of_a_mixture_has_its_own_epochs(weights: list[float]) -> None:
    mixture = Mixture([Texts("a", LENGTHS), Texts("b", LENGTHS[:40])], weights, limit=100)
    drawn = Counter((d.source, d.epoch, d.index) for epoch in range(8) for d in mixture.epoch(0, epoch))
    assert set(drawn.values()) == {1}
    for source, size in ((0, 90), (1, 40)):
        last = max(epoch for number, epoch, _ in drawn if number == source)
        for own in range(last):
            assert sum((n, e) == (source, own) for n, e, _ in drawn) == size


def test_the_fingerprint_names_data_limits_and_seed() -> None:
    mixture = Mixture([Texts("a", LENGTHS)], limit=100)
    prints = {
        loader().fingerprint,
        loader(seed=4).fingerprint,
        loader(limits=Limits(110, 120, 100, packs_per_step=2)).fingerprint,
        loader(Mixture([Texts("a", LENGTHS[:-1])], limit=100)).fingerprint,
        loader(dropout=Dropout(vit=0.1)).fingerprint,
        loader(preset="released").fingerprint,
    }
    assert len(prints) == 6
    assert loader(mixture, workers=2, rank=1, world=2).fingerprint == loader().fingerprint


def test_impossible_runs_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="does not divide among 3 ranks"):
        loader(world=3)
    with pytest.raises(UserError, match="at least one source"):
        Mixture([], limit=100)
    with pytest.raises(UserError, match="same name"):
        Mixture([Texts("a", [5]), Texts("a", [5])], limit=100)
    with pytest.raises(UserError, match="weight must be above 0"):
        Mixture([Texts("a", [5])], [0], limit=100)
    with pytest.raises(UserError, match=r"none of its samples can be used.*1 x longer"):
        Mixture([Texts("a", [500])], limit=100)


def test_an_error_in_a_worker_reaches_the_caller_as_it_is() -> None:
    class Failing(Texts):
        def document(self, index: int, rng: np.random.Generator) -> Document:
            raise UserError("pictures.zip: gone")

    with pytest.raises(UserError, match=r"^pictures\.zip: gone$"):
        next(loader(Mixture([Failing("a", LENGTHS)], limit=100), workers=1).steps(0))


@pytest.mark.parametrize("preset", PRESETS)
def test_a_folder_of_trajectories_trains_end_to_end(tmp_path: Path, preset: str) -> None:
    for number in range(6):
        add_sample(tmp_path / "birds", f"owl{number}", number % 3)
    mixture = Mixture([TrajectorySource(context(preset), tmp_path, request_share=0.3)], limit=300)
    made = loader(mixture, Limits(350, 400, 300), preset=preset, workers=1, dropout=Dropout(0.2, 0.2, 0.2))
    steps = list(made.steps(0, made.plan(0).steps))
    packs = [batch for data in steps for batch in data.packs]
    assert sum(len(batch.sample_ids) for batch in packs) == 6 * len(PARTS[preset])
    for batch in packs:
        drawn = [not name.endswith("/agent") for name in batch.sample_ids]
        said = [not name.endswith("/generation") for name in batch.sample_ids]
        assert bool(len(batch.mse_at)) == any(drawn) and bool(len(batch.ce_at)) == any(said)


def test_packs_are_pinned_by_the_loaders_own_thread_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[PackedBatch] = []
    monkeypatch.setattr(PackedBatch, "pin", lambda self: pinned.append(self) or self)
    made = loader()
    built = made.builder[next(made.tasks(0, 1))].pin_memory()
    assert len(pinned) == 1 and built.batch() is pinned[0]


def test_closing_the_iterator_stops_the_workers() -> None:
    before = set(multiprocessing.active_children())
    steps = loader(workers=2).steps(0)
    next(steps)
    assert len(set(multiprocessing.active_children()) - before) == 2
    steps.close()
    assert not set(multiprocessing.active_children()) - before
