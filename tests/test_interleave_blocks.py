"""Block tables and both attention back ends: what they say about random packs is what the dense oracle says."""

import numpy as np
import pytest
import torch
from datasets_tools import grammar, picture, pixels
from golden_model import golden_batch, golden_model, relative
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layouts import RULES, packs
from torch.nn.attention.flex_attention import create_block_mask

from unify_agent.interleave.batch import generator, pack
from unify_agent.interleave.blocks import BlockTables, block_tables
from unify_agent.interleave.layout import PARTS, PRESETS, Exchange, Preset, drop_conditions, lay_out
from unify_agent.interleave.segments import Document
from unify_agent.interleave.visibility import Span, dense_mask
from unify_agent.model.attention import DenseAttention, FlexAttention, SegmentsAttention, block_mask


def cells(tables: BlockTables) -> np.ndarray:
    """bool [length, length], the rule that the kernel applies inside blocks."""
    t, at = tables, np.arange(len(tables.span))
    own = (t.span[:, None] == t.span) & (at <= t.reach[:, None])
    return own | ((t.document[:, None] == t.document) & t.seen[t.span][:, t.run])


def visited(tables: BlockTables) -> np.ndarray:
    """bool [length, length], what a kernel computes: full blocks whole, partial ones cell by cell."""

    def spread(blocks: np.ndarray) -> np.ndarray:
        return blocks.repeat(tables.size, 0).repeat(tables.size, 1)[: len(tables.span), : len(tables.span)]

    return spread(tables.full) | (spread(tables.partial) & cells(tables))


@settings(max_examples=150, deadline=None)
@given(packs, st.sampled_from((1, 16, 40)), st.sampled_from((1, 4, 7, 16)))
def test_the_tables_say_what_the_dense_mask_says(parts: list[Document], pad_to: int, size: int) -> None:
    batch = pack(parts, RULES, pad_to=pad_to)
    mask = dense_mask(batch.spans)
    tables = block_tables(batch.spans, batch.length, size)
    np.testing.assert_array_equal(cells(tables), mask)
    np.testing.assert_array_equal(visited(tables), mask)
    rows = tables.partial | tables.full
    assert rows.any(1).all() and not (tables.partial & tables.full).any()


def assert_equal_to_torch(spans: list[Span], length: int, size: int) -> None:
    mask = torch.from_numpy(dense_mask(spans, length))
    theirs = create_block_mask(lambda b, h, q, k: mask[q, k], None, None, length, length, "cpu", size)
    ours = block_mask(block_tables(spans, length, size), "cpu")
    for name in ("kv", "q"):
        for kind in ("", "full_"):
            for part in ("num_blocks", "indices"):
                left, right = (getattr(each, f"{kind}{name}_{part}") for each in (ours, theirs))
                assert torch.equal(left, right), (kind, name, part)
    assert ours.seq_lengths == theirs.seq_lengths and ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    at = torch.arange(length)
    assert torch.equal(ours.mask_mod(None, None, at[:, None], at), mask)


@settings(max_examples=25, deadline=None)
@given(packs, st.sampled_from((1, 32)), st.sampled_from((8, 16)))
def test_the_tables_are_those_of_create_block_mask(parts: list[Document], pad_to: int, size: int) -> None:
    batch = pack(parts, RULES, pad_to=pad_to)
    assert_equal_to_torch(batch.spans, batch.length, size)


def trajectories(preset: Preset, dropped: float = 0.0, samples: int = 2) -> list[Document]:
    answer = "<think>so</think><recaption>an owl</recaption> end"
    exchanges = [Exchange("draw an owl", grammar().encode("look")), Exchange("write", grammar().encode(answer))]
    made = []
    for number in range(samples):
        shown = [picture(each) for each in range(number % 3)]
        for part in PARTS[preset]:
            document = lay_out(
                f"{number}/{part}",
                exchanges,
                shown,
                picture(9),
                grammar=grammar(),
                pixels=pixels(),
                preset=preset,
                part=part,
                context="request" if number % 4 == 3 else "recaption",
                copies=1 + number % 2,
            )
            rng = generator(0, 0, str(number))
            made.append(drop_conditions(document, rng, preset, text=dropped, vit=dropped, vae=dropped))
    return made


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dropped", [0.0, 0.5, 1.0])
def test_packs_of_trajectories_have_the_tables_of_create_block_mask(preset: Preset, dropped: float) -> None:
    batch = pack(trajectories(preset, dropped, samples=5), RULES, pad_to=128)
    assert_equal_to_torch(batch.spans, batch.length, 128)
    np.testing.assert_array_equal(cells(block_tables(batch.spans, batch.length)), dense_mask(batch.spans))


def qkv(length: int, heads: int = 4, groups: int = 2) -> tuple[torch.Tensor, ...]:
    made = torch.Generator().manual_seed(length)
    return tuple(torch.randn(length, n, 16, generator=made) for n in (heads, groups, groups))


@settings(max_examples=60, deadline=None)
@given(packs, st.sampled_from((1, 16)), st.sampled_from((3, 8, 256)))
def test_segments_attention_equals_the_oracle(parts: list[Document], pad_to: int, chunk: int) -> None:
    batch = pack(parts, RULES, pad_to=pad_to)
    q, k, v = qkv(batch.length)
    expected = DenseAttention(dense_mask(batch.spans))(0, q, k, v)
    torch.testing.assert_close(SegmentsAttention(batch.spans, batch.length, chunk)(0, q, k, v), expected)


@pytest.mark.parametrize("preset", PRESETS)
def test_flex_attention_equals_the_oracle(preset: Preset) -> None:
    batch = pack(trajectories(preset, 0.3), RULES, pad_to=128)
    q, k, v = qkv(batch.length)
    expected = DenseAttention(dense_mask(batch.spans))(0, q, k, v)
    torch.testing.assert_close(FlexAttention(batch.spans, batch.length, "cpu")(0, q, k, v), expected)


@torch.no_grad()
def test_the_model_computes_the_same_with_flex_attention() -> None:
    model, (batch, latents) = golden_model(), golden_batch()
    expected = model(batch, latents)
    found = model(batch, latents, FlexAttention(batch.spans, batch.length, "cpu"))
    assert relative(found.hidden, expected.hidden) < 1e-5
    assert float(found.ce) == pytest.approx(float(expected.ce), rel=1e-5)
    assert float(found.mse) == pytest.approx(float(expected.mse), rel=1e-5)


@settings(max_examples=40, deadline=None)
@given(packs, st.integers(2, 40))
def test_padding_is_a_document_of_its_own(parts: list[Document], pad_to: int) -> None:
    batch = pack(parts, RULES, pad_to=pad_to)
    used = sum(document.slots for document in parts)
    mask = cells(block_tables(batch.spans, batch.length, 16))
    assert not mask[used:, :used].any() and not mask[:used, used:].any()
    assert mask.any(1).all()


def test_thousands_of_short_documents_cost_little() -> None:
    spans = [Span(5 * n, 5 * n + 5, "causal", n) for n in range(8304)]
    tables = block_tables(spans, 41520)
    assert sum(value.nbytes for value in vars(tables).values() if isinstance(value, np.ndarray)) < 2**20
    assert not tables.full.any() and tables.partial.sum() == 325 + 260
