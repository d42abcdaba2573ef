"""Who sees whom: every fast statement of the rule equals the rule said token by token."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layouts import RULES, documents, packs

from unify_agent.interleave.batch import pack
from unify_agent.interleave.segments import Document, Drawing, Picture, Text
from unify_agent.interleave.visibility import Span, dense_mask, document_spans, visible_pairs, visible_ranges


def said_plainly(spans: list[Span], length: int) -> np.ndarray:
    """The rule for one query and one key at a time."""
    owner = {token: span for span in spans for token in range(span.start, span.stop)}

    def may(q: int, k: int) -> bool:
        query, key = owner[q], owner[k]
        if query is key:
            return query.mode != "causal" or k <= q
        return (
            query.document == key.document
            and k < q
            and key.mode != "noise"
            and (query.sees is None or any(start <= k < stop for start, stop in query.sees))
        )

    return np.array([[may(q, k) for k in range(length)] for q in range(length)], dtype=bool)


@settings(max_examples=120, deadline=None)
@given(packs, st.sampled_from((1, 16)))
def test_the_dense_mask_is_the_rule(parts: list[Document], pad_to: int) -> None:
    batch = pack(parts, RULES, pad_to=pad_to)
    np.testing.assert_array_equal(dense_mask(batch.spans), said_plainly(batch.spans, batch.length))


@settings(max_examples=120, deadline=None)
@given(packs)
def test_ranges_and_pairs_say_the_same_as_the_mask(parts: list[Document]) -> None:
    batch = pack(parts, RULES)
    mask = dense_mask(batch.spans)
    assert visible_pairs(batch.spans) == mask.sum()
    for span, ranges in zip(batch.spans, visible_ranges(batch.spans), strict=True):
        assert all(a < b for a, b in ranges) and all(x[1] < y[0] for x, y in pairwise(ranges))
        past = np.zeros(batch.length, dtype=bool)
        for start, stop in ranges:
            past[start:stop] = True
        past[span.start : span.stop] = mask[span.start, span.start : span.stop]
        np.testing.assert_array_equal(mask[span.start], past)


@settings(max_examples=60, deadline=None)
@given(packs)
def test_spans_cover_the_pack_and_no_row_is_empty(parts: list[Document]) -> None:
    batch = pack(parts, RULES, pad_to=8)
    edges = [(span.start, span.stop) for span in batch.spans]
    assert edges[0][0] == 0 and edges[-1][1] == batch.length
    assert all(left[1] == right[0] for left, right in pairwise(edges))
    assert dense_mask(batch.spans).any(1).all()


@settings(max_examples=60, deadline=None)
@given(documents, documents)
def test_a_document_keeps_its_mask_wherever_it_stands(first: Document, second: Document) -> None:
    alone = document_spans(second)
    moved = document_spans(second, first.slots, 1)
    assert [span.moved(first.slots, 1) for span in alone] == moved
    both = dense_mask(pack([first, second], RULES).spans, first.slots + second.slots or 1)
    own = dense_mask(alone, second.slots)
    np.testing.assert_array_equal(
        both[first.slots : first.slots + second.slots, first.slots :][:, : second.slots], own
    )
    assert not both[first.slots :, : first.slots].any()


@settings(max_examples=60, deadline=None)
@given(documents)
def test_nothing_looks_at_a_noised_picture_but_itself(document: Document) -> None:
    spans = document_spans(document)
    mask = dense_mask(spans, document.slots)
    for span in spans:
        if span.mode == "noise":
            others = np.ones(document.slots, dtype=bool)
            others[span.start : span.stop] = False
            assert not mask[others, span.start : span.stop].any()


def test_pictures_of_one_block_see_each_other_and_others_do_not() -> None:
    pixels = np.zeros((16, 16, 3), np.uint8)
    joint = Document("j", tuple(Picture(pixels, "vae", 16, block="refs") for _ in range(2)))
    apart = Document("a", tuple(Picture(pixels, "vae", 16) for _ in range(2)))
    assert dense_mask(document_spans(joint)).all()
    np.testing.assert_array_equal(
        dense_mask(document_spans(apart)),
        np.kron(np.array([[1, 0], [1, 1]]), np.ones((3, 3), bool)).astype(bool),
    )


def test_a_drawing_that_sees_nothing_sees_itself() -> None:
    document = Document("x", (Text((5, 6)), Drawing(np.zeros((16, 16, 3), np.uint8), sees=())))
    mask = dense_mask(document_spans(document))
    assert mask[4:, 4:].all() and not mask[4:, :4].any()


@pytest.mark.parametrize("sees", [None, ("a",), ("inner",)])
def test_copies_of_a_drawing_share_their_context_and_not_each_other(sees: tuple[str, ...] | None) -> None:
    text = Text((5, 6), name="a", spans={"inner": (1, 3)})
    drawing = Drawing(np.zeros((16, 16, 3), np.uint8), sees=sees, copies=3)
    mask = dense_mask(document_spans(Document("x", (text, drawing))))
    context = {None: [1, 1, 1, 1], ("a",): [1, 1, 1, 1], ("inner",): [0, 1, 1, 0]}[sees]
    for copy in range(3):
        own = [1 if copy * 3 <= k < copy * 3 + 3 else 0 for k in range(9)]
        for row in range(4 + copy * 3, 7 + copy * 3):
            assert mask[row].astype(int).tolist() == context + own
