"""Charts as inline SVG: they scale, need no script, and take their colours from the page (`currentColor`, CSS)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, cos, floor, log10, pi, sin

import numpy as np

from unify_agent.training.plots import smooth

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Bar:
    """A value in [0, 1] with its interval; `kind` chooses the colour (CSS class `bar-KIND`)."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    kind: str = "plain"


def bars(rows: Sequence[Bar], width: int = 860, label_width: int = 320, height: int = 30) -> str:
    """Horizontal bars from 0 to 1 with whiskers for the intervals."""
    right, top = 64, 22
    span = width - label_width - right
    x = [label_width + span * k / 4 for k in range(5)]
    total = top + height * len(rows) + 4
    parts = [f'<svg class="chart" viewBox="0 0 {width} {total}" role="img" xmlns="http://www.w3.org/2000/svg">']
    for at, tick in zip(x, ("0", "0.25", "0.5", "0.75", "1"), strict=True):
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{total - 4}"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="14" text-anchor="middle">{tick}</text>')
    for number, row in enumerate(rows):
        y = top + height * number
        middle = y + height / 2
        parts.append(
            f'<text class="label" x="{label_width - 12}" y="{middle + 4.5:.1f}" text-anchor="end">'
            f"<title>{escape(row.note or row.label)}</title>{escape(row.label)}</text>"
        )
        if row.value is None:
            parts.append(f'<text class="tick" x="{label_width + 6}" y="{middle + 4.5:.1f}">not measured</text>')
            continue
        end = label_width + span * row.value
        parts.append(
            f'<rect class="bar bar-{row.kind}" x="{label_width}" y="{y + 6}" rx="3" '
            f'width="{max(end - label_width, 1.5):.1f}" height="{height - 12}"/>'
        )
        text = end
        if row.low is not None and row.high is not None:
            low, high = (label_width + span * v for v in (row.low, row.high))
            text = max(end, high)
            parts.append(
                f'<path class="whisker" d="M{low:.1f} {middle:.1f}H{high:.1f}'
                f'M{low:.1f} {middle - 4:.1f}v8M{high:.1f} {middle - 4:.1f}v8"/>'
            )
        parts.append(f'<text class="value" x="{text + 8:.1f}" y="{middle + 4.5:.1f}">{row.value:.2f}</text>')
    return "".join([*parts, "</svg>"])


def _thinned(points: Points) -> list[tuple[float, float]]:
    """A trailing mean over a fiftieth of the points, at most 240 of them."""
    ys = smooth(np.array([y for _, y in points], np.float64), max(1, len(points) // 50))
    kept = [(x, float(y)) for (x, _), y in zip(points, ys, strict=True)]
    return [*kept[: -1 : ceil(len(kept) / 240)], kept[-1]]


def _ticks(low: float, high: float, count: int = 4) -> list[float]:
    if high <= low:
        return [low]
    raw = (high - low) / count
    unit = 10 ** floor(log10(raw))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= raw)
    first = ceil(low / step - 1e-9)
    return [step * k for k in range(first, floor(high / step + 1e-9) + 1)]


def lines(title: str, series: Mapping[str, Points], unit: str, width: int = 370, height: int = 220) -> str:
    """Lines over training steps; each series gets the CSS class `line-1`, `line-2`, ..."""
    kept = {name: _thinned(points) for name, points in series.items() if points}
    if not kept:
        return ""
    left, right, top, bottom = 46, 12, 30, 34
    xs = [x for points in kept.values() for x, _ in points]
    ys = [y for points in kept.values() for _, y in points]
    x_high, y_high = max(max(xs), 1), max(ys) * 1.05 or 1.0

    def place(x: float, y: float) -> str:
        across = left + (width - left - right) * x / x_high
        return f"{across:.1f},{height - bottom - (height - top - bottom) * y / y_high:.1f}"

    parts = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" xmlns="http://www.w3.org/2000/svg">']
    parts.append(f'<text class="title" x="{left}" y="16">{escape(title)}</text>')
    for tick in _ticks(0, y_high):
        x, y = place(0, tick).split(",")
        parts.append(f'<line class="grid" x1="{x}" y1="{y}" x2="{width - right}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{left - 7}" y="{float(y) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(0, x_high):
        x, _ = place(tick, 0).split(",")
        parts.append(f'<text class="tick" x="{x}" y="{height - bottom + 16}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text class="tick" x="{width - right}" y="{height - 4}" text-anchor="end">{escape(unit)}</text>')
    for number, (name, points) in enumerate(kept.items(), 1):
        path = " ".join(place(x, y) for x, y in points)
        parts.append(f'<polyline class="line line-{number}" points="{path}"><title>{escape(name)}</title></polyline>')
        if len(kept) > 1:
            parts.append(
                f'<text class="tick line-name line-{number}" x="{width - right}" y="{top + 14 * number}" '
                f'text-anchor="end">{escape(name)}</text>'
            )
    return "".join([*parts, "</svg>"])


def radar(axes: Sequence[str], series: Mapping[str, Sequence[float | None]], size: int = 420) -> str:
    """A radar of values in [0, 1], one axis a name, the first at the top; each series gets the CSS class `line-K`.

    A value that is None leaves a gap. Fewer than three axes make no area, so there is no chart ("").
    """
    if len(axes) < 3:
        return ""
    middle, reach = size / 2, size / 2 - 74

    def place(axis: int, value: float) -> tuple[float, float]:
        angle = 2 * pi * axis / len(axes) - pi / 2
        return middle + reach * value * cos(angle), middle + reach * value * sin(angle)

    parts = [f'<svg class="chart" viewBox="0 0 {size} {size}" role="img" xmlns="http://www.w3.org/2000/svg">']
    for ring in (0.25, 0.5, 0.75, 1.0):
        web = " ".join("{:.1f},{:.1f}".format(*place(axis, ring)) for axis in range(len(axes)))
        parts.append(f'<polygon class="grid" fill="none" points="{web}"/>')
    for number, name in enumerate(axes):
        (x, y), (tx, ty) = place(number, 1.0), place(number, 1.12)
        anchor = "middle" if abs(tx - middle) < 8 else "start" if tx > middle else "end"
        parts.append(f'<line class="grid" x1="{middle}" y1="{middle}" x2="{x:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{tx:.1f}" y="{ty + 4:.1f}" text-anchor="{anchor}">{escape(name)}</text>')
    for number, (name, values) in enumerate(series.items(), 1):
        corners = [place(axis, value) for axis, value in enumerate(values) if value is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        shape = "polygon" if len(corners) == len(axes) else "polyline"
        parts.append(f'<{shape} class="line line-{number}" points="{path}"><title>{escape(name)}</title></{shape}>')
        parts.append(
            f'<text class="tick line-name line-{number}" x="{size - 8}" y="{16 * number}" text-anchor="end">'
            f"{escape(name)}</text>"
        )
    return "".join([*parts, "</svg>"])
