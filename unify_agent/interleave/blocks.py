"""Block tables of a pack's attention, for FlexAttention, built straight from its spans.

The mask is cut into blocks of `size` x `size` cells. A kernel visits only the blocks in which something is visible,
and asks for single cells only in those that are not visible throughout. The generic builder evaluates the mask cell by
cell; here every span adds its rectangles of visible cells to the counts of the blocks that they overlap. Price: spans x
visible ranges + blocks squared (41,520 tokens: 325 x 325), never length squared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unify_agent.interleave.visibility import Span, visible_ranges

BLOCK = 128
"""FlexAttention's own block size."""


@dataclass(frozen=True)
class BlockTables:
    """Which blocks a kernel visits, and for each token what decides about a cell.

    Query q sees key k when both lie in one span and `k <= reach[q]`, or both lie in one document and
    `seen[span[q], run[k]]`. A run is a stretch of one document's tokens that are visible to the same rows.
    """

    size: int
    partial: np.ndarray
    """bool [blocks, blocks], rows are queries: some cells are visible."""
    full: np.ndarray
    """bool [blocks, blocks]: all are."""
    span: np.ndarray
    """int32 [length]."""
    document: np.ndarray
    """int32 [length]."""
    run: np.ndarray
    """int32 [length], counted from 0 within the document."""
    reach: np.ndarray
    """int32 [length], the last key of its own span that a query sees."""
    seen: np.ndarray
    """bool [spans, runs], false for runs of the span itself."""


def block_tables(spans: Sequence[Span], length: int, size: int = BLOCK) -> BlockTables:
    """The tables of a pack whose spans cover its `length` slots one after another."""
    start = np.array([span.start for span in spans])
    stop = np.array([span.stop for span in spans])
    causal = np.array([span.mode == "causal" for span in spans])
    past = visible_ranges(spans)
    many = np.array([len(ranges) for ranges in past])
    ranges = np.array([each for ranges in past for each in ranges], dtype=np.int64).reshape(-1, 2)

    counts = _counts(start, stop, causal, many, ranges, -(-length // size), size)
    full = counts == size * size
    _, first, document = np.unique([span.document for span in spans], return_index=True, return_inverse=True)
    borders = np.unique(np.concatenate([start, stop, ranges.ravel()]))
    base = np.searchsorted(borders, start[first])[document]
    """For each span, the first run of its document among all runs."""
    last = np.searchsorted(borders, stop) - base
    rows = np.repeat(np.arange(len(spans)), many)
    steps = np.zeros((len(spans), last.max() + 1), dtype=np.int32)
    np.add.at(steps, (rows, np.searchsorted(borders, ranges[:, 0]) - base[rows]), 1)
    np.add.at(steps, (rows, np.searchsorted(borders, ranges[:, 1]) - base[rows]), -1)

    own = np.repeat(np.arange(len(spans)), stop - start)
    run = np.repeat(np.arange(len(borders) - 1), np.diff(borders)) - base[own]
    reach = np.where(causal[own], np.arange(length), stop[own] - 1)
    return BlockTables(
        size=size,
        partial=(counts > 0) & ~full,
        full=full,
        span=own.astype(np.int32),
        document=document[own].astype(np.int32),
        run=run.astype(np.int32),
        reach=reach.astype(np.int32),
        seen=np.cumsum(steps, axis=1)[:, :-1] > 0,
    )


def _counts(
    start: np.ndarray,
    stop: np.ndarray,
    causal: np.ndarray,
    many: np.ndarray,
    ranges: np.ndarray,
    blocks: int,
    size: int,
) -> np.ndarray:
    """Visible cells of every block [blocks, blocks]; `many` of the `ranges` belong to each span."""
    # Spans cut at the borders of the rows of blocks: each piece is `height` queries of one row.
    pieces = (stop - 1) // size - start // size + 1
    of, nth = _repeated(pieces)
    row = start[of] // size + nth
    top = np.maximum(start[of], row * size)
    height = np.minimum(stop[of], (row + 1) * size) - top
    # Keys of a piece: its span's past, and its own span up to the piece (causal) or all of it.
    piece, nth = _repeated(many[of])
    past = (np.cumsum(many) - many)[of[piece]] + nth
    low = np.concatenate([ranges[past, 0], start[of]])
    high = np.concatenate([ranges[past, 1], np.where(causal[of], top, stop[of])])
    rows = np.concatenate([row[piece], row])
    heights = np.concatenate([height[piece], height])
    kept = low < high
    low, high, rows, heights = low[kept], high[kept], rows[kept], heights[kept]

    # A rectangle overlaps its first and its last column of blocks in part and those between by their whole width.
    left, right = low // size, (high - 1) // size
    wide = right > left
    width = blocks + 1
    triangle = height[causal[of]]
    at = [rows * width + left, (rows * width + right)[wide], row[causal[of]] * (width + 1)]
    cells = [
        heights * (np.minimum(high, (left + 1) * size) - low),
        (heights * (high - right * size))[wide],
        triangle * (triangle + 1) // 2,
    ]
    ends = np.bincount(np.concatenate(at), np.concatenate(cells), minlength=blocks * width)
    between = heights[wide] * size
    steps = np.bincount(
        np.concatenate([(rows * width + left + 1)[wide], (rows * width + right)[wide]]),
        np.concatenate([between, -between]),
        minlength=blocks * width,
    )
    return (ends.reshape(blocks, width) + steps.reshape(blocks, width).cumsum(1))[:, :blocks]


def _repeated(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index i `counts[i]` times, and how many times it was there before: [2, 0, 1] -> [0, 0, 2], [0, 1, 0]."""
    of = np.repeat(np.arange(len(counts)), counts)
    return of, np.arange(len(of)) - (np.cumsum(counts) - counts)[of]
