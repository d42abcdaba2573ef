"""A judge that sees pixels and result titles only.

It is made for pictures of one thing on a plain ground, as shops, encyclopedias and drawing collections show them. All
measures are taken at 128 pixels along the longest side; colours are in [0, 1].

    clarity      the steepest edges relative to the contrast, and the size in pixels
    cleanliness  strokes in the outer frame, where such pictures have none: dark ones are text, pale ones a watermark
    salience     the share of the frame that the subject's longest side takes
    identity     the title, and whether at least one other candidate shows the same thing. A candidate that looks like
                 none of the others is another thing under a wrong title; the only candidate is taken at its word.

"Shows the same thing" is tried at several scales around the middle of the other picture, on thumbnails so small that a
blur, few pixels or a watermark change little.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
from PIL import Image

from unify_agent.agent.judge import THRESHOLD, WEIGHTS, Judged, Verdict, title_match
from unify_agent.search.base import ImageHit

SIDE = 128
THUMB = 24
KEPT = 512  # looks and verdict lists that are remembered (a look holds 400 kB)

SHARP = 0.28  # a step across one pixel of this share of the contrast is a sharp edge
CLUTTER = 0.02  # share of the frame's pixels that may be strokes
DARK = 0.5  # strokes of this share of the full contrast are print
FLOOR = 0.005  # of distances: below it they say nothing
SAME = 0.03  # usual distance of two pictures of one thing, one of them spoilt
FEW = 0.06  # least distance that makes a candidate odd, where there are too few to compare with
ODD = 1.2  # oddness that makes it another thing; fitted with SAME on training entities of the embedded world
SCALES = np.array([0.6, 0.69, 0.75, 0.81, 0.88])


@dataclass(frozen=True)
class Look:
    """What is measured of one picture, whatever it is compared with."""

    side: int
    sharpness: float
    clutter: float
    darkness: float
    salience: float
    aspect: float
    integral: np.ndarray
    box: tuple[float, float, float, float]
    thumb: np.ndarray

    @property
    def fault(self) -> str | None:
        """What is wrong with the picture by itself, or None."""
        if self.sharpness < SHARP:
            return "blurred"
        if self.clutter > CLUTTER:
            return "text" if self.darkness > DARK else "watermark"
        return None


def look_at(picture: Image.Image) -> Look:
    """Measures an RGB picture of any size."""
    scale = SIDE / max(picture.size)
    size = (max(8, round(picture.width * scale)), max(8, round(picture.height * scale)))
    canvas = picture if picture.size == size else picture.resize(size, Image.Resampling.BILINEAR)
    raw = np.ascontiguousarray(np.asarray(canvas).transpose(2, 0, 1))
    pixels = raw.astype(np.float32) / 255
    height, width = pixels.shape[1:]
    edge = max(4, round(0.07 * max(height, width)))
    ring = np.ones((height, width), bool)
    ring[edge:-edge, edge:-edge] = False
    ground = np.median(pixels[:, ring], axis=1)
    away = np.abs(pixels - ground[:, None, None]).max(0)
    contrast = max(float(np.percentile(away[::2, ::2], 99)), 0.05)
    sharpness = float(np.percentile(np.abs(np.diff(pixels.mean(0), axis=1)), 99.7)) / contrast
    strokes = ring & (away > 0.08)
    clutter = float(strokes.sum() / ring.sum())
    darkness = float(np.median(away[strokes])) if strokes.any() else 0.0
    inner = away > 0.3 * contrast
    if clutter > CLUTTER:
        inner &= ~ring
    rows, columns = np.flatnonzero(inner.any(1)), np.flatnonzero(inner.any(0))
    if len(rows) == 0:
        rows, columns = np.arange(height), np.arange(width)
    box = (float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1))
    integral = np.zeros((3, height + 1, width + 1), np.int32)
    raw.cumsum(1, dtype=np.int32).cumsum(2, out=integral[:, 1:, 1:])
    return Look(
        side=min(picture.size), sharpness=sharpness, clutter=clutter, darkness=darkness,
        salience=max(box[2] - box[0], box[3] - box[1]) / max(height, width),
        aspect=(box[2] - box[0]) / (box[3] - box[1]),
        integral=integral, box=box, thumb=_thumbs(integral, np.array([box]))[:, 0],
    )  # fmt: skip


def _thumbs(integral: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Parts of a picture, [N, 4] boxes (left, top, right, bottom) -> float32 [3, N, THUMB, THUMB].

    `integral` [3, H + 1, W + 1] holds sums of pixels. A cell is the mean of itself and its neighbours, which smooths.
    """
    (left, right), (top, bottom) = (
        _cells(boxes[:, axis], boxes[:, axis + 2], integral.shape[2 - axis] - 1) for axis in (0, 1)
    )

    def at(y: np.ndarray, x: np.ndarray) -> np.ndarray:
        return integral[:, y[:, :, None], x[:, None, :]]

    area = (bottom - top)[:, :, None] * (right - left)[:, None, :] * np.float32(255)
    return (at(bottom, right) - at(top, right) - at(bottom, left) + at(top, left)).astype(np.float32) / area


