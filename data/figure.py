"""The attention matrix of one sample as a figure, after the paper's Figure 6.

A row is a token that looks, a column a token that is looked at; the colour says what is looking. Segments are drawn
with sides that grow with the square root of their tokens, so that a sentence stays visible beside a picture.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from data.explain import kind_of, places_of
from unify_agent.interleave.segments import Document, Drawing, Picture, Text
from unify_agent.interleave.visibility import Range, Span, document_spans, visible_ranges

COLOURS = {
    "user": "#a9c8f0",
    "assistant": "#3f7fd6",
    "context": "#3fa66b",
    "vae": "#e88bb0",
    "vit": "#f2a33a",
    "drawing": "#8b93a3",
}
TEXT = "#1d2433"
LABELS = {
    "user": "user side, causal",
    "assistant": "assistant, causal, trained (CE)",
    "context": "recaption or caption, causal",
    "vae": "picture, VAE, full",
    "vit": "picture, ViT, full",
    "drawing": "drawing, restricted, trained (MSE)",
}


@dataclass(frozen=True)
class Piece:
    """A stretch of slots with one label and one kind."""

    start: int
    stop: int
    kind: str
    label: str


@dataclass(frozen=True)
class Block:
    """Slots `rows` that see slots `columns`; `causal`: only the past and themselves (rows and columns are the same)."""

    rows: Range
    columns: Range
    causal: bool = False


def pieces_of(document: Document) -> list[Piece]:
    """The stretches that are labelled: segments, cut where a named span (the recaption) begins and ends."""
    pieces = []
    references = 0
    for segment, (start, stop) in zip(document.segments, places_of(document), strict=True):
        kind = kind_of(segment)
        if isinstance(segment, Text):
            at = start
            for name, (a, b) in sorted(segment.spans.items(), key=lambda item: item[1]):
                if start + a > at:
                    pieces.append(Piece(at, start + a, kind, kind))
                pieces.append(Piece(start + a, start + b, "context", name))
                at = start + b
            if at < stop:
                pieces.append(Piece(at, stop, kind, segment.name or kind if not segment.loss else kind))
        elif isinstance(segment, Picture):
            references += 1
            pieces.append(Piece(start, stop, kind, segment.name or f"picture {references} {segment.use}"))
        elif isinstance(segment, Drawing):
            size = segment.slots // segment.copies
            for copy in range(segment.copies):
                label = "drawing" if segment.copies == 1 else f"drawing, copy {copy + 1}"
                pieces.append(Piece(start + copy * size, start + (copy + 1) * size, kind, label))
    return pieces


def blocks_of(spans: Sequence[Span]) -> list[Block]:
    """What is visible, as rectangles and triangles: together exactly the true cells of the mask."""
    blocks = []
    for span, ranges in zip(spans, visible_ranges(spans), strict=True):
        rows = (span.start, span.stop)
        blocks += [Block(rows, each) for each in ranges]
        blocks.append(Block(rows, rows, span.mode == "causal"))
    return blocks


def draw(documents: Sequence[Document]) -> bytes:
    """The figure as PNG; several documents stand as in one pack."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Polygon, Rectangle

    pieces: list[Piece] = []
    spans: list[Span] = []
    starts = [0]
    for number, document in enumerate(documents):
        at = starts[-1]
        pieces += [replace(each, start=each.start + at, stop=each.stop + at) for each in pieces_of(document)]
        spans += document_spans(document, at, number)
        starts.append(at + document.slots)
    slots = np.array([pieces[0].start, *(piece.stop for piece in pieces)], np.float64)
    shown = np.concatenate([[0.0], np.cumsum([np.sqrt(piece.stop - piece.start) for piece in pieces])])
    shown /= shown[-1]

    def place(slot: float) -> float:
        return float(np.interp(slot, slots, shown))

    figure = Figure(figsize=(11, 10.6), dpi=140)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.17, 0.04, 0.8, 0.83))
    for block in blocks_of(spans):
        for piece in pieces:
            top, bottom = max(piece.start, block.rows[0]), min(piece.stop, block.rows[1])
            if top >= bottom:
                continue
            y, height, colour = place(top), place(bottom) - place(top), COLOURS[piece.kind]
            left, right = place(block.columns[0]), place(block.columns[1])
            if block.causal:
                corners = [(left, y), (y, y), (y + height, y + height), (left, y + height)]
                axes.add_patch(Polygon(corners, facecolor=colour, linewidth=0))
            else:
                axes.add_patch(Rectangle((left, y), right - left, height, facecolor=colour, linewidth=0))
    for edge in shown:
        axes.axhline(edge, color="white", linewidth=0.8)
        axes.axvline(edge, color="white", linewidth=0.8)
    for edge in map(place, starts[1:-1]):
        axes.axhline(edge, color=TEXT, linewidth=1.2)
        axes.axvline(edge, color=TEXT, linewidth=1.2)
    axes.set(xlim=(0, 1), ylim=(1, 0), aspect="equal", anchor="NW", facecolor="#f2f4f7")
    middles = (shown[:-1] + shown[1:]) / 2
    labels = [f"{piece.label}  {piece.stop - piece.start}" for piece in pieces]
    axes.set_yticks(middles, labels, fontsize=8)
    axes.set_xticks(middles, labels, fontsize=8, rotation=60, ha="left", rotation_mode="anchor")
    axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
    for label, piece in zip([*axes.get_yticklabels(), *axes.get_xticklabels()], [*pieces, *pieces], strict=True):
        label.set_color(TEXT if piece.kind == "user" else COLOURS[piece.kind])
    for side in axes.spines.values():
        side.set_visible(False)
    kinds = [kind for kind in COLOURS if any(piece.kind == kind for piece in pieces)]
    handles = [Patch(color=COLOURS[kind], label=LABELS[kind]) for kind in kinds]
    axes.legend(handles=handles, loc="upper right", fontsize=9, frameon=True, framealpha=0.95)
    names = " and ".join(document.id for document in documents)
    caption = f"{names}: rows look at columns; {starts[-1]} slots, sides drawn as square roots"
    figure.text(0.01, 0.012, caption, fontsize=9, color="#5b667a", parse_math=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
