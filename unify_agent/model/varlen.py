"""Exact attention over spans by variable-length kernels: `segments` on a GPU in bfloat16 or float16.

A span is one sequence of queries, and its keys are the ranges of its past followed by itself, gathered. A `causal`
span is causal aligned at the end (its first query sees the whole past), `full` and `noise` spans see all their keys;
so a pack is two calls of a kernel that knows these two kinds. Cost: exactly the visible pairs, and memory for the
gathered keys (a pack of 40,000 tokens whose ten texts each look back gathers some 200,000 rows). Kernels: flash-attn
when it is installed, else torch's own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from unify_agent.errors import UserError
from unify_agent.interleave.visibility import Range, Span, visible_ranges
from unify_agent.model.attention import Attend, SegmentsAttention, Windows

Kernel = Callable[[Tensor, Tensor, Tensor, "Runs"], Tensor]
"""q [N, A, D], k and v [S, G, D], how they are cut -> [N, A, D]."""


@dataclass(frozen=True)
class Runs:
    """Sequences of one kind. `queries`: a range of the pack each; `keys`: their ranges of keys, one after another."""

    causal: bool
    queries: tuple[Range, ...]
    keys: tuple[Range, ...]
    query_ends: Tensor
    """int32 [runs + 1], cumulative numbers of queries."""
    key_ends: Tensor
    most_queries: int
    most_keys: int


class VarlenAttention:
    """An `Attend` over `spans`, which cover the pack. `kernel`: by default the fastest that is installed."""

    def __init__(self, spans: Sequence[Span], device: torch.device | str, kernel: Kernel | None = None) -> None:
        joined = _joined(spans)
        past = visible_ranges(joined)
        kinds = [[n for n, span in enumerate(joined) if (span.mode == "causal") == causal] for causal in (True, False)]
        self.runs = [
            _runs(causal, [joined[n] for n in numbers], [past[n] for n in numbers], device)
            for causal, numbers in zip((True, False), kinds, strict=True)
            if numbers
        ]
        self.kernel = kernel or best_kernel()

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found: list[tuple[Range, Tensor]] = []
        for runs in self.runs:
            (queries,) = Windows.apply(q, [runs.queries])
            (keys,), (values,) = Windows.apply(k, [runs.keys]), Windows.apply(v, [runs.keys])
            seen = self.kernel(queries, keys, values, runs)
            found += zip(runs.queries, seen.split([b - a for a, b in runs.queries]), strict=True)
        return torch.cat([rows for _, rows in sorted(found, key=lambda each: each[0])])


def segments(spans: Sequence[Span], length: int, like: Tensor) -> Attend:
    """The `segments` back end for a pack that is computed as `like` is: kernels of variable length where they run."""
    if like.is_cuda and like.dtype in (torch.bfloat16, torch.float16):
        return VarlenAttention(spans, like.device)
    return SegmentsAttention(spans, length)


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Neighbouring texts that see all before them are one causal run."""
    joined: list[Span] = []
    for span in spans:
        last = joined[-1] if joined else None
        plain = last is not None and last.document == span.document and last.stop == span.start
        if last is not None and plain and {last.mode, span.mode} == {"causal"} and last.sees is span.sees is None:
            joined[-1] = replace(last, stop=span.stop)
        else:
            joined.append(span)
    return joined


def _runs(causal: bool, spans: list[Span], past: list[Sequence[Range]], device: torch.device | str) -> Runs:
    keys = [[*before, (span.start, span.stop)] for span, before in zip(spans, past, strict=True)]
    queries = [span.stop - span.start for span in spans]
    lengths = [sum(b - a for a, b in ranges) for ranges in keys]

    def ends(counts: list[int]) -> Tensor:
        return torch.tensor([0, *counts]).cumsum(0).to(device, torch.int32, non_blocking=True)

    return Runs(
        causal,
        tuple((span.start, span.stop) for span in spans),
        tuple(each for ranges in keys for each in ranges),
        ends(queries),
        ends(lengths),
        max(queries),
        max(lengths),
    )


@cache
def best_kernel() -> Kernel:
    """flash-attn's, or torch's own. Raises UserError where there is neither."""
    if importlib.util.find_spec("flash_attn"):
        return flash_kernel
    if importlib.util.find_spec("torch.nn.attention.varlen"):
        return torch_kernel
    raise UserError(
        f"attention=segments on a GPU needs flash-attn or torch 2.11 (here: {torch.__version__}); "
        f"model.attention=flex needs neither"
    )


def torch_kernel(q: Tensor, k: Tensor, v: Tensor, runs: Runs) -> Tensor:
    """`torch.nn.attention.varlen.varlen_attn`: a GPU only, in half precision."""
    from torch.nn.attention.varlen import varlen_attn

    window = (-1, 0) if runs.causal else (-1, -1)
    sizes = (runs.query_ends, runs.key_ends, runs.most_queries, runs.most_keys)
    settings: dict[str, Any] = {"window_size": window}
    if "enable_gqa" in signature(varlen_attn).parameters:  # before, a kv head served several query heads unasked
        settings["enable_gqa"] = q.shape[1] != k.shape[1]
    out = varlen_attn(q, k, v, *sizes, **settings)
    assert isinstance(out, Tensor)  # and not with the sums of exponentials, which were not asked for
    return out


def flash_kernel(q: Tensor, k: Tensor, v: Tensor, runs: Runs) -> Tensor:
    """flash-attn's `flash_attn_varlen_func`, whose causal rule is aligned at the end too (2.1 or newer)."""
    from flash_attn import flash_attn_varlen_func

    sizes = (runs.query_ends, runs.key_ends, runs.most_queries, runs.most_keys)
    return flash_attn_varlen_func(q, k, v, *sizes, causal=runs.causal)
