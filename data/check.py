"""`python -m data check ROOT`: every sample is read as training reads it, every picture decoded.

What cannot be used is listed by reason with its ids, exactly what training would skip; notes say what reading changes
in pictures that can be used. Exit code: 0 when every sample is usable, 3 when some are not, 2 for a wrong call.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image
from rich import box
from rich.console import Console
from rich.table import Table

from data.samples import add_source_arguments, add_worker_argument, console, open_source, over_samples
from unify_agent.agent.toolcalls import parse_calls
from unify_agent.datasets.folder import TrajectorySource
from unify_agent.datasets.indexed import IndexedSource, shapes_only
from unify_agent.datasets.parquet import PackedTrajectorySource
from unify_agent.datasets.sources import Skipped
from unify_agent.datasets.trajectory import Trajectory
from unify_agent.interleave.packing import TOO_LONG, Limits
from unify_agent.interleave.segments import Unusable
from unify_agent.interleave.transforms import PictureFile, Transform, open_picture, peek_picture

SOME_UNUSABLE = 3
"""Exit code when some samples cannot be used."""
SHOWN = 5
ORIENTATION = 0x0112


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m data check`."""
    add_source_arguments(parser)
    parser.add_argument("--max-tokens", type=int, default=Limits().max_tokens_per_sample, metavar="N",
                        help="longest sample taken: data.max_tokens_per_sample (default %(default)s)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print all ids and details as JSON")
    add_worker_argument(parser)


def main(args: argparse.Namespace) -> int:
    """`python -m data check`."""
    report = check(open_source(args), args.max_tokens, args.workers)
    if args.json:
        print(json.dumps(report.to_json(), ensure_ascii=False, indent=1))
    else:
        report.print(console())
    return SOME_UNUSABLE if report.unusable else 0


@dataclass
class Report:
    """What was found. `notes`: ids by note.

    All of it counts samples: a sample of several documents is usable when each of them is; what is wrong with one of
    them says so in its detail, and training skips that document alone.
    """

    name: str
    samples: int
    usable: int
    unusable: list[Skipped] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)

    @property
    def reasons(self) -> dict[str, list[Skipped]]:
        """What cannot be used by reason, most frequent first."""
        found: dict[str, list[Skipped]] = {}
        for each in self.unusable:
            found.setdefault(each.reason, []).append(each)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.name,
            "samples": self.samples,
            "usable": self.usable,
            "unusable": {
                reason: [{"id": each.id, "detail": each.detail} for each in several]
                for reason, several in self.reasons.items()
            },
            "notes": self.notes,
        }

    def print(self, console: Console) -> None:
        """Tables for a person."""
        told = f"{self.name}: {self.samples} samples, {self.usable} usable, {self.samples - self.usable} not"
        console.print(told, highlight=False, markup=False)
        reasons = {reason: [each.id for each in several] for reason, several in self.reasons.items()}
        _print_ids(console, "not usable", reasons)
        _print_ids(console, "usable, with a note", self.notes)


def _print_ids(console: Console, title: str, found: Mapping[str, Sequence[str]]) -> None:
    if not found:
        return
    table = Table(title, "samples", "ids (--json lists all, with details)", box=box.SIMPLE)
    table.columns[1].justify = "right"
    for reason, ids in found.items():
        shown = ", ".join(printable(each) for each in ids[:SHOWN])
        table.add_row(reason, str(len(ids)), shown + (", ..." if len(ids) > SHOWN else ""))
    console.print(table, highlight=False, markup=False)


def printable(text: str) -> str:
    """Text that a terminal can take: what does not print is escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


@dataclass(frozen=True)
class Finding:
    """One sample: why it cannot be used (None when it can), and the notes on it."""

    unusable: Skipped | None
    notes: tuple[str, ...]


def check(source: IndexedSource, max_tokens: int, workers: int) -> Report:
    """Read every sample of a source."""
    samples = source.by_sample()
    wrong: dict[tuple[str, str], Skipped] = {}
    notes: dict[str, dict[str, None]] = {}
    for index, found in enumerate(over_samples(source, examine, workers, "checking")):
        entry = source.samples[index][1]
        for note in found.notes:
            notes.setdefault(note, {})[entry.id] = None
        if found.unusable is not None:
            reason, detail = found.unusable.reason, found.unusable.detail
        elif entry.slots > max_tokens:
            reason, detail = TOO_LONG, f"{entry.slots} > {max_tokens}"
        else:
            continue
        told = detail if entry.part == "whole" else f"{entry.part} document: {detail}"
        wrong.setdefault((entry.id, reason), Skipped(entry.id, reason, told))
    lost = {each.id for each in wrong.values()}
    usable = {note: [each for each in ids if each not in lost] for note, ids in notes.items()}
    return Report(
        source.name,
        len(samples) + len(source.unusable),
        len(samples) - len(lost),
        [*source.unusable, *wrong.values()],
        {note: ids for note, ids in usable.items() if ids},
    )


def examine(source: IndexedSource, index: int) -> Finding:
    """Read one sample as training does, resizing left out."""
    notes: list[str] = []
    vae = source.context.pixels.vae
    assert isinstance(vae, Transform)

    def opener(file: PictureFile, name: str = "") -> Image.Image:
        picture = open_picture(file, name)
        with peek_picture(file, name) as peeked:
            notes.extend(remarks(peeked, vae))
        return picture

    try:
        document = source.build(index, opener, shapes_only(source.context.pixels), None)
        if document.slots != source.slots(index):
            raise Unusable("changed since it was indexed")
        if isinstance(source, TrajectorySource | PackedTrajectorySource):
            notes += remarks_on_turns(source.record(index), source.context.grammar.fingerprint)
    except Unusable as error:
        return Finding(Skipped(source.ids()[index], error.reason, str(error)), ())
    return Finding(None, tuple(dict.fromkeys(notes)))


def remarks(picture: Image.Image, vae: Transform) -> list[str]:
    """What reading does to a picture that is usable."""
    found = []
    if picture.mode == "CMYK":
        found.append("picture in CMYK: converted to RGB")
    if picture.mode in ("P", "PA"):
        found.append("picture with a palette: converted to RGB")
    if picture.mode.startswith("I") or picture.mode == "F":
        found.append("picture with more than 8 bits: cut to 8")
    if picture.has_transparency_data:
        found.append("transparent picture: laid on white")
    if getattr(picture, "is_animated", False):
        found.append("picture with several frames: the first is taken")
    if "exif" in picture.info and picture.getexif().get(ORIENTATION, 1) != 1:
        found.append("picture with EXIF rotation: taken as it is stored")
    if min(picture.size) * 4 < vae.min_size:
        found.append("small picture: enlarged more than 4 times")
    return found


def remarks_on_turns(record: Trajectory, tokenizer: str) -> list[str]:
    """What is odd about the turns of a usable record."""
    found = []
    for turn in record.turns_for_training()[:-1]:
        parsed = parse_calls(turn.response_text)
        if parsed.error is not None:
            found.append("a tool call does not parse")
        elif not parsed.calls:
            found.append("a turn before the last calls no tool")
    if any(turn.response_ids is not None and turn.tokenizer != tokenizer for turn in record.turns_for_training()):
        found.append("generated ids are another tokenizer's: the text is encoded anew")
    return found
