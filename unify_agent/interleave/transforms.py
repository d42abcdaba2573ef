"""From a picture file to uint8 pixels of a size that its tower can cut into patches.

The resize rule is BAGEL's (facts: image transforms), its quirks included: python rounds to even, twice, and
an area ratio is used as a side ratio when a picture exceeds the pixel budget.

EXIF orientation is ignored, as in BAGEL: pixels are taken as the file stores them. Of an animation the first
frame is taken.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from unify_agent.interleave.segments import Unusable

MAX_FILE_PIXELS = 80_000_000
"""Files that claim more pixels than this are refused unread: 240 MB as RGB."""


def to_rgb(picture: Image.Image) -> Image.Image:
    """RGB of any picture: what is transparent lies on white; palettes, CMYK, grey and so on are converted."""
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture
    if picture.has_transparency_data:
        rgba = picture.convert("RGBA")
        white = Image.new("RGB", rgba.size, (255, 255, 255))
        white.paste(rgba, mask=rgba.getchannel("A"))
        return white
    if picture.mode.startswith("I"):  # 16-bit grey: Pillow's own conversion would clip it to white
        deep = np.asarray(picture).astype(np.int64)
        grey = np.clip(deep >> 8 if deep.max(initial=0) > 255 else deep, 0, 255)
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    return picture.convert("RGB")


PictureFile = Path | str | bytes
"""Where a picture lies, or the file's content itself."""


def peek_picture(file: PictureFile, name: str = "") -> Image.Image:
    """Open a picture without decoding it: its `size` is known, its pixels are not read yet.

    `name`: what messages call it, needed for bytes. Raises `Unusable` when there is none, when it is no picture, or
    when it claims to be gigantic.
    """
    name = _called(file, name)
    try:
        picture = Image.open(io.BytesIO(file) if isinstance(file, bytes) else file)
    except FileNotFoundError:
        raise Unusable("picture missing", name) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Unusable("picture too large", name) from None
    except Exception as error:  # Pillow's readers raise whatever a broken header leads them to
        raise Unusable("not a picture", f"{name} ({error})") from None
    if picture.width * picture.height > MAX_FILE_PIXELS:
        picture.close()
        raise Unusable("picture too large", f"{name} ({picture.width}x{picture.height})")
    return picture


def open_picture(file: PictureFile, name: str = "") -> Image.Image:
    """A decoded RGB picture. Raises `Unusable` as `peek_picture` does, and for a file that breaks off."""
    with peek_picture(file, name) as picture:
        try:
            picture.load()
            return to_rgb(picture).copy()
        except Exception as error:  # as above
            raise Unusable("picture does not decode", f"{_called(file, name)} ({error})") from None


def _called(file: PictureFile, name: str) -> str:
    return name or ("picture" if isinstance(file, bytes) else str(file))


@dataclass(frozen=True)
class Transform:
    """Resize: long side at most `max_size`, short side at least `min_size`, both multiples of `stride`.

    `min_size` enlarges small pictures; very long ones end below it. `max_pixels` bounds the area.
    """

    max_size: int
    min_size: int
    stride: int
    max_pixels: int = 14 * 14 * 9 * 1024

    def size(self, width: int, height: int, pictures: int = 1) -> tuple[int, int]:
        """(width, height) after the transform; the pixel budget is shared by the `pictures` of a sample."""
        scale = min(self.max_size / max(width, height), 1.0)
        width, height = self._scaled(width, height, max(scale, self.min_size / min(width, height)))
        budget = self.max_pixels / pictures
        if width * height > budget:
            width, height = self._scaled(width, height, budget / (width * height))
        if max(width, height) > self.max_size:
            width, height = self._scaled(width, height, self.max_size / max(width, height))
        return width, height

    def _scaled(self, width: int, height: int, scale: float) -> tuple[int, int]:
        def divisible(side: int) -> int:
            return max(self.stride, round(round(side * scale) / self.stride) * self.stride)

        return divisible(width), divisible(height)

    def __call__(self, picture: Image.Image) -> np.ndarray:
        """uint8 [H, W, 3] of a PIL picture of any mode; bicubic, antialiased."""
        picture = to_rgb(picture)
        size = self.size(*picture.size)
        if size != picture.size:
            picture = picture.resize(size, Image.Resampling.BICUBIC)
        return np.array(picture)

    def shape_only(self, picture: Image.Image) -> np.ndarray:
        """An array of the right shape that costs nothing (no pixel is read): for measuring documents."""
        width, height = self.size(*picture.size)
        return np.broadcast_to(np.uint8(0), (height, width, 3))
