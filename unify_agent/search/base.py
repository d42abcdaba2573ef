"""What every search back end answers with: the agent knows only this file, which one answers is the user's choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from PIL import Image

from unify_agent.interleave.transforms import open_picture

Kind = Literal[
    "service_down", "wrong_key", "bad_request", "bad_answer", "refused", "too_large", "not_recorded", "broken_record"
]


class SearchError(Exception):
    """A search that found out nothing, told in one line. `kind` says what that means for the rest of a run:

    service_down: not reachable, too slow, out of order or over its rate limit, after all tries. wrong_key: the service
    does not accept the key. bad_request: it does not accept the question. bad_answer: what it sent makes no sense.
    refused: an address that may not be visited. too_large: more bytes than are taken. not_recorded: a replay without
    this answer. broken_record: a recorded answer that is damaged.
    """

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(" ".join(message.split()))
        self.kind: Kind = kind

    def __reduce__(self) -> tuple:
        return SearchError, (self.kind, str(self))


def well_formed(text: str) -> str:
    """The text with question marks for halves of surrogate pairs, which JSON can hold and nothing else takes."""
    return text.encode("utf-8", "replace").decode()


@dataclass(frozen=True)
class TextHit:
    """One text result. `text` is a summary or snippet, untrusted; `source` says where it comes from (an address)."""

    title: str
    text: str
    source: str
    licence: str = ""


@dataclass(frozen=True)
class ImageHit:
    """One picture result: `path` is an absolute path of a file that decodes; width and height in pixels.

    `source` is the page or collection that shows it, `url` the address that the file came from, `author` whom its
    licence asks to name; "" is unknown.
    """

    id: str
    title: str
    path: Path
    width: int
    height: int
    source: str
    licence: str
    url: str = ""
    author: str = ""

    def open(self) -> Image.Image:
        """The picture as RGB, transparent parts on white. Raises `Unusable` when the file does not decode."""
        return open_picture(self.path)


class SearchBackend(Protocol):
    """The two tools of the paper (appendix E.1). Both may be called from several threads at once.

    hl: language of the results, such as `en` or `zh-CN`. location: where to search from. Both raise `SearchError` when
    there is no answer; nothing found is an empty list.
    """

    name: str

    def text_search(self, q: str, hl: str | None = None, top_k: int = 5) -> list[TextHit]: ...

    def search_image(
        self, q: str, location: str | None = None, hl: str | None = None, num: int = 8
    ) -> list[ImageHit]: ...


OnHit = Callable[[ImageHit], None]


def search_images(
    search: SearchBackend, q: str, location: str | None, hl: str | None, num: int, on_hit: OnHit | None
) -> list[ImageHit]:
    """`search.search_image(...)`; `on_hit` is told of pictures as they come, where a back end has them one by one.

    Those back ends (`early = True`) take `on_hit`, too, and call it from any thread. What they tell may be superseded
    by a larger picture that looks alike: what counts is the result.
    """
    more = {"on_hit": on_hit} if on_hit is not None and getattr(search, "early", False) else {}
    return search.search_image(q, location, hl, num, **more)


class NoSearch:
    """The back end of an agent that is not to search: it finds nothing."""

    name = "none"

    def text_search(self, q: str, hl: str | None = None, top_k: int = 5) -> list[TextHit]:
        return []

    def search_image(
        self, q: str, location: str | None = None, hl: str | None = None, num: int = 8
    ) -> list[ImageHit]:
        return []
