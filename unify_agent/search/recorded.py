"""`record:DIR:SPEC` and `replay:DIR`: every answer of a back end kept, so that a run can be repeated offline exactly.

    DIR/record.json                 which back end answered, the format
    DIR/answers/<2>/<hash>.json     one question (tool and arguments, whose hash is the name) and its answer or error
    DIR/pictures/<hash>.<suffix>    the pictures, under the hash of their content

Each file appears whole or not at all, the pictures of an answer before the answer. The first answer to a question
stands: who records into the same folder again, or at the same time, is answered from it. An error stands until the
question has an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from unify_agent.errors import UserError
from unify_agent.files import digest, read_json, write_bytes, write_json, write_once
from unify_agent.search.base import (
    ImageHit,
    Kind,
    OnHit,
    SearchBackend,
    SearchError,
    TextHit,
    search_images,
    well_formed,
)

FORMAT = 1
MANIFEST = "record.json"
ANSWERS = "answers"
PICTURES = "pictures"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Text(_Strict):
    title: str
    text: str
    source: str
    licence: str


class _Picture(_Strict):
    id: str
    title: str
    file: str
    width: int
    height: int
    source: str
    licence: str
    url: str
    author: str


class _Error(_Strict):
    kind: Kind
    message: str


class _Entry(_Strict):
    tool: Literal["text_search", "search_image"]
    arguments: dict[str, Any]
    texts: list[_Text] = []
    pictures: list[_Picture] = []
    error: _Error | None = None


def _question(**arguments: str | int | None) -> dict[str, Any]:
    return {name: well_formed(value) if isinstance(value, str) else value for name, value in arguments.items()}


def _answer(entry: _Entry) -> _Entry:
    if entry.error is not None:
        raise SearchError(entry.error.kind, entry.error.message)
    return entry


class _Folder:
    """The files of a recording."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def path(self, tool: str, arguments: dict[str, Any]) -> Path:
        """Where the answer to a question is."""
        name = digest(json.dumps([tool, arguments], sort_keys=True))
        return self.folder / ANSWERS / name[:2] / f"{name}.json"

    def read(self, path: Path) -> _Entry | None:
        """An entry, None when there is none. Raises SearchError (`broken_record`) for one that is damaged."""
        try:
            return _Entry.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            raise SearchError("broken_record", f"{path}: not an answer that was recorded; remove the file") from None

    def texts(self, entry: _Entry) -> list[TextHit]:
        """The text results of an entry."""
        return [TextHit(each.title, each.text, each.source, each.licence) for each in entry.texts]

    def images(self, entry: _Entry) -> list[ImageHit]:
        """The pictures of an entry, each checked against its hash."""
        return [
            ImageHit(
                each.id, each.title, self._checked(each.file), each.width, each.height, each.source, each.licence,
                each.url, each.author,
            )
            for each in entry.pictures
        ]  # fmt: skip

    def _checked(self, name: str) -> Path:
        path = self.folder / PICTURES / Path(name).name
        try:
            whole = digest(path.read_bytes()) == path.stem
        except OSError:
            whole = False
        if not whole:
            raise SearchError("broken_record", f"{path}: this recorded picture is missing or damaged")
        return path

    def keep(self, hit: ImageHit) -> _Picture:
        """Stores a picture; returns what an entry says of it."""
        content = hit.path.read_bytes()
        name = f"{digest(content)}{hit.path.suffix.lower()}"
        if not (self.folder / PICTURES / name).is_file():
            write_bytes(self.folder / PICTURES / name, content)
        return _Picture(
            id=hit.id, title=hit.title, file=name, width=hit.width, height=hit.height, source=hit.source,
            licence=hit.licence, url=hit.url, author=hit.author,
        )  # fmt: skip

    def write(self, path: Path, entry: _Entry) -> _Entry:
        """Stores an entry where there is none, or an answer over an error; returns the one that stands."""
        content = (entry.model_dump_json(indent=2) + "\n").encode()
        if write_once(path, content):
            return entry
        standing = self.read(path)
        if standing is None or (standing.error is not None and entry.error is None):
            write_bytes(path, content)
            return entry
        return standing


