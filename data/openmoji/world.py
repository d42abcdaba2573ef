"""Build the embedded world into one folder, stage by stage.

    entities.json         things, names, aliases, families, splits
    drawings-*.npz        every drawing once, 128 x 128 RGBA
    corpus/               docs.jsonl and images.jsonl, as a user would write them
    search/               the index over both, with the candidate pictures
    tokenizer/            trained on training entities
    trajectories/         the scripted teacher's, on request
    world.json            counts, hashes, seeds, versions

A stage is skipped when `world.json` says that the same code made it from the same input and its files are as they
were left; else it is done again, whole. Stop at any moment, call again, and it goes on.
"""

from __future__ import annotations

import argparse
import inspect
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console

from data.openmoji import categories, corpus, entities, leaks, pictures, scenes, tokenizer, words
from unify_agent.errors import UserError
from unify_agent.files import digest, read_json, write_json, write_text

MANIFEST = "world.json"
FORMAT = 1


@dataclass
class Builder:
    """Stages of a world under `folder`, with what is known about those done before."""

    folder: Path
    console: Console
    options: dict[str, Any]
    stages: dict[str, dict] = field(default_factory=dict)

    def read(self) -> None:
        """What the manifest says; a world of another kind is refused."""
        path = self.folder / MANIFEST
        if path.is_file():
            self.stages = dict(read_json(path, "world manifest").get("stages", {}))
        elif self.folder.is_dir() and any(not p.name.startswith(".") for p in self.folder.iterdir()):
            raise UserError(f"{self.folder}: exists and is not a world; choose another --out or remove it")

    def write(self, **more: Any) -> None:
        write_json(self.folder / MANIFEST, {
            "format": FORMAT, "seed": entities.SEED, "versions": pictures.versions(), **self.options, **more,
            "stages": self.stages,
        })  # fmt: skip

    def stage(self, name: str, key: str, outputs: list[str], make: Callable[[], dict[str, Any]]) -> bool:
        """Run `make` unless it is done; returns whether it ran. `outputs`: files that it leaves."""
        done = self.stages.get(name)
        if done and done["key"] == key and done["outputs"] == self._digest(outputs):
            self.console.print(f"{name}: as it was", highlight=False)
            return False
        self.stages.pop(name, None)
        started = time.monotonic()
        with self.console.status(f"{name} ..."):
            counts = make()
        seconds = round(time.monotonic() - started, 1)
        self.stages[name] = {"key": key, "outputs": self._digest(outputs), **counts, "seconds": seconds}
        self.write(complete=False)
        told = ", ".join(f"{value} {what}" for what, value in counts.items() if isinstance(value, int))
        self.console.print(f"{name}: {told} ({seconds} s)", soft_wrap=True, highlight=False)
        return True

    def _digest(self, outputs: list[str]) -> str | None:
        paths = [self.folder / each for each in outputs]
        return digest(*paths)[:16] if all(path.is_file() for path in paths) else None


def _code(*modules: ModuleType) -> str:
    return digest(*(Path(inspect.getfile(module)) for module in modules))


def build_world(
    out: Path | str, limit: int | None = None, trajectories: int = 0, workers: int = 2, quiet: bool = False
) -> Path:
    """Build, or finish, the world in folder `out`; `limit` entities of it, with `trajectories` of the teacher."""
    if limit is not None and limit < entities.SMALLEST:
        raise UserError(f"--entities {limit}: at least {entities.SMALLEST} are needed")
    folder = Path(out)
    builder = Builder(folder, Console(quiet=quiet), {"entities": limit, "trajectories": trajectories})
    builder.read()
    made = str(sorted(pictures.versions().items()))
    archive = pictures.drawings_path(folder)

    key = digest(made, _code(pictures, entities))
    builder.stage("drawings", key, [archive.name], lambda: _drawings(folder))

    key = digest(key, str(limit), _code(entities, categories), *map(entities.common_text, entities.LANGUAGES))
    builder.stage("entities", key, ["entities.json"], lambda: _entities(folder, limit))
    things = entities.load_entities(folder)

    from unify_agent.search import index

    known = digest(folder / "entities.json")
    searched = digest(known, made, _code(corpus, index, words, scenes))
    builder.stage(
        "corpus", searched, ["corpus/docs.jsonl", "corpus/images.jsonl", "search/index.sqlite"],
        lambda: dict(corpus.write_corpus(folder, things, pictures.Drawings.load(archive), workers)),
    )  # fmt: skip

    key = digest(known, _code(tokenizer), *tokenizer.sentences())
    builder.stage(
        "tokenizer", key, ["tokenizer/tokenizer.json", "tokenizer/vocab.json", "tokenizer/merges.txt"],
        lambda: {"tokens": tokenizer.write_tokenizer(things, folder / "tokenizer").get_vocab_size()},
    )  # fmt: skip

    for left in folder.glob(".trajectories.*.tmp"):  # of a run that was killed
        shutil.rmtree(left)
    if trajectories:
        from data.openmoji import teacher
        from data.openmoji import trajectories as teaching
        from unify_agent import agent

        library = sorted(Path(inspect.getfile(agent)).parent.rglob("*.py"))  # the loop that the teacher drives, and
        library += sorted(Path(inspect.getfile(agent)).parent.rglob("*.yaml"))  # the words that it is asked with
        key = digest(known, searched, str(trajectories), _code(teaching, teacher), *library)
        builder.stage(
            "trajectories", key, ["trajectories/summary.json"],
            lambda: _trajectories(folder, teaching.write_trajectories(folder, trajectories, workers=workers)),
        )  # fmt: skip

    key = digest(known, str(sorted(s["key"] for n, s in builder.stages.items() if n != "leaks")), _code(leaks))
    builder.stage("leaks", key, [], lambda: leaks.check(folder))
    builder.write(complete=True)
    return folder


def _drawings(folder: Path) -> dict[str, int]:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("drawings-*.npz"):
        old.unlink()
    return {"drawings": len(pictures.render_all(folder, entities.candidates()))}


def _entities(folder: Path, limit: int | None) -> dict[str, int]:
    things = entities.make_entities(pictures.Drawings.load(pictures.drawings_path(folder)), limit)
    write_text(folder / "entities.json", entities.to_json(things))
    counts = {split: sum(e.split == split for e in things) for split in entities.SPLITS}
    return {"entities": len(things), **counts, "families": len({e.family for e in things}),
            "categories": len({e.category for e in things})}  # fmt: skip


def _trajectories(folder: Path, counts: dict[str, int]) -> dict[str, int]:
    dropped = leaks.drop_leaking(folder / "trajectories", folder)
    return counts | {"trajectories": counts["trajectories"] - dropped, "left_out_held_out_name": dropped}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m data world openmoji`."""
    parser.add_argument("kind", choices=["openmoji"], help="which world")
    parser.add_argument("--out", type=Path, required=True, help="folder of the world; an unfinished one is continued")
    parser.add_argument("--entities", type=int, help="a smaller world of so many entities (40 or more)")
    parser.add_argument("--trajectories", type=int, default=0, help="trajectories that the scripted teacher writes")
    parser.add_argument("--workers", type=int, default=2, help="processes for pictures")


def main(args: argparse.Namespace) -> None:
    """`python -m data world openmoji`."""
    for name in ("trajectories", "workers"):
        if getattr(args, name) < (name == "workers"):
            raise UserError(f"--{name} {getattr(args, name)}: too small")
    build_world(args.out, args.entities, args.trajectories, args.workers)
