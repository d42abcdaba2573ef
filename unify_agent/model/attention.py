"""Who attends to whom, computed: one oracle and two training back ends, `segments` and `flex`.

An attention is a callable `attend(layer, q, k, v)` with q [L, A, D], k and v [L, G, D] (after norm and rope) -> [L,
A, D]; kv head g serves the A/G query heads from g*A/G on; the scale is 1/sqrt(D). Generation brings its own callable,
backed by a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unify_agent.interleave.blocks import BlockTables, block_tables
from unify_agent.interleave.visibility import Range, Span, visible_ranges

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]

SHARED_PAIRS = 16 * 1024 * 1024
"""Masks are kept for all layers as long as they have no more cells than this, else built anew in every call."""


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """q [N, A, D], k and v [S, G, D], mask additive or boolean [N, S] or None -> [N, A, D]."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    if mask is not None:
        mask = mask[None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=groups > 1)[0].transpose(0, 1)


class DenseAttention:
    """The oracle: one boolean mask [L, L] over everything."""

    def __init__(self, mask: Tensor | np.ndarray) -> None:
        self.mask = torch.as_tensor(mask)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product(q, k, v, self.mask.to(q.device))


@dataclass(frozen=True)
class _Chunk:
    """Queries [start, stop) and the ranges of keys that at least one of them sees."""

    start: int
    stop: int
    keys: tuple[Range, ...]
    spans: tuple[int, ...]

    @property
    def pairs(self) -> int:
        return (self.stop - self.start) * sum(b - a for a, b in self.keys)


class SegmentsAttention:
    """Exact attention over spans, chunk by chunk: a chunk of queries meets only the keys that it may see.

    A chunk has at most `chunk` queries, all of one document and all drawings or none, so the masks stay narrow; a part
    of one picture, which needs no mask, four times as many. Cost: the sum over chunks of queries x visible keys;
    nothing is ever length squared.
    """

    def __init__(self, spans: Sequence[Span], length: int, chunk: int = 256) -> None:
        self.spans = list(spans)
        if [span.start for span in spans] + [length] != [0, *(span.stop for span in spans)]:
            raise ValueError(f"the spans do not cover the {length} slots one after another")
        self.past = visible_ranges(self.spans)
        self.chunks = list(self._cut(chunk))
        self.sizes = [chunk.stop - chunk.start for chunk in self.chunks]
        self.windows = [chunk.keys for chunk in self.chunks]
        self.shared = sum(c.pairs for c in self.chunks) <= SHARED_PAIRS
        self._masks: dict[tuple[int, torch.dtype, torch.device], Tensor | None] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        dtype, device = q.dtype, q.device.type
        if dtype == torch.bfloat16 and device == "cpu":  # its backward pass is slower there than the float32 one
            q, k, v = q.float(), k.float(), v.float()
        with torch.autocast(device, enabled=False):
            queries = q.split(self.sizes)
            keys, values = Windows.apply(k, self.windows), Windows.apply(v, self.windows)
            out = torch.cat(
                [
                    scaled_dot_product(*qkv, self._mask(i, q))
                    for i, qkv in enumerate(zip(queries, keys, values, strict=True))
                ]
            )
        return out.to(dtype)

    def _cut(self, size: int) -> Iterator[_Chunk]:
        """Cuts the pack into chunks; long spans are split, short neighbours of one document and kind are joined."""
        pieces: list[tuple[int, int, int]] = []  # span number, start, stop

        def flush() -> Iterator[_Chunk]:
            if pieces:
                ranges = [r for n, a, b in pieces for r in self._keys(n, b)]
                yield _Chunk(pieces[0][1], pieces[-1][2], _merged(ranges), tuple(n for n, _, _ in pieces))
                pieces.clear()

        for number, span in enumerate(self.spans):
            start = span.start
            while start < span.stop:
                if pieces:
                    last, room = self.spans[pieces[0][0]], size - (start - pieces[0][1])
                    if room <= 0 or last.document != span.document or (last.mode == "noise") != (span.mode == "noise"):
                        yield from flush()
                if pieces:
                    room = size - (start - pieces[0][1])
                else:
                    room = 4 * size if span.mode != "causal" and span.stop - start > size else size
                stop = min(span.stop, start + room)
                pieces.append((number, start, stop))
                start = stop
        yield from flush()

    def _keys(self, number: int, stop: int) -> list[Range]:
        span = self.spans[number]
        return [*self.past[number], (span.start, stop if span.mode == "causal" else span.stop)]

    def _mask(self, i: int, like: Tensor) -> Tensor | None:
        key = (i, like.dtype, like.device)
        if key in self._masks:
            return self._masks[key]
        allowed = self.allowed(i)
        mask = None
        if not allowed.all():
            mask = torch.zeros(allowed.shape, dtype=like.dtype)
            mask.masked_fill_(torch.from_numpy(~allowed), -torch.inf)
            mask = mask.to(like.device, non_blocking=True)
        if self.shared:
            self._masks[key] = mask
        return mask

    def allowed(self, i: int) -> np.ndarray:
        """bool [queries, keys] of chunk i, keys in the order of its ranges."""
        chunk = self.chunks[i]
        position = np.concatenate([np.arange(a, b) for a, b in chunk.keys])
        allowed = np.zeros((chunk.stop - chunk.start, len(position)), dtype=bool)
        for number in chunk.spans:
            span = self.spans[number]
            start, stop = max(span.start, chunk.start), min(span.stop, chunk.stop)
            rows = slice(start - chunk.start, stop - chunk.start)
            seen = np.zeros(len(position), dtype=bool)
            for a, b in self.past[number]:
                seen |= (position >= a) & (position < b)
            own = (position >= span.start) & (position < span.stop)
            allowed[rows] = seen | own
            if span.mode == "causal":
                allowed[rows] &= seen | (position <= np.arange(start, stop)[:, None])
        return allowed


