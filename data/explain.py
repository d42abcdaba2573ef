"""`python -m data explain ROOT ID`: one sample as it is trained: its segments, their losses, and who sees whom.

Where the layout makes several documents of a sample, each is shown; its own id shows one of them alone. With `--png`
the attention matrix is drawn as in the paper's Figure 6, by spans, so that its size costs nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from data.check import printable
from data.samples import add_source_arguments, console, open_source
from unify_agent.errors import UserError, nearest
from unify_agent.interleave.grammar import STRUCTURE_TAGS, Grammar
from unify_agent.interleave.segments import Document, Drawing, Gap, Picture, Segment, Text, Unusable, text_loss_weight
from unify_agent.interleave.visibility import Range, Span, document_spans, visible_pairs, visible_ranges

EXCERPT = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m data explain`."""
    add_source_arguments(parser)
    parser.add_argument("id", metavar="ID", help="id of the sample, as `python -m data check` prints it")
    parser.add_argument("--tag-weight", type=float, default=3.0, metavar="W",
                        help="factor on structure tags, loss.special_token_weight (default 3)")  # fmt: skip
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the attention matrix")


def main(args: argparse.Namespace) -> None:
    """`python -m data explain`."""
    source = open_source(args)
    samples = source.by_sample()
    indices = samples.get(args.id) or [index for index, name in enumerate(source.ids()) if name == args.id]
    if not indices:
        unusable = next((each for each in source.unusable if each.id == args.id), None)
        if unusable is not None:
            raise UserError(f"{args.id}: cannot be used: {unusable.detail or unusable.reason}")
        hint = nearest(args.id, list(samples)) if len(samples) < 100_000 else ""
        raise UserError(f"{args.root}: no sample {args.id!r}{hint}")
    try:
        documents = [source.outline(index) for index in indices]
    except Unusable as error:
        raise UserError(f"{args.id}: cannot be used: {error}") from None
    for document in documents:
        show(document, source.context.grammar, args.tag_weight, console())
    print(f"layout {source.context.preset}, transforms and tokenizer of {args.model}")
    if args.png is not None:
        from data.figure import draw
        from unify_agent.files import write_bytes

        write_bytes(args.png, draw(documents))
        print(f"attention matrix: {args.png}")


@dataclass(frozen=True)
class Run:
    """Neighbouring trained tokens of one weight: their text and number."""

    weight: float
    text: str
    tokens: int


def runs(segment: Text, grammar: Grammar, tag_weight: float) -> list[Run]:
    """The trained tokens of a text and what each weighs, end marker included; the same rule as in packing."""
    if not segment.loss:
        return []
    tags = {grammar.tag_ids[tag] for tag in STRUCTURE_TAGS}
    weight = text_loss_weight(segment.ids)
    grouped: list[tuple[bool, list[int]]] = []
    for label in (*segment.ids, grammar.eos):
        if not grouped or grouped[-1][0] != (label in tags):
            grouped.append((label in tags, []))
        grouped[-1][1].append(label)
    return [Run(weight * (tag_weight if tag else 1.0), grammar.decode(ids), len(ids)) for tag, ids in grouped]


def kind_of(segment: Segment) -> str:
    """What a segment is, in a word."""
    if isinstance(segment, Text):
        return "assistant" if segment.loss else "context" if segment.role == "context" else "user"
    if isinstance(segment, Picture):
        return segment.use
    return "drawing" if isinstance(segment, Drawing) else "gap"


def show(document: Document, grammar: Grammar, tag_weight: float, console: Console) -> None:
    """Print everything about a document."""
    spans = document_spans(document)
    table = Table("#", "segment", "name", "slots", "tokens", "rope", "loss", "sees", "content", box=box.SIMPLE_HEAD)
    for column in table.columns[:-1]:
        column.no_wrap = True
    for number in (0, 3, 4, 5):
        table.columns[number].justify = "right"
    for row in rows(document, spans, grammar, tag_weight):
        table.add_row(*row)
    console.print(f"{printable(document.id)}: {document.slots} slots", highlight=False, markup=False)
    console.print(table, highlight=False, markup=False)
    trained = Table("#", "weight", "tokens", "trained on", box=box.SIMPLE_HEAD)
    total = 0.0
    for number, segment in enumerate(document.segments, 1):
        if isinstance(segment, Text):
            for run in runs(segment, grammar, tag_weight):
                trained.add_row(str(number), f"{run.weight:.4f}", str(run.tokens), excerpt(run.text, EXCERPT * 2))
                total += run.weight * run.tokens
    console.print("Text losses (CE): weights of single tokens, before they are divided by the sum of a whole step's")
    console.print(trained, highlight=False, markup=False)
    patches = sum(s.slots - 2 * s.copies for s in document.segments if isinstance(s, Drawing))
    pairs = visible_pairs(spans)
    console.print(
        f"sum of CE weights {total:.3f}; MSE on {patches} patches, all alike; "
        f"{pairs} visible pairs, {pairs / document.slots**2:.0%} of the full matrix",
        highlight=False,
    )


