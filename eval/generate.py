"""`python -m eval generate`: our agent draws a benchmark, where `score` finds the pictures unrenamed.

    OUT/dataset.json       which data set the pictures were made for: no other one can be scored on them
    OUT/generation.json    model, variant and settings; the same command continues, another one is refused
    OUT/<place>.png        the picture, with the prompt and the sampler's settings in its text chunks
    OUT/<place>_traj.json  what was said and found
    OUT/intermediate/<place>/image_K.png   the references that it was drawn from

Exit codes: 0 every item has a picture, 3 some have none and are tried again by the same command, 2 the command was
wrong.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.progress import Progress
from eval.arguments import add_data, open_data
from eval.benchmarks.base import Benchmark, Item
from eval.pictures import STAMP, check_stamp, read_trajectory, stamp_of
from eval.results import INCOMPLETE
from eval.run import pinned
from eval.studies import NAMES, Study
from unify_agent.agent.options import size_of
from unify_agent.agent.wording import language_of
from unify_agent.errors import UserError
from unify_agent.files import write_bytes, write_json, write_text
from unify_agent.search.base import NoSearch
from unify_agent.search.registry import open_backend

if TYPE_CHECKING:
    from unify_agent.agent.episode import Episode
    from unify_agent.agent.loop import Loop, Policy

GENERATION = "generation.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_data(parser)
    parser.add_argument("--model", required=True, metavar="DIR", help="model folder in BAGEL's layout, or a hub id")
    parser.add_argument(
        "--search", metavar="SPEC", help="index:DIR, serper, wikipedia, record:DIR:SPEC or replay:DIR (open book)"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the pictures")
    parser.add_argument("--variant", default="full", metavar="NAME", help=f"one of {', '.join(NAMES)} (default: full)")
    parser.add_argument("--words", metavar="NAME|FILE", help="prompts: full, compact or a YAML file (default: model's)")
    parser.add_argument("--seed", type=int, default=0, help="of noise and sampling (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="points of time of the sampler (default: the model's)")
    parser.add_argument("--size", type=size_of, metavar="N|HxW", help="of the pictures, in pixels")
    parser.add_argument("--batch", type=int, default=32, help="items that run together (default: %(default)s)")


def main(args: argparse.Namespace) -> int:
    """Draws what has no picture yet."""
    if args.batch < 1:
        raise UserError(f"--batch {args.batch}: at least 1")
    study = Study(args.variant)
    bench, dataset, items = open_data(args)
    check_stamp(args.out, dataset)
    if silent := next((item.id for item in items if not item.prompt), None):
        raise UserError(f"{args.data}: {silent} has no prompt to draw")
    if args.search is None and any(study.searches(item) for item in items):
        raise UserError(f"--variant {study.name} searches: give --search, such as index:DIR")
    search = NoSearch() if args.search is None else open_backend(args.search)
    from unify_agent.agent.load import load_policy  # torch
    from unify_agent.agent.loop import Loop
    from unify_agent.agent.pixeljudge import PixelJudge

    policy, words = load_policy(args.model, prompts=args.words, size=args.size, steps=args.steps)
    facts = {"model": args.model, "variant": study.name, "seed": args.seed, "search": args.search} | policy.described()
    pinned(args.out / GENERATION, facts, "pictures")
    write_json(args.out / STAMP, stamp_of(bench, dataset))
    loop = Loop(policy, search, PixelJudge(), words)
    return draw(loop, bench, items, study, args.out, args.seed, args.batch)


def draw(loop: Loop, bench: Benchmark, items: Sequence[Item], study: Study, out: Path, seed: int, batch: int) -> int:
    """Draws the items that have no picture, a batch at a time; returns the exit code."""
    waiting = [item for item in items if not finished(bench, item, out)]
    if len(waiting) < len(items):
        print(f"{len(items) - len(waiting)} of {len(items)} were drawn before")
    failed: list[str] = []
    with Progress("drawing", len(waiting), "items") as progress:
        for start in range(0, len(waiting), batch):
            part, episodes = [], []
            for item in waiting[start : start + batch]:
                try:
                    episodes.append(study.episode(item, language_of(item.prompt), seed, loop.tools.search))
                    part.append(item)
                except UserError as error:  # nothing to inject; the others have theirs
                    failed.append(str(error))
            if study.speaks:
                loop.think(episodes)
            loop.draw(episodes)
            for item, episode in zip(part, episodes, strict=True):
                if episode.picture is None:
                    failed.append(f"{item.id}: {episode.stop}, {episode.error}")
                else:
                    keep(bench, item, episode, loop.policy, out)
            progress.advance(min(batch, len(waiting) - start))
    for line in failed:
        print(line)
    print(f"{len(items) - len(failed)} of {len(items)} items have a picture; {out}")
    return INCOMPLETE if failed else 0


def finished(bench: Benchmark, item: Item, out: Path) -> bool:
    """Whether the item has its picture and its record, which is written last."""
    record = read_trajectory(out / bench.trajectories(item)[0])
    picture = out / f"{bench.places(item)[0]}.png"
    return isinstance(record, dict) and record.get("image_prompt") == item.prompt and picture.is_file()


def keep(bench: Benchmark, item: Item, episode: Episode, policy: Policy, out: Path) -> None:
    """Writes references, picture and record, each whole or not at all."""
    from unify_agent.agent.record import png, to_trajectory

    place = bench.places(item)[0]
    names = [f"intermediate/{place}/image_{k}.png" for k in range(1, len(episode.references) + 1)]
    for name, reference in zip(names, episode.reference_pictures, strict=True):
        write_bytes(out / name, png(reference))
    write_bytes(out / f"{place}.png", png(episode.picture, {"prompt": episode.request, **episode.settings}))
    trajectory: Any = to_trajectory(episode, policy.name)
    for name, each in zip(names, trajectory.references, strict=True):
        each.file = name
    trajectory.generated_image = f"{place}.png"
    write_text(out / bench.trajectories(item)[0], trajectory.to_json())
