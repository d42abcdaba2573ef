"""Beginnings that rows share are computed once, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from generation_tools import MARKERS, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from unify_agent.generation import prefix
from unify_agent.generation.prefix import LEAST, Prefixes, shared
from unify_agent.generation.session import Session
from unify_agent.generation.text import Sampling

TOOLS, ENGLISH, CHINESE = (tuple(range(first, first + size)) for first, size in ((0, 90), (100, 80), (200, 70)))
REQUESTS = [
    (*TOOLS, *ENGLISH, 7, 8), (*TOOLS, *CHINESE, 5), (*TOOLS, *ENGLISH, 7, 9, 9), (3, 4), (*TOOLS, *CHINESE, 6),
]  # fmt: skip


def session(rows: int, prefixes: Prefixes | None = None) -> Session:
    return Session(tiny()[0], None, MARKERS, rows=rows, prefixes=prefixes)


class Counting:
    """Counts the tokens that a model computes."""

    def __init__(self, monkeypatch) -> None:
        self.tokens = 0
        inner = tiny()[0].language_model.model
        forward = inner.forward

        def counted(hidden, *rest):
            self.tokens += len(hidden)
            return forward(hidden, *rest)

        monkeypatch.setattr(inner, "forward", counted)


def plain(monkeypatch, rows: int) -> Session:
    monkeypatch.setattr(prefix, "LEAST", 10**9)
    return session(rows)


def test_sharing_changes_nothing_but_the_work(monkeypatch) -> None:
    order = [3, 0, 4, 1, 2]
    counted = Counting(monkeypatch)
    one = session(5)
    ranges = one.add_text(order, REQUESTS)
    spared = counted.tokens
    other = plain(monkeypatch, 5)
    assert other.add_text(order, REQUESTS) == ranges
    assert (one.rope, one.lengths, one.history) == (other.rope, other.lengths, other.history)
    assert spared < 0.6 * (counted.tokens - spared)
    for row in range(5):
        for a, b in zip(one.cache.keys + one.cache.values, other.cache.keys + other.cache.values, strict=True):
            torch.testing.assert_close(a[row, : one.lengths[row]], b[row, : one.lengths[row]], atol=1e-5, rtol=1e-5)
    for sampling in (Sampling(max_new=12), Sampling(max_new=12, temperature=1.0)):
        written = [each.fork(order).decode(range(5), sampling, seeds=range(5)) for each in (one, other)]
        assert written[0] == written[1]


def test_a_beginning_is_kept_for_the_next_session(monkeypatch) -> None:
    kept = Prefixes()
    counted = Counting(monkeypatch)
    costs = []
    for request in (0, 2, 0, 2):
        before = counted.tokens
        session(1, kept).add_text([0], [REQUESTS[request]])
        costs.append(counted.tokens - before)
    assert costs[0] == len(REQUESTS[0]) + 2 and costs[2] < 10 and costs[3] < 10


def test_only_empty_rows_share(monkeypatch) -> None:
    one, other = session(2), plain(monkeypatch, 2)
    monkeypatch.undo()
    for each in (one, other):
        each.add_text([0], [[1, 2, 3]])
        if each is other:
            monkeypatch.setattr(prefix, "LEAST", 10**9)
        each.add_text([0, 1], [REQUESTS[0], REQUESTS[2]])
    assert one.lengths == other.lengths and one.history == other.history
    written = [each.decode([0, 1], Sampling(max_new=8)) for each in (one, other)]
    assert written[0] == written[1]


def test_short_requests_are_computed_as_ever(monkeypatch) -> None:
    """What tiny models are asked has fewer tokens than a shared beginning must have."""
    counted = Counting(monkeypatch)
    session(2).add_text([0, 1], [TOOLS[: LEAST - 1], (*TOOLS[: LEAST - 1], 5)])
    assert counted.tokens == 2 * LEAST + 3


@settings(deadline=None, max_examples=150)
@given(st.lists(st.lists(st.integers(0, 2), max_size=9).map(tuple), min_size=1, max_size=9), st.integers(1, 3))
def test_groups_are_disjoint_have_their_beginning_in_common_and_never_cost_more(texts, least) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix, "LEAST", least)
        groups = shared(texts)
    members = [member for _, group in groups for member in group]
    assert len(set(members)) == len(members) and set(members) <= set(range(len(texts)))
    cost = sum(map(len, texts))
    for common, group in groups:
        assert common >= least and len({texts[member][:common] for member in group}) == 1
        assert all(len(texts[member]) >= common for member in group)
        cost -= common * (len(group) - 1)
    whole = min(map(len, texts), default=0)
    whole = next((n for n in range(whole, 0, -1) if len({text[:n] for text in texts}) == 1), 0)
    assert cost <= sum(map(len, texts)) - (whole if whole >= least else 0) * (len(texts) - 1)
