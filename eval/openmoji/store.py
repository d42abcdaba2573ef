"""Runs on disk: a chunk is one variant with one seed, whole or not there, and known by what it was made from.

DIR/chunks/VARIANT/seed_K/   chunk.json (key, seconds, items), pictures.npz (uint8 [n, 64, 64, 3], drawn [n])
"""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data.openmoji.scenes import SIDE
from unify_agent.agent.episode import Episode
from unify_agent.files import read_json, whole_folder, write_bytes, write_json


@dataclass(frozen=True)
class Candidate:
    """A picture that a search found, and the judge's verdict. `file` is relative to the world's folder."""

    id: str
    title: str
    file: str
    score: float
    reason: str
    usable: bool
    chosen: bool


@dataclass(frozen=True)
class Step:
    """One turn: what was put in, what the model said, what the tools answered; `discarded`: what it said before, cut
    off and drawn again."""

    input: str
    reply: str
    truncated: bool = False
    calls: tuple[dict[str, Any], ...] = ()
    mended: tuple[str, ...] = ()
    error: str | None = None
    observation: str | None = None
    candidates: tuple[Candidate, ...] = ()
    discarded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Item:
    """What became of one task."""

    task: str
    stop: str
    recaption: str
    references: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Chunk:
    """Items with their pictures (None where nothing was drawn), in the order of the tasks."""

    items: tuple[Item, ...]
    pictures: tuple[np.ndarray | None, ...]
    seconds: float
    stages: dict[str, float] = field(default_factory=dict)


def from_episode(episode: Episode, world: Path) -> Item:
    """The record of an episode; picture files are named relative to `world`."""
    chosen = [_relative(each.hit.path, world) for each in episode.references]

    def candidate(each) -> Candidate:
        file, verdict = _relative(each.hit.path, world), each.verdict
        return Candidate(
            each.hit.id, each.hit.title, file, round(verdict.score, 2), verdict.reason, verdict.usable, file in chosen
        )

    steps = tuple(
        Step(
            input=turn.input, reply=turn.reply, truncated=turn.truncated, calls=tuple(turn.calls),
            mended=tuple(turn.mended), error=turn.tool_error, observation=turn.tool_output,
            candidates=tuple(candidate(each) for each in turn.judged),
            discarded=tuple(each.text for each in turn.discarded),
        )
        for turn in episode.turns
    )  # fmt: skip
    return Item(episode.id, episode.stop, episode.recaption, tuple(chosen), steps, episode.error)


def _relative(path: Path, world: Path) -> str:
    path, world = Path(path).resolve(), world.resolve()
    return str(path.relative_to(world)) if path.is_relative_to(world) else str(path)


def _item(record: dict[str, Any]) -> Item:
    steps = tuple(
        Step(**{
            **step, "calls": tuple(step["calls"]), "mended": tuple(step["mended"]),
            "candidates": tuple(Candidate(**each) for each in step["candidates"]),
            "discarded": tuple(step["discarded"]),
        })
        for step in record["steps"]
    )  # fmt: skip
    return Item(**{**record, "references": tuple(record["references"]), "steps": steps})


def folder_of(run: Path, variant: str, seed: int) -> Path:
    return run / "chunks" / variant / f"seed_{seed}"


def save(run: Path, variant: str, seed: int, key: str, chunk: Chunk) -> None:
    """Write a chunk; it appears whole."""
    drawn = np.array([picture is not None for picture in chunk.pictures])
    blank = np.zeros((SIDE, SIDE, 3), np.uint8)
    pixels = np.stack([blank if picture is None else picture for picture in chunk.pictures])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, pixels=pixels, drawn=drawn)
    record = {"key": key, "seconds": chunk.seconds, "stages": chunk.stages}
    with whole_folder(folder_of(run, variant, seed)) as folder:
        write_bytes(folder / "pictures.npz", buffer.getvalue())
        write_json(folder / "chunk.json", record | {"items": [asdict(item) for item in chunk.items]}, indent=None)


def load(run: Path, variant: str, seed: int, key: str | None = None) -> Chunk | None:
    """A finished chunk, or None when there is none or it was made from something else (another `key`)."""
    folder = folder_of(run, variant, seed)
    if not (folder / "chunk.json").is_file():
        return None
    record = read_json(folder / "chunk.json", "chunk of an evaluation")
    if key is not None and record["key"] != key:
        return None
    with np.load(folder / "pictures.npz") as archive:
        pixels, drawn = archive["pixels"], archive["drawn"]
    pictures = tuple(pixel if there else None for pixel, there in zip(pixels, drawn, strict=True))
    items = tuple(_item(item) for item in record["items"])
    return Chunk(items, pictures, record["seconds"], record["stages"])


def variants(run: Path) -> list[str]:
    """Names of the variants that have a chunk."""
    return sorted(path.name for path in (run / "chunks").glob("*") if any(path.glob("seed_*")))
