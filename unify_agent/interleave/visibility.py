"""Who sees whom: one rule, stated over token spans.

A document is a run of contiguous spans. A token sees

* inside its own span: the past and itself (`causal`), or everything (`full`, `noise`);
* outside it: earlier spans of its document that are not `noise`, cut down to `sees` when its span has one.

So nothing ever looks at a noised picture except that picture itself, and a picture under construction can be
limited to the recaption and the references (paper, Appendix B). BAGEL's split rule (facts: mask rules) is the
case without `sees`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from unify_agent.interleave.segments import Document, Drawing, Picture, Text

Mode = Literal["causal", "full", "noise"]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `start <= t < stop` of one document that follow one rule.

    `sees` holds the ranges of earlier tokens that this span may look at; None stands for the whole past.
    Positions are those of the pack.
    """

    start: int
    stop: int
    mode: Mode
    document: int = 0
    sees: tuple[Range, ...] | None = None

    def moved(self, by: int, document: int) -> Span:
        """The same span where its document starts `by` tokens later."""
        sees = None if self.sees is None else tuple((a + by, b + by) for a, b in self.sees)
        return replace(self, start=self.start + by, stop=self.stop + by, document=document, sees=sees)


def document_spans(document: Document, start: int = 0, number: int = 0) -> list[Span]:
    """The spans of a document that begins at slot `start`; the names that drawings see become ranges."""
    spans: list[Span] = []
    names: dict[str, list[Range]] = {}
    block: str | None = None
    for segment in document.segments:
        stop = start + segment.slots
        if isinstance(segment, Text):
            spans.append(Span(start, stop, "causal", number))
            for name, (a, b) in segment.spans.items():
                names.setdefault(name, []).append((start + a, start + b))
            if segment.name:
                names.setdefault(segment.name, []).append((start, stop))
        elif isinstance(segment, Picture):
            if segment.block is not None and segment.block == block:
                spans[-1] = Span(spans[-1].start, stop, "full", number)
            else:
                spans.append(Span(start, stop, "full", number))
            for called in {segment.name, segment.block} - {None}:
                names.setdefault(str(called), []).append((start, stop))
        elif isinstance(segment, Drawing):
            sees = None
            if segment.sees is not None:
                sees = tuple(sorted(r for name in segment.sees for r in names.get(name, ())))
            size = segment.slots // segment.copies
            for copy in range(segment.copies):
                spans.append(Span(start + copy * size, start + (copy + 1) * size, "noise", number, sees))
        if segment.slots:
            block = segment.block if isinstance(segment, Picture) else None
        start = stop
    return spans


def dense_mask(spans: Sequence[Span], length: int | None = None) -> np.ndarray:
    """The oracle: bool [length, length], `mask[q, k]` true where query q may attend to key k."""
    length = max((span.stop for span in spans), default=0) if length is None else length
    mask = np.zeros((length, length), dtype=bool)
    for query in spans:
        rows = slice(query.start, query.stop)
        for key in spans:
            if key.document == query.document and key.stop <= query.start and key.mode != "noise":
                mask[rows, key.start : key.stop] = True
        if query.sees is not None:
            allowed = np.zeros(length, dtype=bool)
            for start, stop in query.sees:
                allowed[start:stop] = True
            mask[rows] &= allowed
        own = np.ones((query.stop - query.start,) * 2, dtype=bool)
        mask[rows, rows] = np.tril(own) if query.mode == "causal" else own
    return mask


def visible_ranges(spans: Sequence[Span]) -> list[list[Range]]:
    """For each span, the merged ranges of *earlier* tokens that it sees (its own span is not among them)."""
    past: dict[int, list[Range]] = {}
    result = []
    for span in spans:
        seen = past.setdefault(span.document, [])
        ranges = list(seen) if span.sees is None else intersect(seen, sorted(span.sees))
        result.append(ranges)
        if span.mode != "noise":
            if seen and seen[-1][1] == span.start:
                seen[-1] = (seen[-1][0], span.stop)
            else:
                seen.append((span.start, span.stop))
    return result


def visible_pairs(spans: Sequence[Span]) -> int:
    """The number of true cells of `dense_mask`, without building it: what attention has to compute."""
    pairs = 0
    for span, ranges in zip(spans, visible_ranges(spans), strict=True):
        length = span.stop - span.start
        own = length * (length + 1) // 2 if span.mode == "causal" else length * length
        pairs += own + length * sum(stop - start for start, stop in ranges)
    return pairs


def intersect(left: Sequence[Range], right: Sequence[Range]) -> list[Range]:
    """What two sorted lists of ranges have in common, merged."""
    result: list[Range] = []
    for a, b in left:
        for c, d in right:
            start, stop = max(a, c), min(b, d)
            if start < stop:
                if result and start <= result[-1][1]:
                    result[-1] = (result[-1][0], max(result[-1][1], stop))
                else:
                    result.append((start, stop))
    return result
