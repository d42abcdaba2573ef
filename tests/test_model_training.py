"""What training relies on: exact fast attention, losses as sums, packs that lack a kind of token, autocast, fresh
weights."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from golden_model import golden_batch, golden_config, golden_model, relative
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from unify_agent.interleave.batch import PackRules, pack
from unify_agent.interleave.segments import Document, Drawing, Picture, Text
from unify_agent.interleave.visibility import Span, dense_mask
from unify_agent.model.attention import DenseAttention, SegmentsAttention, scaled_dot_product
from unify_agent.model.bagel import Bagel
from unify_agent.model.config import TINY
from unify_agent.model.losses import weighted_cross_entropy
from unify_agent.model.vae import FluxVae, encode_batch
from unify_agent.model.varlen import Runs, VarlenAttention, flash_kernel, torch_kernel

RULES = PackRules(bos=500, eos=501, start_of_image=502, end_of_image=503, latent_side=32, vit_side=20)


@st.composite
def packs(draw) -> list[Span]:
    spans, at = [], 0
    for document in range(draw(st.integers(1, 3))):
        first = at
        for _ in range(draw(st.integers(1, 6))):
            length = draw(st.integers(1, 23))
            mode = draw(st.sampled_from(["causal", "full", "noise"]))
            sees = None
            if mode == "noise" and at > first and draw(st.booleans()):
                ends = sorted(draw(st.lists(st.integers(first, at), min_size=2, max_size=4)))
                sees = tuple((a, b) for a, b in zip(ends[::2], ends[1::2], strict=False) if a < b)
            spans.append(Span(at, at + length, mode, document, sees))
            at += length
    return spans


def sequences(q, k, v, runs: Runs):
    """What a kernel of variable length computes: each sequence alone, a causal one aligned at the end."""
    cuts = runs.query_ends.tolist(), runs.key_ends.tolist()
    assert [cuts[0][-1], cuts[1][-1]] == [len(q), len(k)]
    out = []
    for (a, b), (c, d) in zip(pairwise(cuts[0]), pairwise(cuts[1]), strict=True):
        assert b - a <= runs.most_queries and d - c <= runs.most_keys
        mask = torch.ones(b - a, d - c, dtype=torch.bool)
        out.append(scaled_dot_product(q[a:b], k[c:d], v[c:d], mask.tril(d - c - b + a) if runs.causal else mask))
    return torch.cat(out)


@settings(max_examples=40, deadline=None)
@given(spans=packs(), chunk=st.sampled_from([1, 7, 16, 64]), heads=st.sampled_from([(4, 2), (3, 1), (2, 2)]))
def test_attention_by_segments_equals_the_dense_oracle_forwards_and_backwards(spans, chunk, heads):
    length = spans[-1].stop
    draw = torch.Generator().manual_seed(length)
    shapes = [(length, heads[0], 8), (length, heads[1], 8), (length, heads[1], 8)]
    values = [torch.randn(s, generator=draw, dtype=torch.float64) for s in shapes]
    gradient = torch.randn(shapes[0], generator=draw, dtype=torch.float64)
    results = []
    by_chunks, by_sequences = SegmentsAttention(spans, length, chunk), VarlenAttention(spans, "cpu", sequences)
    for attend in (DenseAttention(dense_mask(spans, length)), by_chunks, by_sequences):
        leaves = [v.clone().requires_grad_() for v in values]
        out = attend(0, *leaves)
        out.backward(gradient)
        results.append([out, *(leaf.grad for leaf in leaves)])
    for theirs, *ours in zip(*results, strict=True):
        assert all(torch.allclose(theirs, each, atol=1e-10) for each in ours)


def test_gpu_kernels_are_told_which_sequences_are_causal(monkeypatch):
    """Neither runs here: stand-ins with their signatures compute the same from what they are told."""

    def told(q, k, v, query_ends, key_ends, most_queries, most_keys, causal):
        return sequences(q, k, v, Runs(causal, (), (), query_ends, key_ends, most_queries, most_keys))

    def varlen_attn(*inputs, window_size, enable_gqa):
        assert enable_gqa and window_size in ((-1, 0), (-1, -1))
        return told(*inputs, causal=window_size == (-1, 0))

    flash = ModuleType("flash_attn")
    flash.flash_attn_varlen_func = told
    monkeypatch.setitem(sys.modules, "flash_attn", flash)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    spans = [Span(0, 5, "causal"), Span(5, 9, "full"), Span(9, 12, "causal"), Span(12, 18, "noise", 0, ((2, 9),))]
    q, k, v = torch.randn(18, 4, 8), torch.randn(18, 2, 8), torch.randn(18, 2, 8)
    expected = DenseAttention(dense_mask(spans, 18))(0, q, k, v)
    for kernel in (torch_kernel, flash_kernel):
        torch.testing.assert_close(VarlenAttention(spans, "cpu", kernel)(0, q, k, v), expected)


def test_a_chunk_meets_only_keys_that_it_may_see():
    spans = [
        Span(0, 1000, "causal"),
        Span(1000, 1018, "noise", 0, ((10, 20), (40, 50))),
        Span(1018, 1036, "noise", 0, ((10, 20), (40, 50))),
    ]
    attend = SegmentsAttention(spans, 1036, chunk=256)
    assert attend.chunks[-1].keys == ((10, 20), (40, 50), (1000, 1036))
    assert sum(c.pairs for c in attend.chunks) < 1000 * 1000 * 0.65


def test_a_large_picture_is_cut_into_long_chunks_without_masks():
    attend = SegmentsAttention([Span(0, 300, "causal"), Span(300, 2500, "full"), Span(2500, 2600, "causal")], 2600)
    pictures = [n for n, chunk in enumerate(attend.chunks) if chunk.spans == (1,)]
    assert max(attend.sizes[n] for n in pictures) == 1024 and all(attend.allowed(n).all() for n in pictures)
    assert max(size for n, size in enumerate(attend.sizes) if n not in pictures) <= 256


def test_spans_with_a_gap_are_refused():
    with pytest.raises(ValueError, match="cover"):
        SegmentsAttention([Span(0, 3, "causal"), Span(4, 6, "causal")], 6)


@pytest.mark.parametrize("count", [0, 1, 13])
@pytest.mark.parametrize("chunk", [4, 64])
def test_cross_entropy_by_chunks_equals_the_plain_one(count, chunk):
    draw = torch.Generator().manual_seed(count)
    hidden = torch.randn(count, 8, generator=draw, requires_grad=True)
    head = torch.randn(30, 8, generator=draw, requires_grad=True)
    labels = torch.randint(0, 30, (count,), generator=draw)
    weights = torch.rand(count, generator=draw)
    plain = (F.cross_entropy(hidden @ head.T, labels, reduction="none") * weights).sum()
    expected = torch.autograd.grad(3 * plain, (hidden, head))
    ours, tokens = weighted_cross_entropy(hidden, head, labels, weights, chunk)
    found = torch.autograd.grad(3 * ours, (hidden, head))
    assert torch.allclose(ours, plain, rtol=1e-5) and tokens.shape == (count,) and not tokens.requires_grad
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor had that an operation made."""

    numbers = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numbers = max(self.numbers, out.numel())
        return out