class Windows(torch.autograd.Function):
    """The rows of x [L, ...] that each window (a list of ranges) holds. Windows overlap, so the backward pass adds
    them up in one tensor, where slicing would make and add one of full length for every window."""

    @staticmethod
    def forward(ctx, x: Tensor, windows: Sequence[Sequence[Range]]) -> tuple[Tensor, ...]:
        ctx.windows, ctx.shape = windows, x.shape
        return tuple(torch.cat([x[a:b] for a, b in ranges]) for ranges in windows)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None]:
        dtype = grads[0].dtype
        total = torch.zeros(ctx.shape, dtype=torch.promote_types(dtype, torch.float32), device=grads[0].device)
        for ranges, grad in zip(ctx.windows, grads, strict=True):
            at = 0
            for a, b in ranges:
                total[a:b] += grad[at : at + b - a]
                at += b - a
        return total.to(dtype), None


def _merged(ranges: list[Range]) -> tuple[Range, ...]:
    result: list[Range] = []
    for a, b in sorted(ranges):
        if result and a <= result[-1][1]:
            result[-1] = (result[-1][0], max(b, result[-1][1]))
        else:
            result.append((a, b))
    return tuple(result)


class FlexAttention:
    """FlexAttention (one fused kernel on a GPU) over block tables that come from the spans.

    A CPU runs its forward pass, uncompiled and with a mask of length squared; it has no backward pass there (torch
    2.13). On a GPU the length should be a multiple of 128 (`Loader(pad_to=128)`).
    """

    def __init__(self, spans: Sequence[Span], length: int, device: torch.device | str) -> None:
        self.mask = block_mask(block_tables(spans, length), device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        grouped = q.shape[1] > k.shape[1]
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        flex = _flex(compiled=q.is_cuda)
        return flex(q, k, v, block_mask=self.mask, enable_gqa=grouped)[0].transpose(0, 1)


def block_mask(tables: BlockTables, device: torch.device | str) -> BlockMask:
    """What FlexAttention takes, equal to `create_block_mask` of the same rule."""
    from torch.nn.attention.flex_attention import BlockMask

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(device, non_blocking=True)

    def ordered(blocks: np.ndarray) -> tuple[Tensor, Tensor]:
        """How many blocks each row visits [1, 1, rows], and their columns, those first [1, 1, rows, rows]."""
        columns = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
        return tensor(blocks.sum(1, dtype=np.int32)[None, None]), tensor(columns[None, None])

    span, document, run = tensor(tables.span), tensor(tables.document), tensor(tables.run)
    reach, seen = tensor(tables.reach), tensor(tables.seen)

    def visible(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        own = (span[q] == span[k]) & (k <= reach[q])
        return own | ((document[q] == document[k]) & seen[span[q], run[k]])

    # In this order: what each row of blocks visits, and, for the backward pass, what each column is visited by.
    partial, full = tables.partial, tables.full
    rows, full_rows, columns, full_columns = (ordered(blocks) for blocks in (partial, full, partial.T, full.T))
    length, size = len(tables.span), tables.size
    return BlockMask(
        (length, length), *rows, *full_rows, *columns, *full_columns, BLOCK_SIZE=(size, size), mask_mod=visible
    )


@cache
def _flex(compiled: bool) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    if not compiled:
        return flex_attention
    # wrapped: selective checkpointing sees the compiled kernel and keeps what it returned; an older torch computes it
    # twice
    wrap = "wrap_inductor_compiled_regions"
    return torch.compile(flex_attention, options={wrap: True} if hasattr(torch._inductor.config, wrap) else None)
