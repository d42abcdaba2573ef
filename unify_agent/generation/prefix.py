"""Beginnings of texts that many rows have in common: computed once, then copied.

A text is causal and its rope ids count from the row's beginning, so keys and values of a beginning are the same in
every row that begins with it. What the agent is asked begins with the tools and the instructions, for every request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from unify_agent.generation.cache import Cache

LEAST = 64
"""Tokens that a shared beginning has at least; a forward of its own does not pay for a shorter one."""
KEPT = 4


@dataclass(frozen=True)
class Prefix:
    """The beginning of a text: its `ids` after the marker; row 0 of `cache` holds the marker and them."""

    ids: tuple[int, ...]
    cache: Cache


class Prefixes:
    """The last few beginnings, for the sessions of one model. `seen`: texts whose like may come again."""

    def __init__(self) -> None:
        self._held: list[Prefix] = []
        self.seen: list[tuple[int, ...]] = []

    def groups(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[int, list[int]]]:
        """`shared` of texts that rows begin with, as if those that were seen before were among them."""
        found = shared([*texts, *self.seen])
        self.seen = [*self.seen, *texts][-KEPT:]
        mine = [(common, [member for member in members if member < len(texts)]) for common, members in found]
        return [(common, members) for common, members in mine if members]

    def find(self, ids: tuple[int, ...]) -> Prefix | None:
        """The longest one that `ids` begin with, when it spares most of the work; None else."""
        found = [each for each in self._held if ids[: len(each.ids)] == each.ids]
        longest = max(found, key=lambda each: len(each.ids), default=None)
        return longest if longest is not None and 10 * len(longest.ids) >= 9 * len(ids) else None

    def keep(self, prefix: Prefix) -> None:
        """Remembers one, and forgets the oldest."""
        self._held = [*self._held, prefix][-KEPT:]


def shared(texts: Sequence[tuple[int, ...]]) -> list[tuple[int, list[int]]]:
    """(ids in common, members) of the groups of texts whose beginnings are worth computing once.

    The groups are those that leave the fewest tokens to compute, as when requests in two languages have the tools in
    common, and those in one language the instructions besides.
    """
    order = sorted(range(len(texts)), key=lambda i: texts[i])
    alike = [_alike(texts[a], texts[b]) for a, b in pairwise(order)]
    _, groups = _divided([len(texts[i]) for i in order], alike)
    found, at = [], 0
    for common, size in groups:
        if common:
            found.append((common, order[at : at + size]))
        at += size
    return found


def _alike(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _divided(lengths: list[int], alike: list[int]) -> tuple[int, list[tuple[int, int]]]:
    """Tokens to compute and (ids in common, members) of the best groups of sorted texts, neighbours being `alike`."""
    least = min(alike, default=0)
    common = least if least >= LEAST else 0
    together = sum(lengths) - common * (len(lengths) - 1)
    if max(alike, default=0) < max(LEAST, least + 1):
        return together, [(common, len(lengths))]
    cuts = [0, *(n for n, each in enumerate(alike, 1) if each == least), len(lengths)]
    parts = [_divided(lengths[a:b], alike[a : b - 1]) for a, b in pairwise(cuts)]
    apart = sum(cost for cost, _ in parts)
    if apart < together or not common:
        return apart, [group for _, groups in parts for group in groups]
    return together, [(common, len(lengths))]
