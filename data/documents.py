"""A user's own texts as documents to search: txt, md, html, jsonl and csv.

    txt, md, html   one document a file; titled by the file's name, the first heading, the title element
    jsonl           one object a line: title, text; may hold lang, source
    csv             a header line with the same names

All are UTF-8. A long document becomes several passages, each a result of its own under the same title.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from unify_agent.search.passages import passages

PASSAGE = 1200
"""Characters of a passage."""
LARGEST = 64 * 2**20
"""Bytes of a file that is one document, and of a field of a table."""


@dataclass(frozen=True)
class Document:
    """One passage as it is indexed."""

    title: str
    text: str
    lang: str
    source: str


@dataclass(frozen=True)
class Fault:
    """What could not be taken, where (`file` or `file:line`), and why. `passing`: it may be otherwise next time."""

    where: str
    reason: str
    passing: bool = False


def read_documents(path: Path, name: str, lang: str = "") -> Iterator[Document | Fault]:
    """The passages of a file, called `name` in sources and messages; `lang` where the file does not say.

    Whatever can't be read comes as a Fault: a line, or the file.
    """
    try:
        yield from READERS[path.suffix.lower()](path, name, lang)
    except UnicodeDecodeError as error:
        yield Fault(name, f"not UTF-8 text (byte {error.start})")
    except OSError as error:
        yield Fault(name, f"cannot be read ({error.strerror})", passing=True)


def _passages(title: str, text: str, lang: str, source: str) -> Iterator[Document]:
    parts = list(passages(text, PASSAGE))
    for number, part in enumerate(parts, 1):
        yield Document(title, part, lang, source if len(parts) == 1 else f"{source}#{number}")


def _whole(path: Path, name: str) -> str | Fault:
    if path.stat().st_size > LARGEST:
        return Fault(name, f"larger than {LARGEST >> 20} MB; split it, or make it a JSONL file")
    text = path.read_text(encoding="utf-8-sig")
    return text if text.strip() else Fault(name, "holds no text")


def spoken(stem: str) -> str:
    """A file's name as a title: `brass_owl-2` is `brass owl 2`."""
    return " ".join(re.sub(r"[_\-]+", " ", stem).split()) or stem


def _plain(path: Path, name: str, lang: str) -> Iterator[Document | Fault]:
    text = _whole(path, name)
    if isinstance(text, Fault):
        yield text
        return
    heading = re.search(r"^#\s+(.+?)\s*#*\s*$", text, re.MULTILINE) if path.suffix.lower() == ".md" else None
    yield from _passages(heading[1] if heading else spoken(path.stem), text, lang, name)


class _Page(HTMLParser):
    """The title, the language and the visible text of a page."""

    HIDDEN = frozenset({"script", "style", "noscript", "template", "svg", "head"})
    BLOCKS = frozenset(
        {"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "table", "ul", "ol"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.title, self.lang, self.text = "", "", list[str]()
        self._hidden: list[str] = []
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "html":
            self.lang = (dict(attrs).get("lang") or "").partition("-")[0].lower()
        self._in_title = tag == "title" and not self.title
        if tag == "body":
            self._hidden.clear()
        if tag in self.HIDDEN:
            self._hidden.append(tag)
        elif tag in self.BLOCKS:
            self.text.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False
        if tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        elif tag in self.BLOCKS:
            self.text.append("\n\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif not self._hidden:
            self.text.append(re.sub(r"\s+", " ", data))


def _html(path: Path, name: str, lang: str) -> Iterator[Document | Fault]:
    text = _whole(path, name)
    if isinstance(text, Fault):
        yield text
        return
    page = _Page()
    page.feed(text)
    page.close()
    shown = "".join(page.text)
    if not shown.strip():
        yield Fault(name, "holds no text")
        return
    title = " ".join(page.title.split()) or spoken(path.stem)
    yield from _passages(title, shown, lang or page.lang, name)


def _record(record: dict[str, Any], where: str, source: str, lang: str) -> Iterator[Document | Fault]:
    values = {key: record.get(key) or "" for key in ("title", "text", "lang", "source")}
    for key, value in values.items():
        if not isinstance(value, str):
            yield Fault(where, f"'{key}' must be a text")
            return
    for key in ("title", "text"):
        if not values[key].strip():
            yield Fault(where, f"'{key}' is missing or empty")
            return
    yield from _passages(
        " ".join(values["title"].split()), values["text"], values["lang"].strip() or lang, values["source"] or source
    )


def _jsonl(path: Path, name: str, lang: str) -> Iterator[Document | Fault]:
    for number, record in json_lines(path, name):
        where = f"{name}:{number}"
        if isinstance(record, Fault):
            yield record
        else:
            yield from _record(record, where, where, lang)


def _csv(path: Path, name: str, lang: str) -> Iterator[Document | Fault]:
    for number, record in csv_lines(path, name, ("title", "text")):
        where = f"{name}:{number}"
        if isinstance(record, Fault):
            yield record
        else:
            yield from _record(record, where, where, lang)


def json_lines(path: Path, name: str) -> Iterator[tuple[int, dict[str, Any] | Fault]]:
    """The objects of a JSONL file by line number, a Fault for a line that is none."""
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, Fault(f"{name}:{number}", f"not JSON ({getattr(error, 'msg', 'nested too deeply')})")
                continue
            is_object = isinstance(record, dict)
            yield number, record if is_object else Fault(f"{name}:{number}", "a JSON object is expected")


def csv_lines(path: Path, name: str, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any] | Fault]]:
    """The rows of a CSV file with a header by line number; a Fault for a missing column or a row that breaks off."""
    csv.field_size_limit(LARGEST)
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, strict=True)
        try:
            missing = [column for column in needed if column not in (rows.fieldnames or ())]
            if missing:
                yield 1, Fault(name, f"has no column '{missing[0]}'; its first line must name the columns")
                return
            for row in rows:
                extra = None in row
                yield rows.line_num, Fault(f"{name}:{rows.line_num}", "more fields than columns") if extra else row
        except csv.Error as error:
            yield rows.line_num, Fault(f"{name}:{rows.line_num}", f"not CSV ({error}); the rest is not read")


READERS: dict[str, Callable[[Path, str, str], Iterator[Document | Fault]]] = {
    ".txt": _plain, ".md": _plain, ".html": _html, ".htm": _html, ".jsonl": _jsonl, ".csv": _csv,
}  # fmt: skip
"""Reader by suffix: the kinds of files that are documents."""
