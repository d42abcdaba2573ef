"""Trajectories in the release's folder layout, as a source of training samples.

    ROOT/CATEGORY/traj/ID_trajectory.json      one record, or a list of them
                  intermediate/ID/image_1.png  references: the first two pictures by name; none is legal
                  images/ID_0.png              the picture to learn to draw

ROOT may also be a category itself, or a single JSON file beside (or in `traj/` beside) the picture folders. The layout
of the release's inference is read too: `ID_trajectory.json` and `ID_generated.png` in ROOT, ROOT/CATEGORY or
ROOT/CATEGORY/ID. What cannot be used is listed in `unusable` with a reason.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from PIL import Image

from unify_agent.datasets.index import Entry, Measured
from unify_agent.datasets.indexed import CHANGED, Opener, measured, shapes_only
from unify_agent.datasets.records import MAX_REFERENCES, RecordSource, is_file_name, records_in
from unify_agent.datasets.trajectory import Trajectory
from unify_agent.errors import UserError
from unify_agent.interleave.layout import Part, Pixels
from unify_agent.interleave.segments import Document, Unusable
from unify_agent.interleave.transforms import peek_picture

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tiff", ".jfif")
PARTS = ("traj", "intermediate", "images")


class TrajectorySource(RecordSource):
    """`path`: ROOT; the options are `RecordSource`'s."""

    @staticmethod
    def find(path: Path) -> list[str]:
        if not path.exists():
            raise UserError(f"{path}: no such folder of trajectories")
        files = find_trajectories(path)
        if not files:
            raise UserError(
                f"{path}: no trajectories here; expected CATEGORY/traj/*_trajectory.json, "
                f"or one JSON file of records"
            )
        return files

    def record(self, index: int) -> Trajectory:
        """The record of a sample. Raises `Unusable`."""
        file, entry = self.samples[index]
        records = _records(self.root / file)
        if entry.record >= len(records):
            raise Unusable(CHANGED, entry.id)
        record = records[entry.record]
        if isinstance(record, Unusable):
            raise record
        return record

    def build(self, index: int, opener: Opener, pixels: Pixels, rng: np.random.Generator | None) -> Document:
        file, entry = self.samples[index]
        record = self.record(index)
        names = pictures_of(self.root, folder_of(file), record.ip_index)
        return self._document(entry.name, record, names, opener, pixels, entry.part, rng)

    def _document(
        self,
        name: str,
        record: Trajectory,
        names: list[str],
        opener: Opener,
        pixels: Pixels,
        part: Part,
        rng: np.random.Generator | None = None,
    ) -> Document:
        """`names`: those of the references, then that of the target."""
        pictures: list[Image.Image] = []
        try:
            for each in names[:-1]:
                pictures.append(opener(self.root / each))
            target = None
            if part != "agent":
                target = opener(self.root / names[-1])
                pictures.append(target)
            return self._laid_out(name, record, pictures[: len(names) - 1], target, pixels, part, rng)
        finally:
            for picture in pictures:
                picture.close()

    def _measure(self, file: str) -> Measured:
        folder = folder_of(file)
        looked_at = [file]
        entries = []
        try:
            records = _records(self.root / file)
        except Unusable as error:
            return Measured([Entry(file, 0, reason=error.reason, detail=str(error))], looked_at)
        for number, record in enumerate(records):
            name = f"{file}#{number}" if len(records) > 1 else file
            if not isinstance(record, Unusable) and is_file_name(record.ip_index):
                name = sample_id(folder, record.ip_index)
            outlined = partial(self._outlined, name, folder, record, looked_at)
            entries += measured(name, number, outlined, self.parts)
        return Measured(entries, list(dict.fromkeys(looked_at)))

    def _outlined(
        self, name: str, folder: str, record: Trajectory | Unusable, looked_at: list[str]
    ) -> list[Document]:
        if isinstance(record, Unusable):
            raise record
        if not is_file_name(record.ip_index):
            raise Unusable("ip_index is no file name", repr(record.ip_index))
        looked_at.append(f"{folder}/intermediate/{record.ip_index}")
        try:
            taken = pictures_of(self.root, folder, record.ip_index)
        except Unusable:
            looked_at += [f"{folder}/images", folder]
            raise
        looked_at += taken
        pixels = shapes_only(self.context.pixels)
        return [self._document(name, record, taken, peek_picture, pixels, part) for part in self.parts]


def find_trajectories(path: Path) -> list[str]:
    """JSON files of records, relative to the root (the file's folder when `path` is a file), sorted."""
    if path.is_file():
        return [path.name]
    categories = [path, *_folders(path)]
    items = [item for category in categories[1:] for item in _folders(category)]
    places = [place for category in categories for place in (category / "traj", category)] + items
    found = [file for place in places for file in sorted(place.glob("*_trajectory.json")) if file.is_file()]
    return [file.relative_to(path).as_posix() for file in found]


def pictures_of(root: Path, folder: str, ip_index: str) -> list[str]:
    """Names of a sample's references (the first two pictures by name, or fewer), and last that of its target.

    Of `image_1.jpg` and `image_1.png` only the first counts. Raises `Unusable` when there is no target.
    """
    place = root / folder / "intermediate" / ip_index
    stems: dict[str, str] = {}
    try:
        for name in sorted(f.name for f in place.iterdir() if f.suffix.lower() in SUFFIXES and f.is_file()):
            stems.setdefault(Path(name).stem, name)
    except (FileNotFoundError, NotADirectoryError):
        pass  # no references
    except OSError as error:
        raise Unusable("references cannot be read", f"{place} ({error.strerror})") from None
    taken = [f"{folder}/intermediate/{ip_index}/{name}" for name in list(stems.values())[:MAX_REFERENCES]]
    for suffix in (".png", *SUFFIXES):
        for name in (f"{folder}/images/{ip_index}_0{suffix}", f"{folder}/{ip_index}_generated{suffix}"):
            if (root / name).is_file():
                return [*taken, name]
    raise Unusable("no target picture", f"{folder}/images/{ip_index}_0.*")


def folder_of(file: str) -> str:
    """The folder of a JSON file's sample, relative to the root."""
    parent = Path(file).parent
    return (parent.parent if parent.name == "traj" else parent).as_posix()


def sample_id(folder: str, ip_index: str) -> str:
    """Id of a sample among all of a root: its category and `ip_index`."""
    return ip_index if folder == "." else f"{folder}/{ip_index}"


def _folders(path: Path) -> list[Path]:
    return sorted(e for e in path.iterdir() if e.is_dir() and not e.name.startswith(".") and e.name not in PARTS)


def _records(path: Path) -> list[Trajectory | Unusable]:
    """The records of a file. Raises `Unusable` for a whole file."""
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        raise Unusable("trajectory file vanished", str(path)) from None
    except OSError as error:
        raise Unusable("trajectory file cannot be read", f"{path} ({error.strerror})") from None


@lru_cache(maxsize=4)
def _parsed(path: Path, modified: int) -> list[Trajectory | Unusable]:
    return records_in(path.read_bytes(), str(path))