def test_cross_entropy_never_has_all_logits_and_has_one_backward_pass():
    hidden, head = torch.randn(600, 8, requires_grad=True), torch.randn(1000, 8, requires_grad=True)
    labels, weights = torch.randint(0, 1000, (600,)), torch.rand(600)
    with Largest() as largest:
        loss, _ = weighted_cross_entropy(hidden, head, labels, weights, chunk=50)
        loss.backward(retain_graph=True)
    assert largest.numbers == 50 * 1000
    with pytest.raises(RuntimeError, match="one backward pass"):
        loss.backward()


def test_cross_entropy_of_bfloat16_adds_its_chunks_up_in_float32():
    """In bfloat16 two hundred and fifty chunks would lose ten times as much."""
    draw = torch.Generator().manual_seed(0)
    hidden, head = (torch.randn(rows, 16, generator=draw).bfloat16() for rows in (4000, 50))
    labels, weights = torch.randint(50, (4000,), generator=draw), torch.rand(4000, generator=draw)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        leaf = head.to(dtype, copy=True).requires_grad_()
        loss, _ = weighted_cross_entropy(hidden.to(dtype), leaf, labels, weights, chunk=16)
        found.append((loss.detach(), *torch.autograd.grad(loss, leaf)))
    assert found[1][0].dtype == torch.float32 and found[1][0] == pytest.approx(float(found[0][0]), rel=1e-3)
    assert relative(found[1][1].float(), found[0][1]) < 0.004


