"""What is asked for: requests from the command line and from files, each checked on its own.

A file of prompts is JSON (a list of texts or objects, or an object of objects by id, as the release's ip_data), JSON
lines, CSV or parquet with a column of prompts, or plain text with a request a line. Objects hold image_prompt (or
prompt) and may hold id, language, ip_name, country, category, references (files, relative to the file of prompts).

What is wrong with one request refuses that one; what is wrong with the file as a whole raises UserError. Any id is
taken: one that cannot be a file name is replaced by one that can, and stays in the record.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unify_agent.agent.record import is_safe_name
from unify_agent.agent.wording import language_of
from unify_agent.datasets.folder import PARTS
from unify_agent.datasets.records import is_unicode
from unify_agent.errors import UserError
from unify_agent.files import read_json
from unify_agent.interleave.segments import Unusable
from unify_agent.interleave.transforms import open_picture

LONGEST = 4000
"""Characters of the longest request that is taken."""
MOST_REFERENCES = 2
NAMES = ("ip_name", "ip_name_en", "ip_name_zh", "p_en_name", "p_cn_name")
CATEGORIES = ("category", "ip_category", "source_category")
PROMPTS = ("image_prompt", "prompt")
REFUSED = "refused"
"""Stands for the category of what was refused."""
SUFFIXES = (".json", ".jsonl", ".csv", ".parquet", ".txt")
csv.field_size_limit(1 << 24)


@dataclass(frozen=True)
class Request:
    """One thing to draw. `given_id` is the id as it was given, where `id` had to be another; `references` are files."""

    id: str
    prompt: str
    language: str
    name: str = ""
    country: str = ""
    category: str = "prompts"
    given_id: str = ""
    references: tuple[Path, ...] = ()

    @property
    def key(self) -> str:
        """Category and id, unique in a run."""
        return f"{self.category}/{self.id}"


@dataclass(frozen=True)
class Refused:
    """A request that cannot be taken: where it stands, and why."""

    where: str
    reason: str

    @property
    def key(self) -> str:
        return f"{REFUSED}/{self.where}"


@dataclass
class Asked:
    """The requests of a run in order, and what was refused."""

    requests: list[Request] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def shard(self, number: int, of: int) -> Asked:
        """Part `number` (from 1) of `of`: every so-manieth of each."""
        return Asked(self.requests[number - 1 :: of], self.refused[number - 1 :: of])


def file_name_of(text: str) -> str:
    """A file name for an id: the id itself where it can be one, else its letters and a digest of it."""
    text = unicodedata.normalize("NFC", text)
    if is_safe_name(text):
        return text
    kept = re.sub(r"[^\w.-]+", "_", text).strip("._-")
    while len(kept.encode()) > 60:
        kept = kept[:-1]
    hashed = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{kept}-{hashed}" if kept else hashed


def _category(text: str) -> str:
    """A folder's name for a category: not one that the layout of trajectories or the summary uses for its own."""
    name = file_name_of(text)
    return f"{name}_" if name in (*PARTS, REFUSED) else name


def readable(text: str) -> str:
    """Text that can be written and printed: halves of surrogate pairs become question marks."""
    return text.encode("utf-8", "replace").decode()


def request_of(record: Any, where: str, item_id: Any = None, folder: Path | None = None) -> Request:
    """A request from a text or an object. Raises UserError that says where and which key is at fault.

    `item_id` stands for an id in the record; relative references lie in `folder`.
    """
    record = {"image_prompt": record} if isinstance(record, str) else record
    if not isinstance(record, dict):
        raise UserError(f"{where}: a text or an object is expected, not {type(record).__name__}")
    record = {key: value for key, value in record.items() if value is not None}
    prompt = next((record[key] for key in PROMPTS if key in record), None)
    if not isinstance(prompt, str) or not prompt.strip():
        raise UserError(f"{where}: the prompt is empty; give the text of a request (key image_prompt)")
    prompt = prompt.strip()
    if len(prompt) > LONGEST:
        raise UserError(f"{where}: the prompt has {len(prompt)} characters, at most {LONGEST} are taken")
    if not is_unicode(prompt):
        raise UserError(f"{where}: the prompt is not valid Unicode")
    given = {key: record[key] for key in ("language", "country", *NAMES, *CATEGORIES) if key in record}
    for key, value in given.items():
        if not isinstance(value, str) or not is_unicode(value):
            raise UserError(f"{where}: {key} must be a text")
    language = re.split("[-_]", given.get("language", "").lower())[0] or language_of(prompt)
    if language not in ("en", "zh"):
        raise UserError(f"{where}: language {language!r} is not known; choose en or zh")
    if item_id is None:
        item_id = record.get("id", record.get("ip_index"))
    if not isinstance(item_id, str | int | float | None) or isinstance(item_id, bool):
        raise UserError(f"{where}: the id must be a text or a number")
    told = "" if item_id is None else readable(str(item_id)).strip()
    name = file_name_of(told) if told else hashlib.sha256(prompt.encode()).hexdigest()[:10]
    return Request(
        id=name,
        prompt=prompt,
        language=language,
        name=next((given[key] for key in NAMES if given.get(key)), ""),
        country=given.get("country", ""),
        category=_category(next((given[key] for key in CATEGORIES if given.get(key, "").strip()), "prompts")),
        given_id=told if told and told != name else "",
        references=_references(record.get("references", []), where, folder or Path()),
    )


