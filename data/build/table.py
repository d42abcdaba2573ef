"""A list of entities as it lies on the disk: CSV, JSON, JSONL or parquet, and what its columns mean.

    index, id, ip_index                     the id
    name_<lang>, ip_name_<lang>, names      names by language (`names`: an object); p_en_name and p_cn_name
    name, ip_name                           a name whose language its script tells
    category, ip_category, source_category  one of the twelve, or another word for one
    country, remark
    seed, seed1, ..., seeds                 paths of pictures (seeds: a list, or one text divided by `;` or `|`)

Values are texts when they leave here: `007` stays `007`, the number 7 becomes `7`, 0 is an id.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data.documents import Fault, csv_lines, json_lines
from unify_agent.errors import UserError
from unify_agent.files import read_json

KINDS = (".csv", ".json", ".jsonl", ".parquet")
_FIXED = {
    "index": "id", "id": "id", "ip_index": "id", "category": "category", "ip_category": "category",
    "source_category": "category", "country": "country", "remark": "remark", "names": "names", "name": "name",
    "ip_name": "name", "p_en_name": "name_en", "p_cn_name": "name_zh",
}  # fmt: skip
_LEFT_ALONE = frozenset({"image_prompt", "tag_name", "language", "source"})
"""Columns of the release's first stage that say nothing of the entity itself."""
_NAME = re.compile(r"(?:ip_)?name_([a-z]{2,3})(?:[-_][a-z0-9]+)*")
_SEED = re.compile(r"seeds?|seed_?\d{1,2}(?:_url)?")
_MARKS = re.compile("[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\u00ad]")
"""Characters that show nothing and that some programs leave behind; those that join letters are not among them."""
_SHOWN = (*_FIXED, "name_en", "name_zh", "seed", "seed1", "seed2", "seeds")


@dataclass(frozen=True)
class Row:
    """One row. `where`: file and line (of JSON and parquet: which record). `fault`: why nothing else is known of it."""

    where: str
    id: str = ""
    names: Mapping[str, str] | None = None
    name: str = ""
    category: str = ""
    country: str = ""
    remark: str = ""
    seeds: tuple[str, ...] = ()
    fault: str = ""


def read_table(path: Path) -> Iterator[Row]:
    """The rows of a list. Raises UserError for a file that is none, and for a table whose columns cannot be meant."""
    if path.suffix.lower() not in KINDS:
        raise UserError(f"{path}: a list of entities is a {', '.join(KINDS[:-1])} or {KINDS[-1]} file")
    if not path.is_file():
        raise UserError(f"{path}: no such list of entities")
    read = {".csv": _csv, ".json": _json, ".jsonl": _jsonl, ".parquet": _parquet}[path.suffix.lower()]
    columns: dict[tuple[str, ...], dict[str, str]] = {}
    empty = True
    try:
        for where, record in read(path):
            empty = False
            if isinstance(record, Fault):
                yield Row(where, fault=record.reason)
                continue
            keys = tuple(record)
            try:
                if keys not in columns:
                    columns[keys] = columns_of(keys)
                yield _row(where, record, columns[keys])
            except ValueError as fault:
                yield Row(where, _id_of(record), fault=str(fault))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    if empty:
        raise UserError(f"{path}: holds no row")


def columns_of(names: Sequence[str]) -> dict[str, str]:
    """Column -> what it means: id, name, name_<lang>, names, category, country, remark or seeds; others are left out.

    Raises ValueError, naming the column: an id, a name or a category is missing; two columns mean the same; a column is
    nearly one that is known.
    """
    found: dict[str, str] = {}
    unknown = []
    for name in names:
        low = name.strip().lower()
        if meaning := _meaning(low):
            twin = next((k for k, m in found.items() if m == meaning), None)
            if twin is not None and meaning != "seeds":
                raise ValueError(f"the columns {twin!r} and {name!r} mean the same; leave one of them out")
            found[name] = meaning
        elif low not in _LEFT_ALONE:
            unknown.append(name)
    for name in unknown:
        if close := get_close_matches(name.strip().lower(), _SHOWN, 1, cutoff=0.8):
            raise ValueError(f"the column {name!r} is not known, did you mean {close[0]!r}?")
    meanings = set(found.values())
    has_name = bool(meanings & {"name", "names"}) or any(each.startswith("name_") for each in meanings)
    for there, what in (("id" in meanings, "index"), (has_name, "name_en"), ("category" in meanings, "category")):
        if not there:
            one = next((name for name in names if len(names) == 1 and re.search(r"[;\t]", name)), None)
            tip = "; divide the columns by commas" if one else f"; it has {', '.join(map(repr, names)) or 'none'}"
            raise ValueError(f"no column {what!r} (or another word for it; see docs/data_build.md){tip}")
    return found


