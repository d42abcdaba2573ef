"""A search index in one folder: `index.sqlite` (FTS5, trigram tokens) and `pictures/`.

Trigrams make Chinese searchable without a word segmenter. They match substrings ("cat" is found in
"caterpillar"), so what FTS5 finds is ranked again by whole words: how much of the query is in the title, then in
the text, rare words first, and BM25 decides between equals. Words shorter than three characters have no trigram;
they are looked up by a scan of the normalised text (about 1 ms for 10,000 short documents).

`build_index` reads two JSONL files:

    docs:   {"title": str, "text": str, "lang": "en", "source": str}
    images: {"id": str, "path": str, "title": str | {"en": str, "zh": str}, "source": str, "licence": str,
             "labels": {"entity": str, "kind": str, ...}}          (paths are relative to the JSONL file)

`labels` say what a picture really shows. No search returns them: `Index.labels` serves the teacher and the tests.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sqlite3
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from unify_agent.errors import UserError
from unify_agent.files import whole_folder
from unify_agent.search.base import ImageHit, TextHit

DATABASE = "index.sqlite"
PICTURES = "pictures"
FORMAT = 1
CANDIDATES = 400  # rows that are ranked again by whole words

CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af"
_WORDS = re.compile(rf"[{CJK}]+|[^\W_{CJK}]+")
_IS_CJK = re.compile(rf"[{CJK}]")
_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")

_SCHEMA = f"""
PRAGMA page_size = 4096;
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA user_version = {FORMAT};
CREATE TABLE docs (id INTEGER PRIMARY KEY, lang TEXT NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL,
                   source TEXT NOT NULL, plain_title TEXT NOT NULL, plain_text TEXT NOT NULL);