def _references(given: Any, where: str, folder: Path) -> tuple[Path, ...]:
    """Files of references, each of which was decoded once."""
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise UserError(f"{where}: references must be a list of files")
    return check_references([folder / each for each in given], where)


def check_references(files: Sequence[Path], where: str) -> tuple[Path, ...]:
    """Files that decode as pictures, at most two. Raises UserError that names the one that does not."""
    if len(files) > MOST_REFERENCES:
        raise UserError(f"{where}: {len(files)} references, at most {MOST_REFERENCES} are taken")
    for file in files:
        try:
            open_picture(file).close()
        except Unusable as error:
            raise UserError(f"{where}: reference {file}: {error}") from None
    return tuple(files)


def read_prompts(path: Path) -> Asked:
    """The requests in a file. Raises UserError for one that is missing, empty or does not parse as a whole."""
    if not path.is_file():
        raise UserError(f"{path}: no such file of prompts")
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: a file of prompts is one of {', '.join(SUFFIXES)}")
    entries = {".json": _json, ".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet, ".txt": _plain}[path.suffix](path)
    asked = collect(entries, path.parent)
    if not asked.requests and not asked.refused:
        raise UserError(f"{path}: holds no prompt")
    return asked


Entry = tuple[str, Any, Any]
"""Where it stands, the record (or the UserError that came instead), an id from outside the record (None: none)."""


def collect(entries: Iterable[Entry], folder: Path) -> Asked:
    """Checks entries one by one. Of several with one id the first counts."""
    asked = Asked()
    seen: dict[str, str] = {}
    for where, record, item_id in entries:
        try:
            if isinstance(record, UserError):
                raise record
            request = request_of(record, where, item_id, folder)
            if request.key in seen:
                raise UserError(f"{where}: the id {request.given_id or request.id!r} occurs before, at "
                                f"{seen[request.key]}; give each item an id of its own")  # fmt: skip
            seen[request.key] = where
            asked.requests.append(request)
        except UserError as error:
            asked.refused.append(Refused(where, str(error).removeprefix(f"{where}: ")))
    return asked


class _Object(dict):
    """A JSON object that still knows each of its keys and values, also of keys that occur twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def _json(path: Path) -> Iterator[Entry]:
    content = read_json(path, "file of prompts", _Object)
    if isinstance(content, dict) and any(isinstance(content.get(key), str) for key in PROMPTS):
        content = [content]
    if isinstance(content, _Object):
        for key, value in content.pairs:
            yield f"{path}: {readable(key)[:100]}", _unfolded(value), key
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield f"{path}: item {number}", value, None
    else:
        raise UserError(f"{path}: a list or an object is expected, not {type(content).__name__}")


def _unfolded(value: Any) -> Any:
    """An entry of ip_data, which may be an object as JSON text."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            pass
    return value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(_text(path).split("\n"), 1) if line.strip())


def _jsonl(path: Path) -> Iterator[Entry]:
    for number, line in _lines(path):
        where = f"{path}:{number}"
        try:
            yield where, json.loads(line), None
        except (ValueError, RecursionError) as error:
            yield where, UserError(f"{where}: not JSON ({getattr(error, 'msg', error)})"), None


def _plain(path: Path) -> Iterator[Entry]:
    for number, line in _lines(path):
        yield f"{path}:{number}", line, None


def _csv(path: Path) -> Iterator[Entry]:
    reader = csv.DictReader(io.StringIO(_text(path), newline=""))
    _check_columns(path, reader.fieldnames or [])
    rows = iter(reader)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            where = f"{path}:{reader.line_num}"
            yield where, UserError(f"{where}: not CSV ({error})"), None
            continue
        where = f"{path}:{reader.line_num}"
        if None in row:
            yield where, UserError(f"{where}: more fields than the header names"), None
        elif any(row.values()):
            yield where, {key: value for key, value in row.items() if value}, None


def _parquet(path: Path) -> Iterator[Entry]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        _check_columns(path, file.schema_arrow.names)
        number = 0
        for batch in file.iter_batches(256):
            for row in batch.to_pylist():
                yield f"{path}: row {number}", row, None
                number += 1
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not readable as parquet ({error})") from None


def _check_columns(path: Path, names: Sequence[str]) -> None:
    if not set(PROMPTS) & set(names):
        raise UserError(f"{path}: no column {' or '.join(PROMPTS)}; there are: {', '.join(map(str, names)) or 'none'}")
