"""Making a search index: its tables (asked by index.py), one document or picture at a time, and `build_index`.

`build_index` reads two JSONL files:

    docs:   {"title": str, "text": str, "lang": "en", "source": str}
    images: {"id": str, "path": str, "title": str | {"en": str, "zh": str}, "source": str, "licence": str,
             "labels": {"entity": str, "kind": str, ...}}          (paths are relative to the JSONL file)

`labels` say what a picture really shows. No search returns them: `Index.labels` serves the teacher and the tests.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

from PIL import Image

from unify_agent.errors import UserError
from unify_agent.files import whole_folder
from unify_agent.search.base import well_formed
from unify_agent.search.index import DATABASE, FORMAT, PICTURES, normalise

_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")

_SCHEMA = f"""
PRAGMA page_size = 4096;
PRAGMA user_version = {FORMAT};
CREATE TABLE docs (id INTEGER PRIMARY KEY, lang TEXT NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL,
                   source TEXT NOT NULL, plain_title TEXT NOT NULL, plain_text TEXT NOT NULL);
CREATE VIRTUAL TABLE docs_fts USING fts5(title, text, content='', tokenize='trigram');
CREATE TABLE images (id TEXT PRIMARY KEY, file TEXT NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL,
                     source TEXT NOT NULL, licence TEXT NOT NULL, labels TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE titles (id INTEGER PRIMARY KEY, image TEXT NOT NULL, lang TEXT NOT NULL, title TEXT NOT NULL,
                     plain_title TEXT NOT NULL);
CREATE VIRTUAL TABLE titles_fts USING fts5(title, content='', tokenize='trigram');
CREATE INDEX titles_image ON titles(image);
"""


class Writer:
    """The tables of an index that is being made. Committing is the caller's."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    @staticmethod
    def create(database: sqlite3.Connection) -> Writer:
        """Makes the tables in an empty database."""
        database.executescript(_SCHEMA)
        return Writer(database)

    def add_document(self, title: str, text: str, lang: str, source: str) -> int:
        """Adds a document; returns its number. `lang` "" is found whatever language is asked for."""
        plain = normalise(title), normalise(text)
        values = (*map(well_formed, (lang, title, text, source)), *plain)
        row = self._database.execute("INSERT INTO docs VALUES (NULL, ?, ?, ?, ?, ?, ?)", values).lastrowid
        self._database.execute("INSERT INTO docs_fts(rowid, title, text) VALUES (?, ?, ?)", (row, *plain))
        assert row is not None
        return row

    def remove_document(self, number: int) -> None:
        """Takes a document out again."""
        plain = self._database.execute("SELECT plain_title, plain_text FROM docs WHERE id = ?", (number,)).fetchone()
        self._database.execute(
            "INSERT INTO docs_fts(docs_fts, rowid, title, text) VALUES ('delete', ?, ?, ?)", (number, *plain)
        )
        self._database.execute("DELETE FROM docs WHERE id = ?", (number,))

    def add_image(
        self,
        image: str,
        file: str,
        size: tuple[int, int],
        titles: Mapping[str, str],
        source: str = "",
        licence: str = "",
        labels: Mapping | None = None,
    ) -> None:
        """Adds a picture whose file lies in the folder of pictures. `titles` by language, "" for any.

        Raises sqlite3.IntegrityError for an id that is taken.
        """
        shown = json.dumps(labels or {}, ensure_ascii=False, sort_keys=True)
        values = (image, file, *size, *map(well_formed, (source, licence, shown)))
        self._database.execute("INSERT INTO images VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        for lang, title in titles.items():
            plain = normalise(title)
            row = self._database.execute(
                "INSERT INTO titles VALUES (NULL, ?, ?, ?, ?)", (image, well_formed(lang), well_formed(title), plain)
            ).lastrowid
            self._database.execute("INSERT INTO titles_fts(rowid, title) VALUES (?, ?)", (row, plain))

    def remove_image(self, image: str) -> None:
        """Takes a picture and its titles out again; its file stays."""
        for row in self._database.execute("SELECT id, plain_title FROM titles WHERE image = ?", (image,)).fetchall():
            self._database.execute("INSERT INTO titles_fts(titles_fts, rowid, title) VALUES ('delete', ?, ?)", row)
        self._database.execute("DELETE FROM titles WHERE image = ?", (image,))
        self._database.execute("DELETE FROM images WHERE id = ?", (image,))

    def optimise(self) -> None:
        """Merges what FTS5 has in pieces: once, at the end."""
        for table in ("docs_fts", "titles_fts"):
            self._database.execute(f"INSERT INTO {table}({table}) VALUES ('optimize')")


def build_index(docs: Path, images: Path | None, out: Path) -> Path:
    """Builds the folder `out` from JSONL files (see the module); an older index is replaced when the new one is whole.

    The same input gives the same files. Pictures are decoded before they are taken and copied into `out/pictures`.
    Raises UserError that names file and line for a record or a picture that cannot be read.
    """
    docs, out = Path(docs), Path(out)
    if out.exists() and not (out / DATABASE).is_file() and any(out.iterdir()):
        raise UserError(f"{out}: exists and is not an index; choose another --out or remove it")
    with whole_folder(out) as work:
        (work / PICTURES).mkdir()
        database = sqlite3.connect(work / DATABASE)
        try:
            database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
            writer = Writer.create(database)
            with database:
                _add_documents(writer, docs)
                if images is not None:
                    _add_images(writer, Path(images), work / PICTURES)
                writer.optimise()
            database.execute("VACUUM")
        finally:
            database.close()
    return out


def _lines(path: Path) -> Iterator[tuple[int, dict]]:
    if not path.is_file():
        raise UserError(f"{path}: no such file; a JSONL file of documents or pictures is needed to build an index")
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as fault:
                raise UserError(f"{path}:{number}: not JSON ({fault.msg})") from None
            if not isinstance(record, dict):
                raise UserError(f"{path}:{number}: a JSON object is expected, not {type(record).__name__}")
            yield number, record


def _field(record: dict, key: str, where: str, default: str | None = None) -> str:
    value = record.get(key, default)
    if not isinstance(value, str) or (default is None and not value.strip()):
        raise UserError(f"{where}: '{key}' must be a non-empty string")
    return value


def _add_documents(writer: Writer, path: Path) -> None:
    for number, record in _lines(path):
        where = f"{path}:{number}"
        title, text = _field(record, "title", where), _field(record, "text", where)
        writer.add_document(title, text, _field(record, "lang", where, ""), _field(record, "source", where, ""))


def _add_images(writer: Writer, path: Path, pictures: Path) -> None:
    for number, record in _lines(path):
        where = f"{path}:{number}"
        image_id = _field(record, "id", where)
        if not _SAFE_ID.fullmatch(image_id):
            raise UserError(f"{where}: id {image_id!r} may hold only letters, digits, '.', '_' and '-'")
        source_file = path.parent / _field(record, "path", where)
        try:
            with Image.open(source_file) as picture:
                picture.load()
                size, suffix = picture.size, (picture.format or "png").lower()
        except FileNotFoundError:
            raise UserError(f"{where}: {source_file} does not exist") from None
        except (OSError, ValueError, Image.DecompressionBombError) as fault:
            raise UserError(f"{where}: {source_file} is not a picture that decodes ({fault})") from None
        name = f"{image_id}.{'jpg' if suffix == 'jpeg' else suffix}"
        shutil.copyfile(source_file, pictures / name)
        labels, titles = record.get("labels", {}), record.get("title")
        if not isinstance(labels, dict):
            raise UserError(f"{where}: 'labels' must be an object")
        titles = titles if isinstance(titles, dict) else {"": titles}
        if not all(isinstance(title, str) for title in titles.values()):
            raise UserError(f"{where}: 'title' must be a string or an object of strings by language")
        source, licence = _field(record, "source", where, ""), _field(record, "licence", where, "")
        try:
            writer.add_image(image_id, name, size, titles, source, licence, labels)
        except sqlite3.IntegrityError:
            raise UserError(f"{where}: the id {image_id!r} occurs twice") from None
