"""What every search back end answers with: the agent knows only this file, which one answers is the user's choice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from PIL import Image

from unify_agent.interleave.transforms import open_picture


@dataclass(frozen=True)
class TextHit:
    """One text result. `text` is a summary or snippet, untrusted; `source` says where it comes from."""

    title: str
    text: str
    source: str


@dataclass(frozen=True)
class ImageHit:
    """One picture result: `path` is an absolute path of a file that decodes; width and height in pixels."""

    id: str
    title: str
    path: Path
    width: int
    height: int
    source: str
    licence: str

    def open(self) -> Image.Image:
        """The picture as RGB, transparent parts on white. Raises `Unusable` when the file does not decode."""
        return open_picture(self.path)


class SearchBackend(Protocol):
    """The two tools of the paper (appendix E.1). Both may be called from several threads at once."""

    name: str

    def text_search(self, q: str, hl: str | None = None, top_k: int = 5) -> list[TextHit]: ...

    def search_image(
        self, q: str, location: str | None = None, hl: str | None = None, num: int = 8
    ) -> list[ImageHit]: ...
