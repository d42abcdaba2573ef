"""Sessions: rows do not influence one another, stopping, sampling, guidance branches, seeds, sizes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from generation_tools import MARKERS, tiny
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unify_agent.errors import UserError
from unify_agent.generation import cache, drawing
from unify_agent.generation.branches import contexts
from unify_agent.generation.sampler import BRANCHES, SamplerSettings, guide
from unify_agent.generation.session import Session
from unify_agent.generation.text import Sampling, _Writer, draw_token
from unify_agent.interleave.layout import Pixels
from unify_agent.interleave.segments import Gap, Text
from unify_agent.interleave.transforms import Transform
from unify_agent.model.vae import FluxVae

PIXELS = Pixels(Transform(64, 32, 16), Transform(56, 28, 14))
STOPS = tuple(range(0, 512, 7))
"""So many that rows of a random model stop early, each at its own time."""


def session(rows: int = 1) -> Session:
    return Session(*tiny(), MARKERS, PIXELS, rows=rows)


def prompts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 500, length).tolist() for length in rng.integers(1, 40, count)]


def picture(seed: int, height: int = 40, width: int = 52) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def exactly(held: cache.Cache, tokens: int) -> None:
    """`Cache.reserve` that never makes more room than is asked for."""
    for store in (held.keys, held.values):
        for layer, old in enumerate(store):
            grown = old.new_zeros(old.shape[0], max(tokens, old.shape[1]), *old.shape[2:])
            grown[:, : old.shape[1]] = old
            store[layer] = grown


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_rows_decode_together_as_they_do_alone(temperature: float, tight: bool, monkeypatch) -> None:
    if tight:
        monkeypatch.setattr(cache, "BLOCK", 1)
        monkeypatch.setattr(cache.Cache, "reserve", exactly)
    sampling = Sampling(max_new=24, temperature=temperature, top_k=50, top_p=0.95, stop_ids=STOPS)
    ids, seeds = prompts(7), [11, 12, 13, 14, 15, 16, 17]
    together = session(8 if tight else 7)
    together.add_text(range(7), ids)
    found = together.decode(range(7), sampling, seeds=seeds)
    assert len({len(each.ids) for each in found}) > 2, "rows are meant to stop at different times"
    later = together.append(range(7), [[Text((1, 2, 3))]] * 7)
    for row in range(7):
        alone = session()
        alone.add_text([0], [ids[row]])
        assert alone.decode([0], sampling, seeds=[seeds[row]]) == [found[row]]
        expected = alone.append([0], [[Text((1, 2, 3))]])[0]
        assert later[row].ranges == expected.ranges
        torch.testing.assert_close(later[row].hidden, expected.hidden, atol=1e-4, rtol=1e-4)


def test_some_rows_decode_while_the_others_rest() -> None:
    ids = prompts(4)
    all_rows, some = session(4), session(4)
    for each in (all_rows, some):
        each.add_text(range(4), ids)
    expected = all_rows.decode(range(4), Sampling(max_new=9))
    found = some.decode([3, 1], Sampling(max_new=9))
    assert found == [expected[3], expected[1]]
    assert some.lengths[0] == len(ids[0]) + 2
    assert some.decode([0, 2], Sampling(max_new=9)) == [expected[0], expected[2]]
    assert some.lengths == all_rows.lengths


def test_what_was_decoded_is_cached_as_the_block_that_training_packs() -> None:
    wrote, given = session(), session()
    for each in (wrote, given):
        each.add_text([0], [[1, 2, 3]])
    decoded = wrote.decode([0], Sampling(max_new=12, stop_ids=STOPS), prefix=[[9, 8]])[0]
    assert decoded.ids[:2] == (9, 8)
    assert given.add_text([0], [decoded.ids]) == [decoded.span]
    assert decoded.tokens(0, len(decoded.ids)) == (decoded.span[0] + 1, decoded.span[1] - 1)
    assert (wrote.rope, wrote.lengths, wrote.history) == (given.rope, given.lengths, given.history)
    for a, b in zip(wrote.cache.keys, given.cache.keys, strict=True):
        torch.testing.assert_close(a[0, : wrote.lengths[0]], b[0, : given.lengths[0]], atol=1e-4, rtol=1e-4)


def test_a_row_stops_at_the_end_marker_or_after_a_stop_id_and_says_so() -> None:
    free = session()
    free.add_text([0], [[1, 2, 3]])
    ids = free.fork([0]).decode([0], Sampling(max_new=5))[0].ids
    cut = free.fork([0]).decode([0], Sampling(max_new=5, stop_ids=(ids[2],)))[0]
    assert cut.ids == ids[: ids.index(ids[2]) + 1]
    assert cut.stopped
    ended = free.fork([0]).decode([0], Sampling(max_new=5), prefix=[[4, MARKERS.eos]])[0]
    assert ended.ids == (4,)
    assert not free.fork([0]).decode([0], Sampling(max_new=5))[0].stopped


def test_markers_and_ids_past_the_tokenizer_are_never_written() -> None:
    small = Session(tiny()[0], None, MARKERS.__class__(500, 501, 502, 503, 505), rows=8)
    small.add_text(range(8), prompts(8))
    hot = Sampling(max_new=30, temperature=50.0, forbidden=tuple(range(100)))
    written = {i for each in small.decode(range(8), hot, seeds=range(8)) for i in each.ids}
    assert written <= set(range(100, 505)) - {500, 501, 502, 503}


def test_sampling_keeps_the_most_likely_tokens_only() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.3, 0.2]])).repeat(1000, 1)
    uniform = torch.linspace(0, 0.999, 1000).double()

    def chosen(**keys: float) -> list[float]:
        counts = torch.bincount(draw_token(logits, Sampling(temperature=1.0, **keys), uniform), minlength=4)
        return (counts / 1000).tolist()

    assert chosen() == pytest.approx([0.1, 0.4, 0.3, 0.2], abs=0.002)
    assert chosen(top_k=2) == pytest.approx([0, 4 / 7, 3 / 7, 0], abs=0.002)
    assert chosen(top_p=0.6) == pytest.approx([0, 4 / 7, 3 / 7, 0], abs=0.002)
    assert chosen(top_p=0.75) == pytest.approx([0, 4 / 9, 3 / 9, 2 / 9], abs=0.002)


@pytest.mark.parametrize("cells", [1, 300, 1 << 24])
def test_long_and_ragged_prefill_does_not_depend_on_how_it_is_cut(cells: int, monkeypatch) -> None:
    ids = [list(range(n)) for n in (300, 5, 120)]
    whole = session(3).append(range(3), [[Text(tuple(each))] for each in ids])
    monkeypatch.setattr(cache, "MASK_CELLS", cells)
    monkeypatch.setattr(cache, "BLOCK", 16)
    pieces = Session(*tiny(), MARKERS, rows=3, capacity=1)
    for row in (2, 0, 1):
        found = pieces.append([row], [[Text(tuple(ids[row]))]])[0]
        torch.testing.assert_close(found.hidden, whole[row].hidden, atol=1e-4, rtol=1e-4)


def test_the_cache_grows_by_blocks_and_copies_nothing_in_between() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(600, 1, 4, 16), torch.randn(600, 1, 2, 16), torch.randn(600, 1, 2, 16)
    held = cache.Cache(1, 1, 2, 16, capacity=cache.BLOCK)
    step, places = cache.Step(held), []
    for index in range(600):
        step.begin()
        found = step(0, q[index], k[index], v[index])
        step.at = step.at + 1
        places.append((held.capacity, held.keys[0].data_ptr()))
    assert [capacity for capacity, _ in dict.fromkeys(places)] == [256, 512, 768]
    mask = torch.ones(1, 1, 600, dtype=torch.bool)
    expected = cache.attend(q[-1:], k.transpose(0, 1), v.transpose(0, 1), mask)[0]
    torch.testing.assert_close(found, expected)


class _Made(TorchDispatchMode):
    """Counts the numbers of results that are new, not views of what there was."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in given:
                self.count += x.numel()
        return result


