"""What the commands over samples share: opening a source with a model folder's tokenizer and transforms, and going
through all samples in several processes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import yaml
from rich.console import Console

from data.openmoji.base import BASE
from data.progress import Progress
from unify_agent.datasets.indexed import IndexedSource
from unify_agent.datasets.kinds import kinds
from unify_agent.datasets.sources import SourceContext
from unify_agent.errors import UserError, nearest
from unify_agent.interleave.layout import PRESETS, Pixels
from unify_agent.training import plugins

WIDTH = 150
"""Columns of a table where there is no terminal."""
CHUNK = 16
PARALLEL_FROM = 128
"""With fewer samples, starting processes costs more than it saves."""

Result = TypeVar("Result")


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """ROOT and how to read it."""
    parser.add_argument("root", type=Path, metavar="ROOT", help="trajectories (a folder, or packed), or a table")
    parser.add_argument("--kind", default="trajectories", metavar="KIND",
                        help=f"kind of source: {', '.join(kinds())} (default trajectories)")  # fmt: skip
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE",
                        help="an option of the source, as under data.sources.options; may be repeated")  # fmt: skip
    parser.add_argument("--model", default=str(BASE), metavar="DIR",
                        help="model folder whose tokenizer and transforms count (default: the tiny base)")  # fmt: skip
    parser.add_argument("--layout", choices=PRESETS, help="layout preset (default: the model folder's own)")


def add_worker_argument(parser: argparse.ArgumentParser) -> None:
    """How many processes read."""
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")


def context_of(model: Path | str, layout: str | None = None) -> SourceContext:
    """What sources are built with, from a model folder; nothing of its weights is read."""
    from unify_agent.model.weights import ModelFolder  # torch

    folder = ModelFolder(model)
    pixels = Pixels(
        vae=folder.transforms["vae"],
        vit=folder.transforms["vit"],
        vae_patch=folder.config.pixels_per_token,
        vit_patch=folder.config.vit.patch_size,
    )
    return SourceContext(folder.grammar(), pixels, layout or folder.layout)  # type: ignore[arg-type]


def open_source(args: argparse.Namespace) -> IndexedSource:
    """The source that the arguments name."""
    known = kinds()
    if args.kind not in known:
        raise UserError(f"--kind {args.kind}: no such kind of source{nearest(args.kind, list(known))}")
    if not args.root.exists():
        raise UserError(f"{args.root}: no such file or folder")
    options = {"path": args.root}
    for given in args.option:
        key, equals, value = given.partition("=")
        if not equals:
            raise UserError(f"--option {given}: write KEY=VALUE")
        options[key] = yaml.safe_load(value)
    return plugins.call(known[args.kind], (context_of(args.model, args.layout),), options, "--option")


def console() -> Console:
    """Where tables go: as wide as the terminal, and wide enough for them where there is none."""
    found = Console()
    return found if found.is_terminal else Console(width=WIDTH)


_source: Any = None
_work: Any = None


def _begin(source: IndexedSource, work: Callable[[IndexedSource, int], Any]) -> None:
    global _source, _work
    _source, _work = source, work


def _chunk(indices: range) -> list[Any]:
    return [_work(_source, index) for index in indices]


def over_samples(
    source: IndexedSource, work: Callable[[IndexedSource, int], Result], workers: int, what: str
) -> Iterator[Result]:
    """`work(source, index)` of every sample, in order, with progress. `work` is a module's function."""
    if workers < 1:
        raise UserError(f"--workers {workers}: at least 1")
    total = len(source)
    with Progress(what, total, "samples") as progress:
        if workers == 1 or total < PARALLEL_FROM:
            for index in range(total):
                yield work(source, index)
                progress.advance()
            return
        chunks = [range(start, min(start + CHUNK, total)) for start in range(0, total, CHUNK)]
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (source, work))
        try:
            for results in pool.map(_chunk, chunks):
                yield from results
                progress.advance(len(results))
        except BrokenProcessPool:
            raise UserError(f"{source.root}: a reading process was killed; out of memory? Try --workers 1") from None
        finally:
            pool.shutdown(cancel_futures=True)
