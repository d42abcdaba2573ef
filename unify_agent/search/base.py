"""What every search back end answers with. The agent knows only this file; which back end answers is the user's choice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from PIL import Image


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
        """The picture as RGB, transparent parts on white. Raises OSError when the file no longer decodes."""
        with Image.open(self.path) as picture:
            return on_white(picture)


def on_white(picture: Image.Image) -> Image.Image:
    """RGB copy of a picture; transparency becomes white, as BAGEL's transforms do (facts/bagel.md section 9)."""
    if picture.mode in ("RGBA", "LA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        ground = Image.new("RGB", picture.size, (255, 255, 255))
        ground.paste(picture, mask=picture.getchannel("A"))
        return ground
    return picture.convert("RGB")


class SearchBackend(Protocol):
    """The two tools of the paper (appendix E.1). Both may be called from several threads at once."""

    name: str

    def text_search(self, q: str, hl: str | None = None, top_k: int = 5) -> list[TextHit]: ...

    def search_image(
        self, q: str, location: str | None = None, hl: str | None = None, num: int = 8
    ) -> list[ImageHit]: ...