def test_a_token_costs_as_much_after_a_long_context_but_for_attention() -> None:
    counts = []
    for length in (20, 200, 1000):
        made = session()
        made.add_text([0], [list(range(100)) * (length // 100) + list(range(length % 100))])
        writer = _Writer(made, [0], Sampling(max_new=4), [()], [0])
        with torch.no_grad(), _Made() as watched:
            writer._feed(torch.tensor([MARKERS.bos]), 0)
        counts.append(watched.count)
    assert counts[0] == counts[1] == counts[2]


SETTINGS = SamplerSettings(steps=4)


def drawn_rows(pictures: list[list[int]]) -> tuple[Session, list]:
    """Rows with a prompt, some references (by seed), a closing text; and what each drawing may see (preset `paper`)."""
    made = session(len(pictures))
    rows = range(len(pictures))
    made.add_text(rows, [[5, 6, 7 + len(p)] for p in pictures])
    shown = made.add_pictures(rows, [[picture(s) for s in seeds] for seeds in pictures], joint=True)
    said = made.add_text(rows, [[8, 9, 10, 11]] * len(pictures))
    return made, [[*own, (b[0] + 1, b[1] - 2)] for own, b in zip(shown, said, strict=True)]


@pytest.mark.parametrize("tokens", [1, 50, 1 << 16])
def test_the_same_seed_draws_the_same_picture_in_any_batch(tokens: int, monkeypatch) -> None:
    monkeypatch.setattr(drawing, "DRAW_TOKENS", tokens)
    kinds, sizes, seeds = [[], [1], [2, 3], [1]], [(32, 48), (64, 32), (32, 48), (32, 48)], [4, 4, 5, 4]
    made, sees = drawn_rows(kinds)
    before = ([*made.lengths], [*made.rope])
    together = made.draw(range(4), sees, sizes, SETTINGS, seeds)
    assert (made.lengths, made.rope) == before
    assert [each.shape for each in together] == [(h, w, 3) for h, w in sizes]
    for row in range(4):
        alone, own = drawn_rows([kinds[row]])
        found = alone.draw([0], own, [sizes[row]], SETTINGS, [seeds[row]])[0]
        assert np.abs(found.astype(int) - together[row].astype(int)).max() <= 1
    other = made.draw([2], [sees[2]], [sizes[2]], SETTINGS, [6])[0]
    assert np.abs(other.astype(int) - together[2].astype(int)).max() > 1


@pytest.mark.parametrize("most", [1, 2])
def test_no_id_is_written_more_often_in_a_row_than_allowed(most: int) -> None:
    def longest(ids) -> int:
        return max(len(list(group)) for _, group in itertools.groupby(ids))

    rows = [[5, 6, 7], [8, 9], [3]]
    made = [session(3) for _ in range(2)]
    for each in made:
        each.add_text(range(3), rows)
    free = made[0].decode(range(3), Sampling(max_new=24, temperature=0.05), seeds=[1, 2, 3])
    held = made[1].decode(range(3), Sampling(max_new=24, temperature=0.05, max_run=most), seeds=[1, 2, 3])
    assert max(longest(each.ids) for each in free) > most
    assert max(longest(each.ids) for each in held) <= most


def test_guidance_hides_the_text_or_computes_it_anew_without_the_pictures() -> None:
    made, sees = drawn_rows([[1, 2], [], [3]])
    full, text, image = contexts(made, range(3), sees, branches=BRANCHES, keep_rope=True)
    assert (full.members, text.members, image.members) == ([0, 1, 2], [0, 1, 2], [0, 2])
    assert text.ranges[0] == [(sees[0][0][0], sees[0][3][1])]
    assert text.ranges[1] == []
    assert full.rope == text.rope == made.rope
    fresh = session()
    fresh.append([0], [[Text((5, 6, 9)), Gap(4), Text((8, 9, 10, 11))]])
    assert image.rope[0] == fresh.rope[0]
    assert image.ranges[0] == [(6, 9)]
    for a, b in zip(image.cache.keys, fresh.cache.keys, strict=True):
        torch.testing.assert_close(a[0, :11], b[0, :11], atol=1e-4, rtol=1e-4)


def test_a_branch_is_computed_only_where_it_is_needed(monkeypatch) -> None:
    made, sees = drawn_rows([[1], []])
    sequences = []
    decoder = tiny()[0].language_model.model
    original = type(decoder).forward
    monkeypatch.setattr(
        type(decoder), "forward", lambda self, h, *rest: sequences.append(len(h) // 8) or original(self, h, *rest)
    )

    def counted(**keys) -> list[int]:
        sequences.clear()
        made.draw([0, 1], sees, [(32, 48)] * 2, SamplerSettings(steps=4, shift=1.0, **keys), [1, 2])
        return sequences[-3:]

    # two rows, both with text to hide, one with a picture to hide
    assert counted() == [5, 5, 5]
    assert counted(image_scale=1.0) == [4, 4, 4]
    assert counted(text_scale=1.0) == [2, 2, 2]
    assert counted(text_scale=None) == [3, 3, 3]
    assert counted(text_scale=None, image_scale=1.0) == [2, 2, 2]
    assert counted(interval=(0.5, 0.9)) == [2, 5, 2]


def test_a_branch_without_pictures_is_left_out_where_it_equals_the_full_one() -> None:
    made = session()
    made.add_text([0], [[5, 6, 7]])
    made.add_pictures([0], [[picture(1)]], joint=True)
    after = made.add_text([0], [[8, 9]])[0]
    for sees, keep_rope, members in (
        ([(0, 5)], True, []),
        ([(0, 5)], False, [0]),
        ([(0, 5), after], True, [0]),
        (None, True, [0]),
    ):
        assert contexts(made, [0], [sees], branches=BRANCHES, keep_rope=keep_rope)[2].members == members


def test_pictures_of_different_sizes_never_share_a_vae_batch(monkeypatch) -> None:
    shapes = []
    for name in ("encode_moments", "decode"):
        original = getattr(FluxVae, name)
        monkeypatch.setattr(FluxVae, name, lambda vae, x, call=original: shapes.append(tuple(x.shape)) or call(vae, x))
    made = session(3)
    sizes = [(32, 48), (64, 32), (32, 48)]
    made.add_pictures(range(3), [[picture(n, *size)] for n, size in enumerate(sizes)], joint=True)
    assert sorted(shapes) == [(1, 3, 64, 32), (2, 3, 32, 48)]
    shapes.clear()
    made.draw(range(3), [None] * 3, sizes, SamplerSettings(steps=2), [1, 2, 3])
    assert sorted(shapes) == [(1, 16, 8, 4), (2, 16, 4, 6)]


def test_a_guided_picture_depends_on_itself_alone() -> None:
    torch.manual_seed(0)
    full, text, image = torch.randn(3, 4, 6, 64)
    for renorm in ("global", "channel", "text_channel"):
        settings = SamplerSettings(renorm=renorm)
        together = guide(full, text, image, settings)
        alone = [guide(f[None], t[None], i[None], settings)[0] for f, t, i in zip(full, text, image, strict=True)]
        torch.testing.assert_close(together, torch.stack(alone))


def test_guidance_by_pictures_alone_moves_away_from_what_is_drawn_without_them() -> None:
    full, image = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[0.0, 1.0]]])
    settings = SamplerSettings(text_scale=None, image_scale=2.5, renorm="text_channel")
    torch.testing.assert_close(guide(full, None, image, settings), torch.tensor([[[2.5, 3.5]]]))
    short = guide(full, None, image, SamplerSettings(text_scale=None, image_scale=2.5, renorm="global"))
    torch.testing.assert_close(short.norm(), full.norm())


def test_progress_counts_all_steps_of_all_sizes() -> None:
    made, sees = drawn_rows([[], []])
    calls = []
    made.draw([0, 1], sees, [(32, 32), (32, 48)], SETTINGS, [1, 2], progress=lambda *call: calls.append(call))
    assert calls == [(i, 6) for i in range(1, 7)]


def test_a_fork_goes_its_own_way() -> None:
    made, _ = drawn_rows([[1], [2]])
    lengths = [*made.lengths]
    fork = made.fork([1, 1])
    fork.add_text([0, 1], [[1], [2, 3]])
    assert made.lengths == lengths
    assert fork.lengths == [lengths[1] + 3, lengths[1] + 4]


@pytest.mark.parametrize(("size", "words"), [((33, 32), "multiples of 16"), ((32, 528), "at most 512")])
def test_a_size_that_the_model_cannot_draw_is_refused(size: tuple[int, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        session().draw([0], [None], [size], SETTINGS, [0])


@pytest.mark.parametrize("keys", [{"steps": 1}, {"shift": 0.0}, {"renorm": "loud"}, {"renorm_min": 2.0}])
def test_settings_out_of_range_are_refused(keys: dict) -> None:
    with pytest.raises(UserError, match=next(iter(keys))):
        SamplerSettings(**keys)
