"""A scene says how a thing is drawn; `compose` draws it exactly, so the truth of every request is known.

Sizes count the longest side of the drawing without its margin. A tilted drawing that would outgrow its room is
scaled down to fit, so that nothing is ever cut off and the place names a point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from data.openmoji.entities import COMMON
from data.openmoji.pictures import cropped

SIDE = 64

BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "white": (255, 255, 255), "grey": (150, 150, 150), "red": (214, 64, 64), "yellow": (250, 216, 84),
    "green": (96, 184, 96), "blue": (72, 132, 222), "purple": (146, 92, 190), "pink": (246, 164, 194),
}  # fmt: skip
PLACES = ("centre", "left", "right", "top", "bottom")
SIZES = {"small": 28, "large": 44}
ROTATIONS = {"upright": 0, "tilted left": 15, "tilted right": -15}
"""Degrees counter-clockwise."""
CORNERS = ("top left", "top right", "bottom left", "bottom right")
COMPANION = 18

_ROOM = {"small": 32, "large": 46}
_SHIFT = {"small": 16, "large": 8}
"""Whole latent cells of 8 pixels, so that a moved thing has the latents of an unmoved one."""
_DIRECTION = {"centre": (0, 0), "left": (-1, 0), "right": (1, 0), "top": (0, -1), "bottom": (0, 1)}
_FREE_CORNERS = {
    "centre": CORNERS, "left": ("top right", "bottom right"), "right": ("top left", "bottom left"),
    "top": ("bottom left", "bottom right"), "bottom": ("top left", "top right"),
}  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """`companion` is the hexcode of a common thing in a corner, or None."""

    background: str = "white"
    place: str = "centre"
    size: str = "large"
    rotation: str = "upright"
    companion: str | None = None
    corner: str | None = None

    @classmethod
    def sample(cls, rng: np.random.Generator, companion: float = 0.3, avoid: str | None = None) -> Scene:
        """A random scene; `companion` is the chance of a second thing, `avoid` a hexcode that it may not be."""
        background, place, size = (_pick(rng, tuple(x)) for x in (BACKGROUNDS, PLACES, SIZES))
        turned = rng.random()
        rotation = "upright" if turned < 0.7 else "tilted left" if turned < 0.85 else "tilted right"
        scene = cls(background, place, size, rotation)
        if rng.random() < companion and scene.free_corners():
            other = _pick(rng, tuple(code for code in COMMON if code != avoid))
            scene = replace(scene, companion=other, corner=_pick(rng, scene.free_corners()))
        return scene

    def free_corners(self) -> tuple[str, ...]:
        """Corners that the thing itself leaves free."""
        if self.place == "centre" and self.size == "large":
            return ()
        return _FREE_CORNERS[self.place]


def _pick(rng: np.random.Generator, options: tuple[str, ...]) -> str:
    return options[int(rng.integers(len(options)))]


def place_of(scene: Scene, side: int = SIDE) -> tuple[float, float]:
    """Centre (x, y) of the drawing in pixels of a picture `side` wide."""
    dx, dy = _DIRECTION[scene.place]
    shift = _SHIFT[scene.size]
    return (SIDE / 2 + dx * shift) * side / SIDE, (SIDE / 2 + dy * shift) * side / SIDE


def companion_place(corner: str, side: int = SIDE) -> tuple[float, float]:
    """Centre (x, y) of a companion."""
    near = 1 + COMPANION / 2
    x = near if "left" in corner else SIDE - near
    y = near if "top" in corner else SIDE - near
    return x * side / SIDE, y * side / SIDE


def sprite(rgba: np.ndarray, longest: int, angle: int = 0, room: int | None = None) -> np.ndarray:
    """The drawing without margin, `longest` pixels long, turned, at most `room` pixels long after that.

    Returns premultiplied uint16 [h, w, 4] (colour * alpha / 255), alpha in the last channel.
    """
    part = Image.fromarray(cropped(rgba)).convert("RGBa")
    scale = longest / max(part.size)
    if angle:
        part = part.rotate(angle, Image.Resampling.BICUBIC, expand=True)
        solid = np.asarray(part)[..., 3] > 8
        rows, columns = np.flatnonzero(solid.any(1)), np.flatnonzero(solid.any(0))
        part = part.crop((int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1))
    if room is not None:
        scale = min(scale, room / max(part.size))
    width, height = (max(1, round(scale * n)) for n in part.size)
    return np.asarray(part.resize((width, height), Image.Resampling.BOX, reducing_gap=None), np.uint16)


def sprite_of(scene: Scene, rgba: np.ndarray, side: int = SIDE) -> np.ndarray:
    """The sprite that a scene shows of a drawing."""
    return sprite(
        rgba, SIZES[scene.size] * side // SIDE, ROTATIONS[scene.rotation], _ROOM[scene.size] * side // SIDE
    )


def paste(canvas: np.ndarray, piece: np.ndarray, centre: tuple[float, float]) -> None:
    """Put a sprite on a uint8 [H, W, 3] canvas, in place."""
    height, width = piece.shape[:2]
    left, top = round(centre[0] - width / 2), round(centre[1] - height / 2)
    target = canvas[top : top + height, left : left + width]
    rest = target.astype(np.uint16) * (255 - piece[..., 3:])
    target[...] = np.minimum(piece[..., :3] + (rest + 127) // 255, 255)


class Composer:
    """`compose` with the sprites of many drawings kept: about 30 microseconds a picture once they are warm."""

    def __init__(self, drawings, side: int = SIDE, limit: int = 20000) -> None:
        self.drawings, self.side, self.limit = drawings, side, limit
        self._sprites: dict[tuple[str, str, str], np.ndarray] = {}
        self._companions: dict[str, np.ndarray] = {}

    def __call__(self, scene: Scene, entity: str) -> np.ndarray:
        """The picture of the entity with hexcode `entity`: uint8 [side, side, 3]."""
        key = (entity, scene.size, scene.rotation)
        piece = self._sprites.get(key)
        if piece is None:
            if len(self._sprites) >= self.limit:
                self._sprites.clear()
            piece = self._sprites[key] = sprite_of(scene, self.drawings[entity], self.side)
        other = None
        if scene.companion is not None:
            other = self._companions.get(scene.companion)
            if other is None:
                other = sprite(self.drawings[scene.companion], COMPANION * self.side // SIDE)
                self._companions[scene.companion] = other
        return _assemble(scene, piece, other, self.side)


def _assemble(scene: Scene, piece: np.ndarray, companion: np.ndarray | None, side: int) -> np.ndarray:
    canvas = np.empty((side, side, 3), np.uint8)
    canvas[...] = BACKGROUNDS[scene.background]
    if companion is not None and scene.corner is not None:
        paste(canvas, companion, companion_place(scene.corner, side))
    paste(canvas, piece, place_of(scene, side))
    return canvas


def compose(
    scene: Scene, rgba_entity: np.ndarray, rgba_companion: np.ndarray | None = None, side: int = SIDE
) -> np.ndarray:
    """The exact picture of a scene: uint8 [side, side, 3].

    `rgba_entity` and `rgba_companion` are uint8 [H, W, 4] drawings (`Drawings`). The companion must be given
    when the scene has one. The same input gives the same bytes.
    """
    other = None
    if scene.companion is not None:
        if rgba_companion is None:
            raise ValueError(f"the scene shows {scene.companion}: its drawing is needed")
        other = sprite(rgba_companion, COMPANION * side // SIDE)
    return _assemble(scene, sprite_of(scene, rgba_entity, side), other, side)