def _cells(start: np.ndarray, stop: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last pixel borders [N, THUMB] of cells between `start` and `stop`, each a cell wider on both sides."""
    borders = start[:, None] + (stop - start)[:, None] * np.arange(THUMB + 1, dtype=np.float32) / THUMB
    borders = np.rint(borders).astype(np.int32)
    index = np.arange(THUMB)
    first = np.minimum(borders[:, np.maximum(index - 1, 0)], limit - 1)
    return first, np.clip(borders[:, np.minimum(index + 2, THUMB)], first + 1, limit)


def distance(look: Look, other: Look) -> float:
    """How unlike the subject of `look` everything is that `other` may show, in mean colour distance (0 to 1)."""
    height, width = other.integral.shape[1] - 1, other.integral.shape[2] - 1
    longest = SCALES * max(width, height)
    w, h = longest * min(look.aspect, 1), longest / max(look.aspect, 1)
    x, y = np.maximum((width - w) / 2, 0), np.maximum((height - h) / 2, 0)
    boxes = np.stack([x, y, np.minimum(x + w, width), np.minimum(y + h, height)], 1)
    seen = _thumbs(other.integral, np.concatenate([[other.box], boxes]))
    away = np.abs(look.thumb[:, None] - seen).sum(0).reshape(len(boxes) + 1, -1)
    least = int(0.85 * away.shape[1])
    return float(np.partition(away, least, axis=1)[:, :least].mean(1).min()) / 3


class PixelJudge:
    """See the module. `min_side`: pixels that a usable picture has at least."""

    name = "pixels"

    def __init__(self, min_side: int = 48):
        self.min_side = min_side
        self._looks: OrderedDict[str, Look] = OrderedDict()
        self._verdicts: OrderedDict[tuple, list[Verdict]] = OrderedDict()
        self._lock = Lock()

    def judge(self, subject: str, candidates: Sequence[tuple[ImageHit, Image.Image | None]]) -> list[Judged]:
        looks = [None if picture is None else self._look(hit, picture) for hit, picture in candidates]
        named = [title_match(hit.title, subject) for hit, _ in candidates]
        key = tuple((str(hit.path), name) for (hit, _), name in zip(candidates, named, strict=True))
        with self._lock:
            verdicts = self._verdicts.get(key)
        if verdicts is None:
            odd = self._oddness(looks, named)
            verdicts = [self._verdict(*each) for each in zip(looks, named, odd, strict=True)]
            self._remember(self._verdicts, key, verdicts)
        return [Judged(hit, picture, verdict) for (hit, picture), verdict in zip(candidates, verdicts, strict=True)]

    def _look(self, hit: ImageHit, picture: Image.Image) -> Look:
        key = str(hit.path)
        with self._lock:
            if key in self._looks:
                return self._looks[key]
        look = look_at(picture)
        self._remember(self._looks, key, look)
        return look

    def _remember(self, store: OrderedDict, key: object, value: object) -> None:
        with self._lock:
            store[key] = value
            if len(store) > KEPT:
                store.popitem(last=False)

    def _oddness(self, looks: Sequence[Look | None], named: Sequence[float]) -> list[float]:
        """For each candidate how much it differs from what the others show; 1 and less is nothing to speak of.

        Its median distance to the others, relative to that of the others among themselves, and a little of its least
        distance. Text pages show too little to be compared.
        """
        informative = [
            (at, look)
            for at, look in enumerate(looks)
            if look is not None and named[at] > 0 and not (look.clutter > CLUTTER and look.darkness > DARK)
        ]
        count = len(informative)
        apart = np.full((count, count), np.inf)
        for i, (_, look) in enumerate(informative):
            for j, (_, other) in enumerate(informative):
                if i != j:
                    apart[i, j] = distance(look, other)
        apart = np.minimum(apart, apart.T)
        result = [0.0] * len(looks)
        for i, (at, _) in enumerate(informative):
            rest = np.arange(count) != i
            to_others = apart[i, rest]
            if count >= 4:
                among = apart[np.ix_(rest, rest)][np.triu_indices(count - 1, 1)]
                usual = float(np.median(among)) + FLOOR
                result[at] = (float(np.median(to_others)) + FLOOR) / usual * (float(to_others.min()) / SAME) ** 0.28
            elif count >= 2:
                result[at] = float(to_others.min()) / FEW
        return result

    def _verdict(self, look: Look | None, named: float, oddness: float) -> Verdict:
        if look is None:
            return Verdict(0.0, "unreadable", False)
        if named == 0.0:
            return Verdict(0.0, "other", False, {"identity": 0.0})
        fault = "tiny" if look.side < self.min_side else look.fault
        parts = {
            "identity": 10.0 * named * (1 - 0.5 * min(1.0, oddness / ODD)),
            "salience": 10.0 * min(1.0, look.salience / 0.6),
            "clarity": {"tiny": 0.0, "blurred": 1.0}.get(fault or "", 10.0),
            "cleanliness": {"text": 0.0, "watermark": 2.0}.get(fault or "", 10.0),
        }
        if fault is None and oddness > ODD:
            return Verdict(0.0, "other", False, {**parts, "identity": 0.0})
        score = sum(WEIGHTS[part] * value for part, value in parts.items())
        if fault is not None:
            return Verdict(min(score, 5.0), fault, False, parts)
        return Verdict(score, "good" if score >= THRESHOLD else "tiny", score >= THRESHOLD, parts)
