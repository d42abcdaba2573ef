"""A radar of shares relative to the mean over players, as inline SVG (papers/world_agent.txt, Appendix G)."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from math import cos, pi, sin

OUTER = 2.0
"""The rim: twice the mean over players."""


def radar(title: str, values: Mapping[str, float | None], side: int = 330) -> str:
    """One polygon; the ring in the middle is the mean over players (1.0). Axes without a value are left out."""
    there = {name: value for name, value in values.items() if value is not None}
    middle, reach = side / 2, side / 2 - 78
    parts = [
        f'<svg class="chart radar" viewBox="0 0 {side} {side + 22}" role="img" xmlns="http://www.w3.org/2000/svg">'
    ]
    parts.append(f'<text class="title" x="{middle}" y="14" text-anchor="middle">{escape(title)}</text>')
    parts.append(f'<circle class="grid" cx="{middle}" cy="{middle + 16}" r="{reach / OUTER:.1f}" fill="none"/>')
    parts.append(f'<circle class="grid" cx="{middle}" cy="{middle + 16}" r="{reach:.1f}" fill="none"/>')
    best = sorted(there, key=lambda name: -there[name])[:3]
    points = []
    for number, (name, value) in enumerate(there.items()):
        angle = 2 * pi * number / len(there) - pi / 2
        x, y = cos(angle), sin(angle)
        far = reach * min(value, OUTER) / OUTER
        points.append(f"{middle + far * x:.1f},{middle + 16 + far * y:.1f}")
        at_x, at_y = middle + (reach + 16) * x, middle + 16 + (reach + 16) * y + 4
        weight = ' font-weight="700"' if name in best else ""
        place = f'x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="middle"{weight}'
        parts.append(f'<text class="tick" {place}>{escape(name)} {value:.2f}</text>')
    parts.append(f'<polygon class="line line-1" points="{" ".join(points)}" fill-opacity="0.15"/>')
    return "".join([*parts, "</svg>"])