def picture(seed: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def documents() -> dict[str, Document]:
    text = Text((7, 8, 9), loss=True)
    return {
        "text": Document("text", (text,)),
        "no loss": Document("no loss", (Text((7, 8)),)),
        "vit": Document("vit", (Picture(picture(0, 28, 42), "vit", 14), text)),
        "drawing": Document("drawing", (text, Drawing(picture(1, 32, 48), copies=2))),
        "all": Document(
            "all",
            (
                Picture(picture(0, 28, 42), "vit", 14),
                text,
                Picture(picture(2, 48, 32), "vae", 16),
                Drawing(picture(1, 32, 48), copies=2),
            ),
        ),
    }


@pytest.fixture(scope="module")
def vae() -> FluxVae:
    return FluxVae(golden_config().vae).eval()


@pytest.mark.parametrize("names", [("text",), ("no loss",), ("vit",), ("drawing",), ("all", "text"), ()])
def test_whatever_a_pack_lacks_every_trained_parameter_gets_a_gradient(names, vae):
    batch = pack([documents()[n] for n in names], RULES, pad_to=8)
    model = golden_model()
    sums = model(batch, encode_batch(vae, batch))
    (sums.ce + sums.mse).backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and bool(torch.isfinite(parameter.grad).all()), name
    if not names:
        assert sums.ce.item() == sums.mse.item() == 0
        assert all(not p.grad.any() for p in model.parameters() if p.requires_grad)
    if "vit" not in names and "all" not in names:
        assert not model.connector.fc1.weight.grad.any()


def test_losses_of_packed_documents_are_those_of_each_alone(vae):
    alone, docs = [], [documents()["all"], documents()["vit"], documents()["drawing"]]
    model = golden_model()
    for group in [[d] for d in docs] + [docs]:
        batch = pack(group, RULES)
        alone.append(model(batch, encode_batch(vae, batch)))
    *each, together = alone
    assert relative(together.ce, sum(s.ce for s in each)) <= 1e-5
    assert relative(together.mse, sum(s.mse for s in each)) <= 1e-5
    assert relative(together.hidden, torch.cat([s.hidden for s in each])) <= 1e-5


def test_autocast_stays_close_to_float32_and_keeps_losses_in_it():
    batch, latents = golden_batch()
    model = golden_model()
    exact = model(batch, latents)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(batch, latents)
    (half.ce + half.mse).backward()
    assert half.ce.dtype == half.mse.dtype == torch.float32
    assert relative(half.hidden, exact.hidden) < 2e-2
    assert relative(half.ce, exact.ce) < 2e-3
    assert relative(half.mse, exact.mse) < 2e-3


def test_a_model_in_bfloat16_computes_too():
    batch, latents = golden_batch()
    sums = golden_model().bfloat16()(batch, latents)
    assert relative(sums.hidden, golden_model()(batch, latents).hidden) < 3e-2


def test_the_shift_moves_the_timesteps():
    batch, latents = golden_batch()
    model = golden_model(1.0)
    one = model(batch, latents).mse
    model.config = replace(model.config, timestep_shift=4.0)
    assert model(batch, latents).mse.item() != one.item()


def test_the_tiny_preset_stays_below_10_mb_in_bfloat16():
    assert 2 * sum(p.numel() for p in Bagel(TINY).parameters()) < 10e6
