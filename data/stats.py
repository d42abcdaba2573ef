"""`python -m data stats ROOT`: lengths, pictures, turns, tags, languages, and the packs that an epoch will make of it.

Nothing is decoded. With `--out` the figures go into stats.json and stats.png.
"""

from __future__ import annotations

import argparse
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from data.samples import add_source_arguments, add_worker_argument, console, open_source, over_samples
from unify_agent.datasets.folder import TrajectorySource
from unify_agent.datasets.indexed import IndexedSource
from unify_agent.datasets.parquet import PackedTrajectorySource
from unify_agent.datasets.sources import count_reasons
from unify_agent.errors import UserError
from unify_agent.files import write_bytes, write_json
from unify_agent.interleave.grammar import TAGS
from unify_agent.interleave.packing import TOO_LONG, Limits, make_plan
from unify_agent.interleave.segments import Picture, Text, Unusable

TOKENS = ("text without loss", "text with loss", "ViT", "VAE", "drawing")
PERCENTILES = (0, 10, 50, 90, 99, 100)
BLUE, SOFT = "#2f6fdb", "#5b667a"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m data stats`."""
    limits = Limits()
    add_source_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write stats.json and stats.png there")
    parser.add_argument("--expected-tokens", type=int, default=limits.expected_tokens, metavar="N",
                        help="a pack is full from here on (default %(default)s)")  # fmt: skip
    parser.add_argument("--max-tokens", type=int, default=limits.max_tokens, metavar="N",
                        help="hard limit of a pack (default %(default)s)")  # fmt: skip
    parser.add_argument("--max-tokens-per-sample", type=int, default=limits.max_tokens_per_sample, metavar="N",
                        help="longer samples are skipped (default %(default)s)")  # fmt: skip
    parser.add_argument("--packs-per-step", type=int, default=8, metavar="N", help="ranks x accumulation (default 8)")
    add_worker_argument(parser)


def main(args: argparse.Namespace) -> None:
    """`python -m data stats`."""
    limits = Limits(
        args.expected_tokens, args.max_tokens, args.max_tokens_per_sample, packs_per_step=args.packs_per_step
    )
    source = open_source(args)
    if not len(source):
        raise UserError(f"{args.root}: no sample of it can be used; see python -m data check {args.root}")
    samples = list(over_samples(source, look, args.workers, "reading"))
    stats = summarise(source, samples, limits)
    show(stats, console())
    if args.out is not None:
        write_json(args.out / "stats.json", stats)
        write_bytes(args.out / "stats.png", plot(stats))
        print(f"{args.out / 'stats.json'}, stats.png")


@dataclass(frozen=True)
class Sample:
    """What counts of one document of a sample. `tokens` as in TOKENS; `gone`: why it cannot be read any more."""

    tokens: tuple[int, ...] = (0,) * len(TOKENS)
    pictures: int = 0
    turns: int = 0
    tags: tuple[int, ...] = (0,) * len(TAGS)
    language: str = ""
    stop: str = ""
    gone: str = ""


def look(source: IndexedSource, index: int) -> Sample:
    """Measure one document."""
    try:
        document = source.outline(index)
        record = source.record(index) if isinstance(source, TrajectorySource | PackedTrajectorySource) else None
    except Unusable as error:
        return Sample(gone=error.reason)
    tokens: Counter[str] = Counter()
    tags: Counter[str] = Counter()
    names = {source.context.grammar.tag_ids[tag]: tag for tag in TAGS}
    for segment in document.segments:
        if isinstance(segment, Text):
            tokens[TOKENS[segment.loss]] += segment.slots
            tags.update(names[token] for token in segment.ids if token in names)
        elif isinstance(segment, Picture):
            tokens["ViT" if segment.use == "vit" else "VAE"] += segment.slots
        else:
            tokens["drawing"] += segment.slots
    pictures = [s for s in document.segments if isinstance(s, Picture)]
    uses = Counter(segment.use for segment in pictures)
    return Sample(
        tokens=tuple(tokens[kind] for kind in TOKENS),
        pictures=max(uses.values(), default=0),
        turns=sum(isinstance(s, Text) and s.loss for s in document.segments),
        tags=tuple(tags[tag] for tag in TAGS),
        language=record.language if record is not None else "",
        stop=record.stop if record is not None else "",
    )


def summarise(source: IndexedSource, samples: Sequence[Sample], limits: Limits) -> dict[str, Any]:
    """All figures, ready for JSON. `samples`: what `look` says of each document. Lengths are those of documents; what a
    sample has of pictures and turns is told by its first, which is never the repeated one."""
    slots = np.array([source.slots(index) for index in range(len(source))])
    pairs = np.array([source.pairs(index) for index in range(len(source))])
    plan = make_plan(source.ids(), slots, pairs, limits, seed=0, epoch=0)
    packs = [pack for pack in plan.packs if pack]
    totals = np.array([sample.tokens for sample in samples]).sum(0)
    by_sample = source.by_sample()
    firsts = [samples[indices[0]] for indices in by_sample.values()]
    reasons = Counter(count_reasons(source.unusable))
    for indices in by_sample.values():
        reasons.update(sorted({samples[index].gone for index in indices} - {""})[:1])
    too_long = {source.samples[index][1].id for index, _ in plan.skipped}
    reasons.update({TOO_LONG: len(too_long)} if too_long else {})
    return {
        "source": source.name,
        "layout": source.context.preset,
        "samples": len(by_sample),
        "documents": len(samples),
        "unusable": dict(reasons.most_common()),
        "categories": dict(Counter(each.rpartition("/")[0] or "." for each in by_sample).most_common()),
        "tokens": dict(zip(TOKENS, totals.tolist(), strict=True)),
        "length": {f"p{p}": int(np.percentile(slots, p)) for p in PERCENTILES} | {"mean": float(slots.mean())},
        "pictures": _counted(sample.pictures for sample in firsts),
        "turns": _counted(sample.turns for sample in firsts),
        "languages": _counted(sample.language or "unknown" for sample in firsts),
        "stops": _counted(sample.stop or "unknown" for sample in firsts),
        "tags": dict(zip(TAGS, np.array([sample.tags for sample in samples]).sum(0).tolist(), strict=True)),
        "packing": {
            "expected_tokens": limits.expected_tokens,
            "max_tokens": limits.max_tokens,
            "packs_per_step": limits.packs_per_step,
            "packs": len(packs),
            "steps": plan.steps,
            "fill": plan.fill,
            "worst_over_mean": plan.worst_over_mean,
        },
        "histograms": {
            "length": _histogram(slots, (0, int(slots.max()))),
            "fill": _histogram(np.array([slots[pack].sum() / limits.max_tokens for pack in packs]), (0, 1)),
        },
    }


def _size(stats: Mapping[str, Any]) -> str:
    """How many samples, and how many documents where a sample has several."""
    samples, documents = stats["samples"], stats["documents"]
    return f"{samples} samples" + (f" in {documents} documents" if documents > samples else "")


def _counted(values: Any) -> dict[str, int]:
    return {str(key): number for key, number in sorted(Counter(values).items())}


def _histogram(values: np.ndarray, limits: tuple[int, int]) -> dict[str, list[float]]:
    counts, edges = np.histogram(values, bins=40, range=limits)
    return {"counts": counts.tolist(), "edges": edges.tolist()}


def show(stats: Mapping[str, Any], console: Console) -> None:
    """The figures as tables."""
    left_out = sum(stats["unusable"].values())
    told = f"{stats['source']}: {_size(stats)}, layout {stats['layout']}; {left_out} left out"
    console.print(told, highlight=False, markup=False)
    total = sum(stats["tokens"].values())
    table = Table("tokens", "number", "share", box=box.SIMPLE)
    for kind, number in stats["tokens"].items():
        table.add_row(kind, f"{number:,}", f"{number / max(total, 1):.1%}")
    console.print(table, highlight=False)
    length = "  ".join(f"{name} {value:,.0f}" for name, value in stats["length"].items())
    rows = {"length in tokens": length}
    for name in ("pictures", "turns", "languages", "stops", "tags", "unusable"):
        rows[name] = "  ".join(f"{key}: {number}" for key, number in stats[name].items())
    packing = stats["packing"]
    rows["packs at the budget"] = (
        f"{packing['packs']} of at most {packing['max_tokens']:,} tokens in {packing['steps']} steps of "
        f"{packing['packs_per_step']}; fill {packing['fill']:.1%}, worst over mean {packing['worst_over_mean']:.3f}"
    )
    table = Table("", "", box=box.SIMPLE, show_header=False)
    for name, text in rows.items():
        if text:
            table.add_row(name, text)
    console.print(table, highlight=False, markup=False)


def plot(stats: Mapping[str, Any]) -> bytes:
    """The figures as a PNG of six panels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 8.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3).ravel()
    packing = stats["packing"]
    figure.suptitle(
        f"{stats['source']}: {_size(stats)}, {sum(stats['tokens'].values()):,} tokens, "
        f"{packing['packs']} packs, fill {packing['fill']:.1%}",
        fontsize=14, fontweight="bold", parse_math=False,
    )  # fmt: skip
    _bars(axes[0], stats["histograms"]["length"], "Length of a document", "tokens")
    _bars(axes[1], stats["histograms"]["fill"], "Fill of a pack", f"share of {packing['max_tokens']:,} tokens")
    _ranked(axes[2], stats["tokens"], "Tokens by kind")
    _ranked(axes[3], stats["tags"], "Tags")
    _columns(axes[4], {"pictures": stats["pictures"], "turns": stats["turns"]}, "Context pictures, trained turns")
    known = {key: number for key, number in stats["stops"].items() if key != "unknown"}
    told = {f"language {key}": number for key, number in stats["languages"].items()}
    _ranked(axes[5], told | {f"ended {key}": number for key, number in known.items()}, "Languages and endings")
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelsize=9, colors=SOFT)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _bars(axes: Any, histogram: Mapping[str, list[float]], title: str, unit: str) -> None:
    edges = np.array(histogram["edges"])
    axes.bar(edges[:-1], histogram["counts"], np.diff(edges), align="edge", color=BLUE)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(unit, color=SOFT, fontsize=9)
    axes.yaxis.get_major_locator().set_params(integer=True)


def _ranked(axes: Any, values: Mapping[str, int], title: str) -> None:
    names = list(values)[::-1]
    bars = axes.barh(range(len(names)), [values[name] for name in names], color=BLUE)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=3, color=SOFT)
    axes.margins(x=0.18)
    axes.set_xticks([])
    axes.set_title(title, loc="left", fontsize=11)


def _columns(axes: Any, groups: Mapping[str, Mapping[str, int]], title: str) -> None:
    for number, (name, values) in enumerate(groups.items()):
        places = [int(key) + 0.4 * number - 0.2 for key in values]
        axes.bar(places, list(values.values()), 0.4, color=(BLUE, "#f2a33a")[number], label=name)
    axes.legend(frameon=False, fontsize=9)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("number in a sample", color=SOFT, fontsize=9)
