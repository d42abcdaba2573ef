"""What a benchmark is: its items, where their pictures lie, how one is judged, how scores become totals.

A benchmark reads the official files as they are, or a manifest of the user's own prompts in the neutral schema
(`Record`, one JSON object a line). It judges with a structured question or several, and computes every score itself
from the sub-scores; a judge's own sum is only compared with ours.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unify_agent.errors import UserError
from unify_agent.files import digest
from unify_agent.judging import Message, Picture
from unify_agent.judging.structured import Verdict, json_schema

Schema = TypeVar("Schema", bound=Verdict)
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
"""Of pictures, the one that is looked for first in front."""


@dataclass(frozen=True)
class Item:
    """One prompt to draw. `references`: true pictures that the judge compares with; `support`: those that a model may
    be given. `place`: where its picture is expected below the folder of pictures, without extension, beside the
    benchmark's other layouts. `extra`: what else the judge is told.
    """

    id: str
    prompt: str
    category: str
    group: str = ""
    references: tuple[Path, ...] = ()
    support: tuple[Path, ...] = ()
    place: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """What the item is: the data set's hash is taken over this."""
        return {"id": self.id, "prompt": self.prompt, "category": self.category, "extra": dict(self.extra)}


@dataclass(frozen=True)
class Dataset:
    """Items in the file's order. `variant` names which edition of the benchmark they are; `notes` are told by check."""

    variant: str
    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """Hash of the items."""
        return sha256_of(self.items)


def sha256_of(items: Sequence[Item]) -> str:
    """Over the items' contents in the order of their ids, whoever stores them where."""
    ordered = sorted(items, key=lambda item: item.id)
    return digest(json.dumps([item.content() for item in ordered], sort_keys=True, ensure_ascii=True))


@dataclass(frozen=True)
class Measure:
    """A score of an item, with the range that bounds what is not known."""

    name: str
    title: str
    low: float
    high: float


@dataclass(frozen=True)
class Marks:
    """What judging one picture gave. `scores` by measure. `differs`: where the judge's own sum is another than ours.
    `flags`: what a reader should know, such as a veto. `detail`: the evidence, as JSON.
    """

    scores: Mapping[str, float]
    differs: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    detail: Mapping[str, Any] = field(default_factory=dict)


class Unresolved(Exception):
    """An item that cannot be scored though all calls were answered. `kind` groups them in the report."""

    def __init__(self, kind: str, detail: str) -> None:
        self.kind, self.detail = kind, detail
        super().__init__(f"{kind}: {detail}")


class Ask(ABC):
    """Asks the judge on behalf of one item and keeps the trail. Raises ChatError."""

    @abstractmethod
    def __call__(self, role: str, messages: Sequence[Message], schema: type[Schema], max_tokens: int = 1024) -> Schema:
        """The verdict; `role` names the question in the trail."""

    @abstractmethod
    def picture(self, path: Path) -> Picture:
        """A picture under the run's policy."""

    @abstractmethod
    def aside(self) -> Ask:
        """Asks without keeping a trail: for what belongs to the data set rather than to a picture."""