class Recording:
    """Asks `inner` what it has not been asked before, and keeps the answers."""

    early = True

    def __init__(self, folder: Path, inner: SearchBackend, spec: str) -> None:
        self._store, self.inner = _Folder(folder), inner
        self.name = inner.name
        place = self._store.folder
        filled = place.is_dir() and any(not each.name.startswith(".") for each in place.iterdir())
        manifest = place / MANIFEST  # looked for after the rest: another process may be making the folder
        if manifest.is_file():
            made = read_json(manifest, "record of searches")
            if made != {"format": FORMAT, "search": spec}:
                raise UserError(
                    f"{folder}: holds what {made.get('search') if isinstance(made, dict) else 'something else'} "
                    f"answered, not {spec}; choose another folder to record into"
                )
        elif filled:
            raise UserError(f"{folder}: exists and holds no record of searches; choose another folder")
        else:
            write_json(manifest, {"format": FORMAT, "search": spec})

    def text_search(self, q: str, hl: str | None = None, top_k: int = 5) -> list[TextHit]:
        """As the inner back end."""

        def ask() -> dict[str, Any]:
            hits = self.inner.text_search(q, hl, top_k)
            return {"texts": [_Text(title=h.title, text=h.text, source=h.source, licence=h.licence) for h in hits]}

        return self._store.texts(self._entry("text_search", _question(q=q, hl=hl, top_k=top_k), ask))

    def search_image(
        self, q: str, location: str | None = None, hl: str | None = None, num: int = 8, on_hit: OnHit | None = None
    ) -> list[ImageHit]:
        """As the inner back end; the pictures are those of the folder."""

        def ask() -> dict[str, Any]:
            found = search_images(self.inner, q, location, hl, num, on_hit)
            return {"pictures": [self._store.keep(hit) for hit in found]}

        asked = _question(q=q, location=location, hl=hl, num=num)
        return self._store.images(self._entry("search_image", asked, ask))

    def _entry(
        self, tool: Literal["text_search", "search_image"], asked: dict[str, Any], ask: Callable[[], dict[str, Any]]
    ) -> _Entry:
        path = self._store.path(tool, asked)
        known = self._store.read(path)
        if known is not None and known.error is None:
            return known
        try:
            entry = _Entry(tool=tool, arguments=asked, **ask())
        except SearchError as error:
            entry = _Entry(tool=tool, arguments=asked, error=_Error(kind=error.kind, message=str(error)))
        return _answer(self._store.write(path, entry))


class Replay:
    """Answers from a recording alone. A question that was not recorded is a SearchError (`not_recorded`)."""

    def __init__(self, folder: Path) -> None:
        self._store, self._shown = _Folder(folder), folder
        made = read_json(self._store.folder / MANIFEST, "record of searches")
        if not isinstance(made, dict) or made.get("format") != FORMAT or not isinstance(made.get("search"), str):
            raise UserError(f"{folder / MANIFEST}: not a record of searches of format {FORMAT}; record it again")
        self.name = made["search"].partition(":")[0]

    def text_search(self, q: str, hl: str | None = None, top_k: int = 5) -> list[TextHit]:
        """As it was answered then."""
        return self._store.texts(self._entry("text_search", _question(q=q, hl=hl, top_k=top_k)))

    def search_image(self, q: str, location: str | None = None, hl: str | None = None, num: int = 8) -> list[ImageHit]:
        """As it was answered then; the pictures are those of the folder."""
        asked = _question(q=q, location=location, hl=hl, num=num)
        return self._store.images(self._entry("search_image", asked))

    def _entry(self, tool: str, asked: dict[str, Any]) -> _Entry:
        entry = self._store.read(self._store.path(tool, asked))
        if entry is None:
            shown = ", ".join(f"{name}={value!r}"[:80] for name, value in asked.items() if value is not None)
            raise SearchError(
                "not_recorded",
                f"{self._shown} holds no answer to {tool}({shown}); ask it once with record:{self._shown}:...",
            )
        return _answer(entry)
