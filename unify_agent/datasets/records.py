"""From a trajectory record and its pictures to the document that is trained, or the reason why it cannot be.

Folders and parquet files hold the same records; what counts as usable is decided here, for both.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydantic import ValidationError

from unify_agent.datasets.indexed import IndexedSource
from unify_agent.datasets.sources import SourceContext
from unify_agent.datasets.trajectory import Trajectory, Turn
from unify_agent.interleave.grammar import misplaced_tag, unsafe_in_user
from unify_agent.interleave.layout import PARTS, Exchange, Part, Pixels, lay_out
from unify_agent.interleave.segments import Document, Unusable

MAX_REFERENCES = 2
_RECAPTION = re.compile(r"<recaption>(.*?)</recaption>", re.DOTALL)
_BLANK = re.compile(r"\ufeff?[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_NAMED = re.compile(r"(?<![A-Za-z0-9])image_(\d{1,2})(?!\d)")


def read_record(content: Any, name: str) -> Trajectory:
    """The record in a piece of JSON. Raises `Unusable`; `name` is what its message calls it."""
    try:
        record = Trajectory.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "record"
        raise Unusable("record does not fit the schema", f"{name}, key {key}: {first['msg']}") from None
    texts = [record.ip_index, *(text for turn in record.turns_for_training() for text in _texts(turn))]
    if not all(is_unicode(text) for text in texts):
        raise Unusable("text is not valid Unicode", name)
    return record


def records_in(data: bytes, name: str) -> list[Trajectory | Unusable]:
    """The records of a JSON file's content, each parsed or with the reason why not.

    Raises `Unusable` when the file as a whole is none; `name` is what its message calls it.
    """
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise Unusable("trajectory file is not JSON", f"{name} ({error})") from None
    if content == []:
        raise Unusable("trajectory file holds no record", name)
    records: list[Trajectory | Unusable] = []
    for each in content if isinstance(content, list) else [content]:
        try:
            records.append(read_record(each, name))
        except Unusable as error:
            records.append(error)
    return records


def lay_out_record(
    name: str,
    record: Trajectory,
    references: Sequence[Image.Image],
    target: Image.Image | None,
    context: SourceContext,
    pixels: Pixels,
    *,
    part: Part = "whole",
    from_request: bool = False,
    strict: bool = True,
) -> Document:
    """The document of a record and its pictures, or the `part` of it that is asked for (see `lay_out`).

    `strict`: a turn whose tags are not well-formed is not trained on. Raises `Unusable`.
    """
    if record.error:
        raise Unusable("the record reports an error", record.error)
    turns = record.turns_for_training()
    if turns:
        _check_recaption(turns[-1], record, len(references))
    if strict:
        for number, turn in enumerate(turns):
            _check_tags(number, turn)
    exchanges = []
    for turn in turns:
        ids = turn.ids_for(context.grammar.fingerprint)
        response = context.grammar.encode(turn.response_text) if ids is None else ids
        exchanges.append(Exchange(turn.input, response))
    return lay_out(
        name,
        exchanges,
        references,
        target,
        grammar=context.grammar,
        pixels=pixels,
        preset=context.preset,
        part=part,
        context="request" if from_request else "recaption",
        copies=context.copies,
    )


class RecordSource(IndexedSource):
    """Trajectories below `path`. `request_share`: share of pictures drawn from the request instead of the recaption.

    `strict`: turns whose tags are not well-formed are not trained on.
    """

    def __init__(
        self,
        context: SourceContext,
        path: Path | str,
        *,
        request_share: float = 0.0,
        strict: bool = True,
        name: str | None = None,
    ) -> None:
        path = Path(path)
        files = self.find(path)
        self.request_share, self.strict = request_share, strict
        self.parts = PARTS[context.preset]
        root = path if path.is_dir() else path.parent
        super().__init__(context, path, root, files, name or path.resolve().stem, f"{request_share} {strict}")

    @staticmethod
    @abstractmethod
    def find(path: Path) -> list[str]:
        """The files of records, below `path` or its folder. Raises UserError when there is none."""

    def _laid_out(
        self,
        name: str,
        record: Trajectory,
        references: Sequence[Image.Image],
        target: Image.Image | None,
        pixels: Pixels,
        part: Part,
        rng: np.random.Generator | None = None,
    ) -> Document:
        """One document of a record. By chance the picture is drawn from the request; without `rng` the document is the
        longest that this can make."""

        def made(from_request: bool) -> Document:
            return lay_out_record(
                name, record, references, target, self.context, pixels,
                part=part, from_request=from_request, strict=self.strict,
            )  # fmt: skip

        if rng is not None:
            return made(bool(rng.random() < self.request_share))
        document = made(False)
        if part == "generation" and self.request_share:
            document = max(document, made(True), key=lambda each: each.slots)
        return document


def is_unicode(text: str) -> bool:
    """Whether a string can be written as UTF-8; JSON can hold half of a surrogate pair, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_file_name(text: str) -> bool:
    """Whether an id can safely name a file: not empty, no separator, no way out of its folder."""
    if not is_unicode(text) or not text or text in (".", ".."):
        return False
    return not set(text) & set("/\\\0") and len(text.encode()) <= 200


def split_records(text: str) -> list[tuple[str, str, str]]:
    """(before, record, after) of every record in a JSON file's text, which is one object or a list of them.

    Joined in order they are the text again, byte for byte. Raises ValueError when it is neither.
    """
    decoder = json.JSONDecoder()
    at = _match(_BLANK, text, 0)
    content, stop = decoder.raw_decode(text, at)
    if text[stop:].strip(" \t\r\n"):
        raise ValueError("text after the JSON value")
    if not isinstance(content, list):
        return [(text[:at], text[at:stop], text[stop:])]
    if not content:
        raise ValueError("no record")
    pieces: list[tuple[str, str, str]] = []
    before, at = 0, at + 1
    for _ in content:
        at = _match(_BETWEEN, text, at)
        _, end = decoder.raw_decode(text, at)
        pieces.append((text[before:at], text[at:end], ""))
        before = at = end
    first, record, _ = pieces[-1]
    pieces[-1] = (first, record, text[before:])
    return pieces


def _match(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _texts(turn: Turn) -> tuple[str, str]:
    return turn.input, turn.response_text


def _check_tags(number: int, turn: Turn) -> None:
    for side, tag in (("response_text", misplaced_tag(turn.response_text)), ("input", unsafe_in_user(turn.input))):
        if tag is not None:
            raise Unusable("tags are not well-formed", f"turn {number}, {side}: {tag}")


def _check_recaption(turn: Turn, record: Trajectory, references: int) -> None:
    """The recaption is there and says something, and what it and the record name as references is there."""
    found = _RECAPTION.findall(turn.response_text)
    if not found:
        raise Unusable("no complete recaption in the last turn")
    if not found[-1].strip():
        raise Unusable("recaption is empty")
    named = max((int(number) for number in _NAMED.findall(found[-1])), default=0)
    wanted = max(named, min(len(record.references), MAX_REFERENCES))
    if wanted > references:
        raise Unusable("a reference is missing", f"image_{references + 1} is named, {references} are there")