def rows(
    document: Document, spans: Sequence[Span], grammar: Grammar, tag_weight: float
) -> Iterator[tuple[str, ...]]:
    """The cells of every segment."""
    places = places_of(document)
    ranges = visible_ranges(spans)
    rope = 0
    for number, (segment, (start, stop)) in enumerate(zip(document.segments, places, strict=True), 1):
        positions, name, loss = str(rope), "", ""
        if isinstance(segment, Gap):
            yield str(number), "gap", "", "", "0", f"{rope}", "", "", "a picture that was dropped"
            rope += segment.rope
            continue
        at = next(k for k, span in enumerate(spans) if span.start <= start < span.stop)
        if isinstance(segment, Text):
            positions = f"{rope}-{rope + segment.slots - 1}"
            rope += segment.slots
            name = ", ".join([*([segment.name] if segment.name else []), *segment.spans])
            content = excerpt(grammar.decode(segment.ids), EXCERPT)
            if segment.loss:
                found = runs(segment, grammar, tag_weight)
                loss = f"CE {sum(run.tokens for run in found)} x {text_loss_weight(segment.ids):.3f}"
                tags = sum(run.tokens for run in found if run.weight > text_loss_weight(segment.ids) * 1.0001)
                loss += f" ({tags} tags x {tag_weight:g})" if tags else ""
        else:
            rope += isinstance(segment, Picture)
            copies = segment.copies if isinstance(segment, Drawing) else 1
            name = (segment.name or "") if isinstance(segment, Picture) else "target"
            grid = f"{segment.grid[0]} x {segment.grid[1]} patches of {segment.patch}"
            content = grid + (f", {copies} noised copies" if copies > 1 else "")
            loss = f"MSE {segment.slots - 2 * copies}" if isinstance(segment, Drawing) else ""
        span = spans[at]
        own = {"causal": "its own past", "full": "itself", "noise": "itself"}[span.mode]
        if span.mode == "full" and (span.start, span.stop) != (start, stop):
            own = "its block " + told([(span.start, span.stop)], places, document)
        earlier = told(ranges[at], places, document)
        yield (
            str(number), kind_of(segment), name, f"{start}-{stop - 1}", str(segment.slots), positions, loss,
            f"{earlier}; {own}" if earlier else own, content,
        )  # fmt: skip


def places_of(document: Document) -> list[Range]:
    """Slots of every segment."""
    ends = np.cumsum([0, *(segment.slots for segment in document.segments)]).tolist()
    return list(pairwise(ends))


def told(ranges: Sequence[Range], places: Sequence[Range], document: Document) -> str:
    """Ranges of slots in words: the numbers of whole segments, and named or counted parts of others."""
    whole: list[int] = []
    parts: list[str] = []
    for number, ((start, stop), segment) in enumerate(zip(places, document.segments, strict=True), 1):
        for low, high in ranges:
            a, b = max(start, low), min(stop, high)
            if (a, b) == (start, stop) and start < stop:
                whole.append(number)
            elif a < b:
                named = segment.spans if isinstance(segment, Text) else {}
                name = next((name for name, span in named.items() if span == (a - start, b - start)), "slots")
                parts.append(f"{name} of {number} ({a}-{b - 1})")
    return ", ".join([*_joined(whole), *parts])


def _joined(numbers: Sequence[int]) -> list[str]:
    """1, 2, 3, 5 -> 1-3, 5."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found]


def excerpt(text: str, most: int) -> str:
    """A text on one line, its middle left out when it is long."""
    line = printable(text.replace("\n", "⏎"))
    return line if len(line) <= most else f"{line[: most // 2]} … {line[-(most // 2 - 3) :]}"
