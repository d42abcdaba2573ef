"""Trajectories in the release's folder layout, as a source of training samples.

    ROOT/CATEGORY/traj/ID_trajectory.json      one record, or a list of them
                  intermediate/ID/image_1.png  references: the first two pictures by name; none is legal
                  images/ID_0.png              the picture to learn to draw

ROOT may also be a category itself, or a single JSON file beside (or in `traj/` beside) the picture folders.
What cannot be used is listed in `unusable` with a reason.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from PIL import Image
from pydantic import ValidationError

from unify_agent.datasets.index import Entry, Measured, build_index
from unify_agent.datasets.sources import Skipped, Source, SourceContext
from unify_agent.datasets.trajectory import Trajectory
from unify_agent.errors import UserError
from unify_agent.files import digest
from unify_agent.interleave.layout import Exchange, Pixels, lay_out
from unify_agent.interleave.segments import Document, Unusable
from unify_agent.interleave.transforms import Transform, open_picture, peek_picture
from unify_agent.interleave.visibility import document_spans, visible_pairs

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tiff", ".jfif")
MAX_REFERENCES = 2


class TrajectorySource(Source):
    """`path`: ROOT. `request_share`: share of pictures drawn from the request instead of the recaption."""

    def __init__(
        self,
        context: SourceContext,
        path: Path | str,
        *,
        request_share: float = 0.0,
        name: str | None = None,
    ) -> None:
        path = Path(path)
        if not path.exists():
            raise UserError(f"{path}: no such folder of trajectories")
        self.context, self.request_share = context, request_share
        self.root = path if path.is_dir() else path.parent
        self.name = name or path.resolve().stem
        files = find_trajectories(path)
        if not files:
            raise UserError(
                f"{path}: no trajectories here; expected CATEGORY/traj/*_trajectory.json, "
                f"or one JSON file of records"
            )
        key = digest(str(path.resolve()), context.fingerprint)[:16]
        cache = context.cache / f"lengths-{key}.json" if context.cache is not None else None
        self._samples: list[tuple[str, Entry]] = []
        self.unusable: list[Skipped] = []
        seen: set[str] = set()
        for file, entries in build_index(self.root, files, self._measure, cache=cache).items():
            for entry in entries:
                if not entry.reason and entry.id in seen:
                    entry = replace(entry, reason="another record has the same id", detail=file)
                seen.add(entry.id)
                if entry.reason:
                    self.unusable.append(Skipped(entry.id, entry.reason, entry.detail))
                else:
                    self._samples.append((file, entry))

    @cached_property
    def fingerprint(self) -> str:
        lengths = "\n".join(f"{entry.id} {entry.slots} {entry.pairs}" for _, entry in self._samples)
        return digest(self.context.fingerprint, str(self.request_share), lengths)[:16]

    def ids(self) -> list[str]:
        return [entry.id for _, entry in self._samples]

    def __len__(self) -> int:
        return len(self._samples)

    def slots(self, index: int) -> int:
        return self._samples[index][1].slots

    def pairs(self, index: int) -> int:
        return self._samples[index][1].pairs

    def record(self, index: int) -> Trajectory:
        """The record of a sample. Raises `Unusable`."""
        file, entry = self._samples[index]
        records = _records(self.root / file)
        if entry.record >= len(records):
            raise Unusable("changed since it was indexed", entry.id)
        record = records[entry.record]
        if isinstance(record, Unusable):
            raise record
        return record

    def document(self, index: int, rng: np.random.Generator) -> Document:
        file, entry = self._samples[index]
        record = self.record(index)
        from_request = bool(rng.random() < self.request_share)
        pictures = [
            open_picture(self.root / name) for name in pictures_of(self.root, _folder(file), record.ip_index)
        ]
        return self._lay_out(entry.id, record, pictures, self.context.pixels, from_request)

    def _lay_out(
        self,
        name: str,
        record: Trajectory,
        pictures: list[Image.Image],
        pixels: Pixels,
        from_request: bool = False,
    ) -> Document:
        """The document of a record and its pictures, the target being the last."""
        if record.error:
            raise Unusable("the record reports an error", record.error)
        grammar = self.context.grammar
        exchanges = []
        for turn in record.turns_for_training():
            ids = turn.ids_for(grammar.fingerprint)
            exchanges.append(Exchange(turn.input, grammar.encode(turn.response_text) if ids is None else ids))
        return lay_out(
            name,
            exchanges,
            pictures[:-1],
            pictures[-1],
            grammar=grammar,
            pixels=pixels,
            preset=self.context.preset,
            context="request" if from_request else "recaption",
            copies=self.context.copies,
        )

    def _measure(self, file: str) -> Measured:
        """Lengths of the samples of one file, without decoding a picture."""
        folder = _folder(file)
        looked_at = [file]
        entries = []
        try:
            records = _records(self.root / file)
        except Unusable as error:
            return Measured([Entry(file, 0, reason=error.reason, detail=str(error))], looked_at)
        for number, record in enumerate(records):
            name = f"{file}#{number}" if len(records) > 1 else file
            pictures: list[Image.Image] = []
            try:
                if isinstance(record, Unusable):
                    raise record
                if not is_file_name(record.ip_index):
                    raise Unusable("ip_index is no file name", repr(record.ip_index))
                name = f"{folder}/{record.ip_index}" if folder != "." else record.ip_index
                looked_at += [f"{folder}/intermediate/{record.ip_index}"]
                try:
                    taken = pictures_of(self.root, folder, record.ip_index)
                except Unusable:
                    looked_at.append(f"{folder}/images")
                    raise
                looked_at += taken
                pictures = [peek_picture(self.root / each) for each in taken]
                document = self._lay_out(name, record, pictures, _shapes_only(self.context.pixels))
                entries.append(Entry(name, number, document.slots, visible_pairs(document_spans(document))))
            except Unusable as error:
                entries.append(Entry(name, number, reason=error.reason, detail=str(error)))
            finally:
                for picture in pictures:
                    picture.close()
        return Measured(entries, list(dict.fromkeys(looked_at)))


def find_trajectories(path: Path) -> list[str]:
    """JSON files of records, relative to the root (the file's folder when `path` is a file), sorted."""
    if path.is_file():
        return [path.name]
    folders = [
        path,
        *sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith(".")),
    ]
    found = [file for folder in folders for file in sorted((folder / "traj").glob("*_trajectory.json"))]
    return [file.relative_to(path).as_posix() for file in found]


