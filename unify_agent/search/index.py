"""A search index in one folder: `index.sqlite` (FTS5, trigram tokens) and `pictures/`.

Trigrams make Chinese searchable without a word segmenter. They match substrings ("cat" is found in
"caterpillar"), so what FTS5 finds is ranked again by whole words: how much of the query is in the title, then in
the text, rare words first, and BM25 decides between equals. Words shorter than three characters have no trigram;
they are looked up by a scan of the normalised text (about 1 ms for 10,000 short documents).

building.py makes one.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import threading
import unicodedata
from pathlib import Path

from unify_agent.errors import UserError
from unify_agent.search.base import ImageHit, TextHit, well_formed

DATABASE = "index.sqlite"
PICTURES = "pictures"
FORMAT = 1
CANDIDATES = 400  # rows that are ranked again by whole words
CACHE = 256
"""KiB of pages that each thread keeps; the operating system keeps the file."""

CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af"
_WORDS = re.compile(rf"[{CJK}]+|[^\W_{CJK}]+")
_IS_CJK = re.compile(rf"[{CJK}]")


def normalise(text: str) -> str:
    """The form in which text is indexed and asked for: NFKC, lower case, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", well_formed(text)).casefold().split())


def words(text: str) -> list[str]:
    """The words of a normalised text in order, each once; a run of Chinese characters is one word."""
    return list(dict.fromkeys(_WORDS.findall(text)))


class Index:
    """An opened index. Reads are safe from any number of threads: each has a connection of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.name = f"index:{folder}"
        self._local = threading.local()
        self.languages = {lang for (lang,) in self._database.execute("SELECT DISTINCT lang FROM docs")}

    @classmethod
    def open(cls, path: str | Path) -> Index:
        """Opens the folder of an index. Raises UserError when there is none, or an unreadable one."""
        folder = Path(path).resolve()
        if not (folder / DATABASE).is_file():
            raise UserError(
                f"{path}: no search index here ({DATABASE} is missing); make one of your own files with "
                "`python -m data index`, or run `make demo`"
            )
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
            connection.execute(f"PRAGMA cache_size = -{CACHE}")
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
