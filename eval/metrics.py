"""What the embedded world lets us measure without a judge, from pixels and counts alone.

Pictures are uint8 [64, 64, 3]. `None` stands for a picture that does not exist: it counts, as wrong.

* identity: which of the exact pictures of the same scene is nearest by mean squared RGB error;
* background: the palette's colour that most border pixels are nearest to;
* place: the middle of the box around what is not background, against the true picture's. (Not the centroid: that
  moves with the shape of the thing, so the wrong thing in the right place would seem misplaced.)

Intervals are 95 %: Wilson's for independent outcomes, a bootstrap over entities where an entity is measured
several times (its seeds are not independent).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

BORDER = 2
"""Width in pixels of the frame that shows the background."""
FOREGROUND = 60.0
"""A pixel farther than this (L2 over RGB) from the picture's own background belongs to the foreground."""
PLACE_TOLERANCE = 4.0
"""Pixels between two middles that still count as the same place."""
EDGE = 0.02
"""Share of the foreground's pixels left out on each side of the box, so that a stray pixel does not move it."""

Box = tuple[int, int, int, int]
"""left, top, right, bottom in pixels; right and bottom are outside."""


@dataclass(frozen=True)
class Figure:
    """A proportion or a mean with its 95 % interval; `n` counts what was measured."""

    value: float | None
    low: float | None
    high: float | None
    n: int

    def as_dict(self) -> dict[str, float | int | None]:
        return {key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(self).items()}

    def __str__(self) -> str:
        if self.value is None:
            return "–"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


NOTHING = Figure(None, None, None, 0)
"""Nothing was there to measure: unscored, never zero."""


def proportion(outcomes: Sequence[bool]) -> Figure:
    """Share of true outcomes with Wilson's interval."""
    n, z = len(outcomes), 1.959964
    if n == 0:
        return NOTHING
    p = sum(map(bool, outcomes)) / n
    middle, half = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return Figure(p, max(0.0, float((middle - half) / scale)), min(1.0, float((middle + half) / scale)), n)


def clustered(outcomes: Mapping[str, Sequence[float]], draws: int = 4000) -> Figure:
    """Mean over all outcomes of all clusters; the interval resamples clusters with replacement.

    When every outcome is the same a bootstrap has no width; the interval is then Wilson's over the clusters.
    """
    groups = [np.asarray(values, np.float64) for values in outcomes.values() if len(values)]
    if not groups:
        return NOTHING
    sums, counts = np.array([g.sum() for g in groups]), np.array([len(g) for g in groups])
    n, value = int(counts.sum()), float(sums.sum() / counts.sum())
    if value in (0.0, 1.0):
        plain = proportion([bool(value)] * len(groups))
        return Figure(value, plain.low, plain.high, n)
    picks = np.random.Generator(np.random.Philox(0)).integers(len(groups), size=(draws, len(groups)))
    means = sums[picks].sum(1) / counts[picks].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Figure(value, float(low), float(high), n)


def rgb_error(picture: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Mean squared error over pixels and channels, in levels squared: [H, W, 3] against [N, H, W, 3] -> [N]."""
    difference = others.astype(np.float32) - picture.astype(np.float32)
    return np.mean(np.square(difference), axis=(1, 2, 3))


def nearest(picture: np.ndarray | None, gallery: np.ndarray) -> int | None:
    """Index of the gallery picture with the smallest error; the first of equals."""
    return None if picture is None else int(np.argmin(rgb_error(picture, gallery)))


def border(picture: np.ndarray) -> np.ndarray:
    """The pixels of the frame: [n, 3] float32."""
    frame = np.ones(picture.shape[:2], bool)
    frame[BORDER:-BORDER, BORDER:-BORDER] = False
    return picture[frame].astype(np.float32)


def background_of(picture: np.ndarray | None, palette: Mapping[str, tuple[int, int, int]]) -> str | None:
    """Name of the palette's colour that most border pixels are nearest to."""
    if picture is None:
        return None
    colours = np.array(list(palette.values()), np.float32)
    votes = np.square(border(picture)[:, None] - colours).sum(2).argmin(1)
    return list(palette)[int(np.bincount(votes, minlength=len(colours)).argmax())]


def middle(picture: np.ndarray | None, ignore: Box | None = None) -> tuple[float, float] | None:
    """(x, y) of the middle of what differs from the picture's own background; None when nothing does.

    `ignore`: where a second thing stands, which is not asked about.
    """
    if picture is None:
        return None
    ground = np.median(border(picture), axis=0)
    differs = np.linalg.norm(picture.astype(np.float32) - ground, axis=2) > FOREGROUND
    if ignore is not None:
        left, top, right, bottom = ignore
        differs[top:bottom, left:right] = False
    rows, columns = np.nonzero(differs)
    if not len(rows):
        return None
    x, y = (np.quantile(each, [EDGE, 1 - EDGE], method="nearest").mean() for each in (columns, rows))
    return float(x), float(y)


def place_right(
    picture: np.ndarray | None, truth: np.ndarray, ignore: Box | None = None, tolerance: float = PLACE_TOLERANCE
) -> bool:
    """Whether the two middles lie within `tolerance` pixels of each other."""
    here, there = middle(picture, ignore), middle(truth, ignore)
    if here is None or there is None:
        return here is there is None and picture is not None
    return float(np.hypot(here[0] - there[0], here[1] - there[1])) <= tolerance


@dataclass(frozen=True)
class PictureScore:
    """What one picture got right. `guess` is the index in the gallery it is nearest to."""

    guess: int | None
    identity: bool
    background: bool
    place: bool
    error: float | None

    @property
    def scene(self) -> bool:
        return self.background and self.place


def score_picture(
    picture: np.ndarray | None,
    gallery: np.ndarray,
    truth: int,
    palette: Mapping[str, tuple[int, int, int]],
    background: str,
    ignore: Box | None = None,
) -> PictureScore:
    """Score a picture against the exact pictures of its scene, of which `gallery[truth]` is the right one.

    `ignore`: the box of a second thing, which does not count for the place.
    """
    guess = nearest(picture, gallery)
    return PictureScore(
        guess=guess,
        identity=guess == truth,
        background=background_of(picture, palette) == background,
        place=place_right(picture, gallery[truth], ignore),
        error=None if picture is None else float(rgb_error(picture, gallery[truth : truth + 1])[0]),
    )
