"""Keys and values of several sequences of different lengths, and attention over them.

Axes: R rows (sequences), T capacity in tokens, L new tokens of all rows packed, A query heads, G key/value
heads, D head dimension. A layer's cache is [R, T, G, D]; row r is filled up to `lengths[r]`. Keys are stored
after norm and rope (BAGEL, facts: inference). It is allocated ahead and grows by blocks, so appending a token
copies nothing.

Every query sees a prefix of its row: its past, and of the new tokens those up to itself (`causal` spans) or
up to the end of its own span (`full` spans). One number a query, its `limit`, therefore states the visibility
rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

BLOCK = 256
"""Tokens by which the capacity grows, at least; a larger cache grows by half of itself."""

MASK_CELLS = 1 << 24
"""Most query-key cells that one attention call may mask."""


class Cache:
    """`lengths[r]` tokens of row r are filled; what lies beyond is scratch."""

    def __init__(
        self,
        layers: int,
        rows: int,
        kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        capacity: int = BLOCK,
    ) -> None:
        shape = (rows, capacity, kv_heads, head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.lengths = [0] * rows

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def capacity(self) -> int:
        return self.keys[0].shape[1]

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` tokens a row."""
        have = self.capacity
        if tokens <= have:
            return
        extra = max(-(-(tokens - have) // BLOCK) * BLOCK, have // 2)
        for store in (self.keys, self.values):
            for layer, old in enumerate(store):
                grown = old.new_zeros(old.shape[0], have + extra, *old.shape[2:])
                grown[:, :have] = old
                store[layer] = grown

    def empty(self, rows: int) -> Cache:
        """An empty cache of the same kind."""
        _, _, heads, width = self.keys[0].shape
        like = self.keys[0]
        return Cache(len(self.keys), rows, heads, width, dtype=like.dtype, device=like.device)

    def select(self, rows: Sequence[int], lengths: Sequence[int] | None = None) -> Cache:
        """A copy of some rows (repeats allowed), cut to `lengths` when given."""
        kept = [self.lengths[r] for r in rows] if lengths is None else list(lengths)
        other = object.__new__(Cache)
        index = torch.as_tensor(list(rows), dtype=torch.int64, device=self.keys[0].device)
        room = max(-(-max(kept, default=0) // BLOCK), 1) * BLOCK
        other.keys, other.values = [], []
        for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
            for store in mine:
                copy = store.new_zeros(len(kept), room, *store.shape[2:])
                used = min(room, store.shape[1])
                copy[:, :used] = store[index, :used]
                theirs.append(copy)
        other.lengths = kept
        return other

    def put(self, rows: Sequence[int], other: Cache, theirs: Sequence[int], starts: Sequence[int]) -> None:
        """Copy what rows `theirs` of `other` hold from `starts` on into `rows`, whose lengths follow."""
        self.reserve(max((other.lengths[t] for t in theirs), default=0))
        for row, source, start in zip(rows, theirs, starts, strict=True):
            stop = other.lengths[source]
            for layer in range(len(self.keys)):
                self.keys[layer][row, start:stop] = other.keys[layer][source, start:stop]
                self.values[layer][row, start:stop] = other.values[layer][source, start:stop]
            self.lengths[row] = stop


@dataclass
class _Part:
    """Rows that attend together, padded to one width W: packed and padded positions of their tokens, limits
    [R, W].

    `windows` cuts the queries into (start, stop, most keys seen), each small enough for one mask.
    """

    packed: Tensor
    padded: Tensor
    rows: Tensor
    limits: Tensor
    windows: list[tuple[int, int, int]]
    masks: list[Tensor] = field(default_factory=list)

    def mask(self, start: int, stop: int, most: int) -> Tensor:
        return torch.arange(most, device=self.limits.device) < self.limits[:, start:stop, None]


class Prefill:
    """Attention of one packed forward: `counts[i]` new tokens of row `rows[i]` each, packed in that order.

    `limits` [L] is how many tokens of its row a query sees. Construction reserves room; a call stores a
    layer's keys and values, then attends; `commit` makes the new tokens part of the rows.
    """

    def __init__(self, cache: Cache, rows: Sequence[int], counts: Sequence[int], limits: Tensor) -> None:
        self.cache, self.rows, self.counts = cache, list(rows), list(counts)
        device = cache.keys[0].device
        past = [cache.lengths[r] for r in rows]
        self.totals = [p + n for p, n in zip(past, counts, strict=True)]
        cache.reserve(max(self.totals, default=0))
        self.row_of = torch.repeat_interleave(torch.tensor(self.rows), torch.tensor(self.counts)).to(device)
        self.at = torch.cat([torch.arange(p, t) for p, t in zip(past, self.totals, strict=True)]).to(device)
        self.plan = [self._part(part, limits.cpu()) for part in self._split()]
        cells = sum(part.limits[:, a:b].numel() * most for part in self.plan for a, b, most in part.windows)
        if cells <= MASK_CELLS:
            for part in self.plan:
                part.masks = [part.mask(*window) for window in part.windows]

    def _split(self) -> list[list[int]]:
        """Rows (as indices into `rows`) that attend together: of similar size, few enough for one mask."""
        order = sorted(range(len(self.rows)), key=lambda i: (self.counts[i], self.totals[i]))
        parts: list[list[int]] = []
        for i in order:
            if parts:
                members = [*parts[-1], i]
                queries, keys = self.counts[i], max(self.totals[m] for m in members)
                if len(members) * queries * keys <= MASK_CELLS and self.counts[members[0]] * 2 >= queries:
                    parts[-1] = members
                    continue
            parts.append([i])
        return parts

    def _part(self, members: list[int], limits: Tensor) -> _Part:
        starts = [0]
        for count in self.counts:
            starts.append(starts[-1] + count)
        width = max(self.counts[i] for i in members)
        packed = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in members])
        padded = torch.cat([torch.arange(self.counts[i]) + j * width for j, i in enumerate(members)])
        flat = torch.ones(len(members) * width, dtype=torch.int64)
        flat[padded] = limits[packed]
        limit = flat.view(len(members), width)
        step = max(1, MASK_CELLS // (len(members) * int(limit.max())))
        windows = [(a, min(a + step, width), int(limit[:, a : a + step].max())) for a in range(0, width, step)]
        device = self.row_of.device
        rows = torch.tensor([self.rows[i] for i in members], device=device)
        return _Part(packed.to(device), padded.to(device), rows, limit.to(device), windows)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [L, A, D], k and v [L, G, D] of the new tokens -> [L, A, D]."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys[self.row_of, self.at] = k.to(keys.dtype)
        values[self.row_of, self.at] = v.to(values.dtype)
        out = torch.empty_like(q)
        for part in self.plan:
            query = q.new_zeros(part.limits.numel(), *q.shape[1:])
            query[part.padded] = q[part.packed]
            query = query.view(*part.limits.shape, *q.shape[1:])
            found = torch.empty_like(query)
            for number, (a, b, most) in enumerate(part.windows):
                mask = part.masks[number] if part.masks else part.mask(a, b, most)
                found[:, a:b] = attend(query[:, a:b], keys[part.rows, :most], values[part.rows, :most], mask)
            out[part.packed] = found.flatten(0, 1)[part.padded]
        return out

    def commit(self) -> None:
        for row, total in zip(self.rows, self.totals, strict=True):
            self.cache.lengths[row] = total


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q [R, N, A, D], k and v [R, K, G, D], mask [R, N, K] true where visible -> [R, N, A, D]."""
    groups = q.shape[2] // k.shape[2]
    k, v = (x.transpose(1, 2).to(q.dtype).repeat_interleave(groups, dim=1) for x in (k, v))
    return scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask[:, None]).transpose(1, 2)


class Step:
    """Attention of decoding: one new token for every row of the cache, again and again.

    The query heads of a group are laid out as queries, so the keys are read once and never repeated. `begin`
    opens a step: it makes the token at `at` [R] visible; the caller moves `at`. Room is made block by block.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.at = torch.tensor(cache.lengths, device=cache.keys[0].device)
        self.most = max(cache.lengths)
        self.rows = torch.arange(cache.rows, device=self.at.device)
        self._mask()

    def _mask(self) -> None:
        """`bias` [R, 1, 1, capacity]: 0 where a row is filled, else -inf."""
        like = self.cache.keys[0]
        filled = torch.arange(self.cache.capacity, device=like.device) < self.at[:, None]
        self.bias = torch.zeros(self.cache.rows, 1, 1, self.cache.capacity, device=like.device, dtype=like.dtype)
        self.bias.masked_fill_(~filled[:, None, None], -torch.inf)

    def begin(self) -> None:
        if self.most == self.cache.capacity:
            self.cache.reserve(self.most + 1)
            self._mask()
        self.bias[self.rows, 0, 0, self.at] = 0
        self.most += 1

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [R, A, D], k and v [R, G, D] -> [R, A, D]."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys[self.rows, self.at] = k.to(keys.dtype)
        values[self.rows, self.at] = v.to(values.dtype)
        rows, heads, width = q.shape
        query = q.to(keys.dtype).view(rows, k.shape[1], heads // k.shape[1], width)
        most = self.most
        found = scaled_dot_product_attention(
            query,
            keys[:, :most].transpose(1, 2),
            values[:, :most].transpose(1, 2),
            attn_mask=self.bias[..., :most],
        )
        return found.reshape(rows, heads, width).to(q.dtype)