class Record(BaseModel):
    """A line of the neutral manifest. Paths are relative to the manifest."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1)
    prompt: str = Field(min_length=1)
    category: str = "all"
    group: str = ""
    references: list[str] = []
    support: list[str] = []
    extra: dict[str, Any] = {}


class Benchmark(ABC):
    """See the module. Subclasses set the class attributes; `measures[0]` is the main score."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    """The papers' table that `report --paper` shows beside a result: a file of eval/papers."""
    measures: ClassVar[tuple[Measure, ...]]
    mean: ClassVar[Literal["items", "categories"] | Mapping[str, float]] = "items"
    """The total is the mean over items, over categories, or weighs categories as given."""
    group_mean: ClassVar[Literal["items", "categories"]] = "items"
    overall: ClassVar[bool] = True
    """Whether there is a total over all groups."""
    composed: ClassVar[Mapping[str, float]] = {}
    """Measure -> its weight, where a group's main score is made of the group's means of others, and the total is the
    mean over `composed_of`, all of which it needs. A measure that no item has counts as `absent`."""
    composed_of: ClassVar[tuple[str, ...]] = ()
    absent: ClassVar[float] = 0.0
    templates: ClassVar[tuple[str | type[BaseModel], ...]]
    """All that the judge's questions are made of; their hash tells protocols apart."""
    macro: ClassVar[bool] = False
    """Whether the plain mean over categories stands beside the total."""
    options: ClassVar[Mapping[str, tuple[str, ...] | float]] = {}
    """What may be set with `--option`: name -> choices, the first of them the default, or the default number."""

    def __init__(self, options: Mapping[str, str | float] | None = None) -> None:
        self.chosen: dict[str, str | float] = {
            name: default[0] if isinstance(default, tuple) else default for name, default in self.options.items()
        }
        for name, value in (options or {}).items():
            if name not in self.options:
                known = ", ".join(self.options) or "none"
                raise UserError(f"--option {name}: {self.name} has no such option; known: {known}")
            self.chosen[name] = _option(name, value, self.options[name])

    @property
    def template_sha256(self) -> str:
        """Hash of the judge's questions."""
        parts = (t if isinstance(t, str) else json.dumps(json_schema(t), sort_keys=True) for t in self.templates)
        return digest(*parts)

    def load(self, path: Path, references: Path | None = None) -> Dataset:
        """The data set at `path`: the official files, or a manifest. `references`: a folder that holds them.

        Raises UserError for what is missing, does not parse or is another benchmark's, or another edition.
        """
        if not path.exists():
            raise UserError(f"{path}: no such file or folder of data")
        manifest = path / "manifest.jsonl" if path.is_dir() else path
        if manifest.is_file() and manifest.name == "manifest.jsonl":
            dataset = Dataset(
                "own", tuple(self.from_record(record, manifest) for record in read_records(manifest, Record))
            )
        else:
            dataset = self.official(path, references)
        if not dataset.items:
            raise UserError(f"{path}: holds no prompt")
        seen: set[str] = set()
        for item in dataset.items:
            if item.id in seen:
                raise UserError(f"{path}: the id {item.id!r} occurs twice")
            place = PurePosixPath(item.place)
            if not place.parts or place.is_absolute() or ".." in place.parts:
                raise UserError(f"{path}: the id {item.id!r} leads out of the folder of pictures")
            try:
                json.dumps(item.content(), ensure_ascii=False, allow_nan=False).encode()
            except UnicodeEncodeError:
                raise UserError(f"{path}: the item {item.id!a} holds half a surrogate pair: no text") from None
            except ValueError:
                raise UserError(f"{path}: the item {item.id!a} holds NaN or Infinity: no number of JSON") from None
            seen.add(item.id)
        return dataset

    def from_record(self, record: Record, where: Path) -> Item:
        """An item of the neutral manifest."""
        return Item(
            record.id, record.prompt, record.category, record.group, tuple(where.parent / p for p in record.references),
            tuple(where.parent / p for p in record.support), record.id, record.extra,
        )  # fmt: skip

    @abstractmethod
    def official(self, path: Path, references: Path | None) -> Dataset:
        """The data set in the official layout."""

    def places(self, item: Item) -> tuple[str, ...]:
        """Where the item's picture may lie, without extension, relative to the folder of pictures."""
        return (item.place,)

    def trajectories(self, item: Item) -> tuple[str, ...]:
        """Where the record of how the picture was made may lie."""
        return tuple(name for place in self.places(item) for name in (f"{place}_traj.json", f"{place}_trajectory.json"))

    def applies(self, item: Item, measure: str) -> bool:
        """Whether the item has that measure at all."""
        return True

    @abstractmethod
    def judge(self, item: Item, picture: Picture, ask: Ask) -> Marks:
        """Asks the judge and computes the scores. Raises ChatError or Unresolved."""

    def keep_in(self, path: Path) -> None:
        """Where what is made of the prompts alone, with the judge's help, is kept. Most benchmarks make nothing."""
        return

    def copy_kept(self, path: Path, items: Sequence[Item]) -> None:
        """Writes what was kept for these items to another file."""
        return

    def kept(self, items: Sequence[Item]) -> dict[str, str]:
        """Hashes of what was kept for these items: models are compared only where they agree."""
        return {}


def _option(name: str, value: str | float, default: tuple[str, ...] | float) -> str | float:
    if isinstance(default, tuple):
        if value not in default:
            raise UserError(f"--option {name}={value}: choose among {', '.join(default)}")
        return value
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise UserError(f"--option {name}={value}: a number from 0 on is expected")
    return number


Line = TypeVar("Line", bound=BaseModel)


def read_records(path: Path, schema: type[Line]) -> list[Line]:
    """The records of a JSON-lines file. Raises UserError naming file, line and key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError) as error:
        raise UserError(f"{path}: cannot be read as JSON lines ({error})") from None
    return read_lines(text, path, schema)


def read_lines(text: str, path: Path, schema: type[Line]) -> list[Line]:
    """The records of JSON lines; `path` is named in errors."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(schema.model_validate(json.loads(line)))
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not JSON ({error.msg})") from None
        except ValidationError as error:
            raise _told(f"{path}:{number}", error) from None
    return found


def checked(where: str, record: Any, schema: type[Line]) -> Line:
    """A record of a JSON file as its typed object. Raises UserError naming the place and the key."""
    try:
        return schema.model_validate(record)
    except ValidationError as error:
        raise _told(where, error) from None


def _told(where: str, error: ValidationError) -> UserError:
    first = error.errors()[0]
    return UserError(f"{where}: {'.'.join(map(str, first['loc'])) or 'record'}: {first['msg']}")


def first_file(folder: Path, name: str) -> Path:
    """The picture `name` with whichever extension; the PNG's path when there is none."""
    for suffix in SUFFIXES:
        for spelled in (suffix, suffix.upper()):
            if (folder / f"{name}{spelled}").is_file():
                return folder / f"{name}{spelled}"
    return folder / f"{name}{SUFFIXES[0]}"


def mean_of(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)