def _meaning(name: str) -> str:
    if name in _FIXED:
        return _FIXED[name]
    if _SEED.fullmatch(name):
        return "seeds"
    language = _NAME.fullmatch(name)
    return f"name_{language[1]}" if language else ""


def _row(where: str, record: Mapping[str, Any], columns: Mapping[str, str]) -> Row:
    """Raises ValueError for a value that is not what its column is for."""
    names: dict[str, str] = {}
    seeds: list[str] = []
    plain = dict.fromkeys(("id", "name", "category", "country", "remark"), "")
    for column, meaning in columns.items():
        value = record[column]
        if meaning == "seeds":
            seeds += _several(column, value)
        elif meaning == "names":
            names |= _by_language(column, value)
        elif meaning.startswith("name_"):
            names[meaning[5:]] = _text(column, value)
        else:
            plain[meaning] = _text(column, value)
    return Row(where, names={k: v for k, v in names.items() if v}, seeds=tuple(seeds), **plain)


def _by_language(column: str, value: Any) -> dict[str, str]:
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{column!r} must be an object of names by language")
    found = {}
    for key, name in (value or {}).items():
        language = _NAME.fullmatch(f"name_{key.strip().lower()}")
        if language is None:
            raise ValueError(f"{column!r}: {key!r} is no language such as en or zh")
        if language[1] in found:
            raise ValueError(f"{column!r}: has two names in {language[1]!r}")
        found[language[1]] = _text(f"{column}.{key}", name)
    return found


def _id_of(record: Mapping[str, Any]) -> str:
    """The id of a record that cannot be taken, as far as it has one."""
    return next((str(record[key])[:80] for key in record if _FIXED.get(key.strip().lower()) == "id"), "")


def _text(column: str, value: Any) -> str:
    """A value as text without spaces around it; a missing one is empty. Raises ValueError for what is no text."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{column!r} must be a text, not {type(value).__name__}")
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError(f"{column!r} must be a text or a whole number, not {value}")
        value = int(value)
    text = " ".join(_MARKS.sub("", str(value)).split())
    if not all(c.isprintable() or c in "\u200c\u200d" for c in text):
        raise ValueError(f"{column!r} holds characters that are no text ({text[:40]!r})")
    return text


def _several(column: str, value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [text for each in value if (text := _text(column, each))]
    text = _text(column, value)
    parts = re.split(r"\s*[;|]\s*", text) if column.strip().lower() == "seeds" else [text]
    return [part for part in parts if part]


# ---------------------------------------------------------------- formats


def _csv(path: Path) -> Iterator[tuple[str, dict[str, Any] | Fault]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = next(csv.reader(file), None)
    if header is None:
        raise UserError(f"{path}: is empty; its first line must name the columns")
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise UserError(f"{path}: has two columns {twice[0]!r}")
    _check_columns(header, path)
    for number, record in csv_lines(path, path.name, ()):
        yield f"{path.name}:{number}", record


def _jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any] | Fault]]:
    for number, record in json_lines(path, path.name):
        yield f"{path.name}:{number}", record


def _json(path: Path) -> Iterator[tuple[str, dict[str, Any] | Fault]]:
    """A list of objects, or an object of them by id."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in found:
            if key in made:
                raise UserError(f"{path}: the key {json.dumps(key, ensure_ascii=False)} stands there twice")
            made[key] = value
        return made

    content = read_json(path, "list of entities", pairs)
    if isinstance(content, dict):
        content = [
            {"index": key} | value if isinstance(value, dict) and not _has_id(value) else value
            for key, value in content.items()
        ]
    if not isinstance(content, list):
        raise UserError(f"{path}: a list of entities is an array of objects, or an object of them by id")
    for number, record in enumerate(content, 1):
        where = f"{path.name}#{number}"
        yield where, record if isinstance(record, dict) else Fault(where, "an object is expected")


def _check_columns(names: Sequence[str], path: Path) -> None:
    """Raises UserError for columns of a whole table that `columns_of` does not take."""
    try:
        columns_of(names)
    except ValueError as fault:
        raise UserError(f"{path}: {fault}") from None


def _has_id(record: Mapping[str, Any]) -> bool:
    return any(_FIXED.get(key.strip().lower()) == "id" for key in record)


def _parquet(path: Path) -> Iterator[tuple[str, dict[str, Any] | Fault]]:
    try:
        with pq.ParquetFile(path) as file:
            _check_columns(file.schema_arrow.names, path)
            number = 0
            for batch in file.iter_batches(4096):
                for record in batch.to_pylist():
                    number += 1
                    yield f"{path.name}#{number}", record
    except pa.ArrowException as error:
        raise UserError(f"{path}: not a parquet file ({error})") from None