def pictures_of(root: Path, folder: str, ip_index: str) -> list[str]:
    """Names of a sample's references (the first two pictures by name, or fewer), and last that of its target.

    Raises `Unusable` when there is no target.
    """
    place = root / folder / "intermediate" / ip_index
    names = []
    if place.is_dir():
        names = sorted(f.name for f in place.iterdir() if f.suffix.lower() in SUFFIXES and f.is_file())
    taken = [f"{folder}/intermediate/{ip_index}/{name}" for name in names[:MAX_REFERENCES]]
    for suffix in (".png", *SUFFIXES):
        name = f"{folder}/images/{ip_index}_0{suffix}"
        if (root / name).is_file():
            return [*taken, name]
    raise Unusable("no target picture", f"{folder}/images/{ip_index}_0.*")


def is_file_name(text: str) -> bool:
    """Whether an id can safely name a file: not empty, no separator, no way out of its folder."""
    return (
        bool(text) and text not in (".", "..") and not set(text) & set("/\\\0") and len(text.encode()) <= 200
    )


def _folder(file: str) -> str:
    """The category folder of a JSON file, relative to the root."""
    parent = Path(file).parent
    return (parent.parent if parent.name == "traj" else parent).as_posix()


def _shapes_only(pixels: Pixels) -> Pixels:
    """The same sizes, no pixels."""
    assert isinstance(pixels.vae, Transform) and isinstance(pixels.vit, Transform)
    return replace(pixels, vae=pixels.vae.shape_only, vit=pixels.vit.shape_only)


def _records(path: Path) -> list[Trajectory | Unusable]:
    """The records of a file, each parsed or with the reason why not. Raises `Unusable` for a whole file."""
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        raise Unusable("trajectory file vanished", str(path)) from None
    except (OSError, ValueError) as error:
        raise Unusable("trajectory file is not JSON", f"{path} ({error})") from None


@lru_cache(maxsize=4)
def _parsed(path: Path, modified: int) -> list[Trajectory | Unusable]:
    content = json.loads(path.read_text(encoding="utf-8-sig"))
    records: list[Trajectory | Unusable] = []
    for each in content if isinstance(content, list) else [content]:
        try:
            records.append(Trajectory.model_validate(each))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"]) or "record"
            records.append(Unusable("record does not fit the schema", f"{path}, key {key}: {first['msg']}"))
    return records