CREATE VIRTUAL TABLE docs_fts USING fts5(title, text, content='', tokenize='trigram');
CREATE TABLE images (id TEXT PRIMARY KEY, file TEXT NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL,
                     source TEXT NOT NULL, licence TEXT NOT NULL, labels TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE titles (id INTEGER PRIMARY KEY, image TEXT NOT NULL, lang TEXT NOT NULL, title TEXT NOT NULL,
                     plain_title TEXT NOT NULL);
CREATE VIRTUAL TABLE titles_fts USING fts5(title, content='', tokenize='trigram');
"""


def normalise(text: str) -> str:
    """The form in which text is indexed and asked for: NFKC, lower case, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def words(text: str) -> list[str]:
    """The words of a normalised text in order, each once; a run of Chinese characters is one word."""
    return list(dict.fromkeys(_WORDS.findall(text)))


# ---------------------------------------------------------------- building


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
            database.executescript(_SCHEMA)
            with database:
                _add_documents(database, docs)
                if images is not None:
                    _add_images(database, Path(images), work / PICTURES)
                for table in ("docs_fts", "titles_fts"):
                    database.execute(f"INSERT INTO {table}({table}) VALUES ('optimize')")
                database.execute("CREATE INDEX titles_image ON titles(image)")
            database.execute("VACUUM")
        finally:
            database.close()
    return out


def _add_documents(database: sqlite3.Connection, path: Path) -> None:
    for row, (number, record) in enumerate(_lines(path), 1):
        where = f"{path}:{number}"
        title, text = _field(record, "title", where), _field(record, "text", where)
        plain = normalise(title), normalise(text)
        values = (row, _field(record, "lang", where, ""), title, text, _field(record, "source", where, ""))
        database.execute("INSERT INTO docs VALUES (?, ?, ?, ?, ?, ?, ?)", values + plain)
        database.execute("INSERT INTO docs_fts(rowid, title, text) VALUES (?, ?, ?)", (row, *plain))


def _add_images(database: sqlite3.Connection, path: Path, pictures: Path) -> None:
    row = 0
    for number, record in _lines(path):
        where = f"{path}:{number}"
        image_id = _field(record, "id", where)
        if not _SAFE_ID.fullmatch(image_id):
            raise UserError(f"{where}: id {image_id!r} may hold only letters, digits, '.', '_' and '-'")
        source_file = path.parent / _field(record, "path", where)
        try:
            with Image.open(source_file) as picture:
                picture.load()
                (width, height), suffix = picture.size, (picture.format or "png").lower()
        except FileNotFoundError:
            raise UserError(f"{where}: {source_file} does not exist") from None
        except (OSError, ValueError, Image.DecompressionBombError) as fault:
            raise UserError(f"{where}: {source_file} is not a picture that decodes ({fault})") from None
        name = f"{image_id}.{'jpg' if suffix == 'jpeg' else suffix}"
        shutil.copyfile(source_file, pictures / name)
        labels = record.get("labels", {})
        if not isinstance(labels, dict):
            raise UserError(f"{where}: 'labels' must be an object")
        values = (
            image_id,
            name,
            width,
            height,
            _field(record, "source", where, ""),
            _field(record, "licence", where, ""),
            json.dumps(labels, ensure_ascii=False, sort_keys=True),
        )
        try:
            database.execute("INSERT INTO images VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        except sqlite3.IntegrityError:
            raise UserError(f"{where}: the id {image_id!r} occurs twice") from None
        titles = record.get("title")
        for lang, title in titles.items() if isinstance(titles, dict) else [("", titles)]:
            if not isinstance(title, str):
                raise UserError(f"{where}: 'title' must be a string or an object of strings by language")
            row += 1
            plain = normalise(title)
            database.execute("INSERT INTO titles VALUES (?, ?, ?, ?, ?)", (row, image_id, lang, title, plain))
            database.execute("INSERT INTO titles_fts(rowid, title) VALUES (?, ?)", (row, plain))


# ---------------------------------------------------------------- asking


class Index:
    """An opened index. Reads are safe from any number of threads: each has a connection of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.name = f"index:{folder}"
        self._local = threading.local()
        self.languages = {lang for (lang,) in self._database.execute("SELECT DISTINCT lang FROM docs")}

    @classmethod
    def open(cls, path: str | Path) -> Index:
        """Opens the folder that `build_index` made. Raises UserError when there is none, or an unreadable one."""
        folder = Path(path).resolve()
        if not (folder / DATABASE).is_file():
            raise UserError(f"{path}: no search index here ({DATABASE} is missing); build one, or run `make demo`")
        try:
            index = cls(folder)
            version = index._database.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.DatabaseError as fault:
            raise UserError(f"{folder / DATABASE}: not a readable index ({fault}); build it again") from None
        if version != FORMAT:
            raise UserError(f"{folder / DATABASE}: index format {version}, this version reads {FORMAT}; build it again")
        return index

    @property
    def _database(self) -> sqlite3.Connection:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            uri = (self.folder / DATABASE).as_uri() + "?mode=ro&immutable=1"
            connection = self._local.connection = sqlite3.connect(uri, uri=True)
        return connection

    def text_search(self, q: str, hl: str | None = None, top_k: int = 5) -> list[TextHit]:
        """The best `top_k` documents. With `hl`, only documents in that language, when the index has any."""
        asked = words(normalise(q))
        lang = hl if hl in self.languages else None
        found = self._candidates("docs", "plain_title, plain_text", asked, lang, top_k)
        ranked = _rank(asked, normalise(q), found)[:top_k]
        return [TextHit(*self._row("SELECT title, text, source FROM docs WHERE id = ?", row)) for row in ranked]

    def search_image(self, q: str, location: str | None = None, hl: str | None = None, num: int = 8) -> list[ImageHit]:
        """The best `num` pictures by title. `location` is part of the tool's schema; a local index has no places.

        Of a picture with titles in several languages, the one in `hl` (or without a language) is searched and shown;
        when that finds nothing, all are.
        """
        asked, plain = words(normalise(q)), normalise(q)
        ranked: list[int] = []
        for lang in (hl, None) if hl else (None,):
            found = self._candidates("titles", "plain_title, ''", asked, lang, num)
            ranked = _rank(asked, plain, found)
            if ranked:
                break
        hits: dict[str, ImageHit] = {}
        for row in ranked:
            values = self._row(
                "SELECT images.id, title, file, width, height, source, licence FROM titles"
                " JOIN images ON images.id = titles.image WHERE titles.id = ?",
                row,
            )
            hits.setdefault(values[0], ImageHit(values[0], values[1], self.folder / PICTURES / values[2], *values[3:]))
            if len(hits) == num:
                break
        return list(hits.values())

    def labels(self, image_id: str) -> dict:
        """What the picture really shows, for the teacher and the tests. Raises KeyError for an unknown id."""
        row = self._database.execute("SELECT labels FROM images WHERE id = ?", (image_id,)).fetchone()
        if row is None:
            raise KeyError(image_id)
        return json.loads(row[0])

    def image(self, image_id: str) -> ImageHit:
        """A picture by its id, with its first title. Raises KeyError for an unknown id."""
        row = self._database.execute(
            "SELECT images.id, title, file, width, height, source, licence FROM titles"
            " JOIN images ON images.id = titles.image WHERE images.id = ? ORDER BY titles.id",
            (image_id,),
        ).fetchone()
        if row is None:
            raise KeyError(image_id)
        return ImageHit(row[0], row[1], self.folder / PICTURES / row[2], *row[3:])

    def image_ids(self) -> list[str]:
        """All picture ids in order."""
        return [row[0] for row in self._database.execute("SELECT id FROM images ORDER BY id")]

    def _row(self, query: str, row: int) -> tuple:
        return self._database.execute(query, (row,)).fetchone()

    def _candidates(self, table: str, columns: str, asked: list[str], lang: str | None, wanted: int) -> list[tuple]:
        """Rows (id, bm25, title, text) that hold all words; when these are too few, also rows that hold any of them,
        then rows that hold any two neighbouring characters of a Chinese run."""
        found = self._holding(table, columns, asked, lang, "AND") if asked else []
        for parts in (asked, pieces(asked)):
            if len(found) < wanted and (len(parts) > 1 or parts != asked):
                known = {row[0] for row in found}
                found += [row for row in self._holding(table, columns, parts, lang, "OR") if row[0] not in known]
        return found

    def _holding(self, table: str, columns: str, asked: list[str], lang: str | None, mode: str) -> list[tuple]:
        long = [word for word in asked if len(word) >= 3]
        short = [word for word in asked if len(word) < 3]
        place = f"({' || char(10) || '.join(columns.split(', '))})"
        contains = f" {mode} ".join(f"instr({place}, ?) > 0" for _ in short)
        count = " + ".join(f"(instr({place}, ?) > 0)" for _ in short)
        of_lang, lang_values = ("", []) if lang is None else (" AND lang IN (?, '')", [lang])
        rows: list[tuple] = []
        if long:
            match = f" {mode} ".join('"' + word + '"' for word in long)
            also = f" AND ({contains})" if short and mode == "AND" else ""
            weights = "10.0, 1.0" if table == "docs" else "1.0"
            rows = self._database.execute(
                f"SELECT {table}.id, bm25({table}_fts, {weights}) AS score, {columns} FROM {table}_fts"
                f" JOIN {table} ON {table}.id = {table}_fts.rowid"
                f" WHERE {table}_fts MATCH ?{also}{of_lang} ORDER BY score, {table}.id LIMIT {CANDIDATES}",
                [match, *(short if also else []), *lang_values],
            ).fetchall()
        if short and (mode == "OR" or not long):
            known = {row[0] for row in rows}
            rows += [
                row
                for row in self._database.execute(
                    f"SELECT id, 0.0, {columns} FROM {table} WHERE ({contains}){of_lang}"
                    f" ORDER BY {count} DESC, length(plain_title), id LIMIT {CANDIDATES}",
                    [*short, *lang_values, *short],
                )
                if row[0] not in known
            ]
        return rows


def pieces(asked: list[str]) -> list[str]:
    """The words, with each Chinese run of more than two characters cut into its pairs of neighbours."""
    pieces: list[str] = []
    for word in asked:
        long = len(word) > 2 and _IS_CJK.match(word)
        pieces += [word[k : k + 2] for k in range(len(word) - 1)] if long else [word]
    return list(dict.fromkeys(pieces))


def _rank(asked: list[str], plain: str, found: list[tuple]) -> list[int]:
    """Ids of `found` (id, bm25, title, text), best first.

    A word counts fully in the title and 0.6 in the text, half of that where it is only part of a longer word. Each is
    weighted by its rarity among the candidates; a title that is the query, or holds it as it stands, comes first.
    """
    asked = list(dict.fromkeys([*asked, *pieces(asked)]))
    hits = []
    for row, score, title, text in found:
        hits.append((row, score, title, [max(holds(title, word), 0.6 * holds(text, word)) for word in asked]))
    rarity = [math.log(1 + len(hits) / (1 + sum(values[k] >= 0.6 for *_, values in hits))) for k in range(len(asked))]

    def key(hit: tuple) -> tuple:
        row, score, title, values = hit
        cover = sum(weight * value for weight, value in zip(rarity, values, strict=True)) / (sum(rarity) or 1.0)
        whole = 1.0 if title == plain else 0.5 if holds(title, plain) == 1.0 else 0.0
        return (-round(cover + 0.5 * whole, 6), score, row)

    return [hit[0] for hit in sorted(hits, key=key)]


def holds(text: str, word: str) -> float:
    """1 when `word` stands in `text` as whole words (always so for Chinese), 0.5 as a part of a word, else 0."""
    at = text.find(word)
    if at < 0:
        return 0.0
    if _IS_CJK.search(word):
        return 1.0
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(word) : at + len(word) + 1]
        if not (before.isalnum() or after.isalnum()) or _IS_CJK.search(before + after):
            return 1.0
        at = text.find(word, at + 1)
    return 0.5
