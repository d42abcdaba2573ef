"""Flow matching from noise to a picture: Euler steps, and guidance away from hidden context (BAGEL, facts
section 10).

Axes: R pictures of one size, N latent patches of a picture, P = 64 numbers of a patch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from unify_agent.errors import UserError
from unify_agent.interleave.randomness import generator

Renorm = Literal["global", "channel", "text_channel"]
RENORMS: tuple[Renorm, ...] = ("global", "channel", "text_channel")
BRANCHES = ("full", "text", "image")
"""All that is visible; the text hidden; the pictures hidden."""


@dataclass(frozen=True)
class SamplerSettings:
    """How a picture is sampled. The defaults are the public release's agent's.

    `steps` points of time, from 1 to 0, are `steps - 1` evaluations. Guidance is active while lo < t <= hi of
    `interval`; a scale of 1 or less switches its branch off, and without text guidance there is no picture guidance
    either, unless `text_scale` is None: pictures alone. `renorm`: what shrinks the guided velocity back to the length
    of the plain one; `text_channel` leaves the guidance by pictures as it is.
    """

    steps: int = 50
    shift: float = 3.0
    text_scale: float | None = 4.0
    image_scale: float = 2.0
    interval: tuple[float, float] = (0.0, 1.0)
    renorm: Renorm = "text_channel"
    renorm_min: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise UserError(f"sampler: steps is {self.steps}; at least 2 points of time are needed")
        if self.shift <= 0:
            raise UserError(f"sampler: shift is {self.shift}; it must be positive")
        if self.renorm not in RENORMS:
            raise UserError(f"sampler: renorm is {self.renorm!r}; choose one of {', '.join(RENORMS)}")
        if not 0 <= self.renorm_min <= 1:
            raise UserError(f"sampler: renorm_min is {self.renorm_min}; it must lie between 0 and 1")
        object.__setattr__(self, "interval", tuple(self.interval))

    def times(self) -> Tensor:
        """[steps] float32 from 1 to 0, shifted: s * t / (1 + (s - 1) * t)."""
        t = torch.linspace(1, 0, self.steps)
        return self.shift * t / (1 + (self.shift - 1) * t)

    @property
    def guided(self) -> tuple[str, ...]:
        """The branches of a guided step, in the order of `BRANCHES`."""
        if self.text_scale is not None and self.text_scale <= 1:
            return BRANCHES[:1]
        text = () if self.text_scale is None else ("text",)
        return ("full", *text, *(("image",) if self.image_scale > 1 else ()))

    def branches(self, t: float) -> tuple[str, ...]:
        """The branches that a step at time t needs: those of `guided`, or the first alone."""
        low, high, now = np.float32(self.interval[0]), np.float32(self.interval[1]), np.float32(t)
        return self.guided if low < now <= high else BRANCHES[:1]


def guide(full: Tensor, text: Tensor | None, image: Tensor | None, settings: SamplerSettings) -> Tensor:
    """Combine velocities [R, N, P]: `text` with the text hidden, `image` with the pictures hidden.

    Norms are taken picture by picture, so that a picture does not depend on its neighbours.
    """
    if text is None and image is None:
        return full
    guided = full
    if text is not None and settings.text_scale is not None:
        guided = text + settings.text_scale * (full - text)
        if settings.renorm == "text_channel":
            guided = _shrink(guided, full, (-1,), settings.renorm_min)
    if image is not None:
        guided = image + settings.image_scale * (guided - image)
    if settings.renorm == "text_channel":
        return guided
    return _shrink(guided, full, (-2, -1) if settings.renorm == "global" else (-1,), settings.renorm_min)


def _shrink(guided: Tensor, plain: Tensor, over: tuple[int, ...], least: float) -> Tensor:
    def norm(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=over, keepdim=True)

    return guided * (norm(plain) / (norm(guided) + 1e-8)).clamp(least, 1.0)


GUIDANCE: dict[str, dict[str, Any]] = {
    "none": {"text_scale": 1.0, "image_scale": 1.0},
    "agent": {"text_scale": 4.0, "image_scale": 2.0, "interval": (0.0, 1.0), "renorm": "text_channel"},
    "bagel": {"text_scale": 4.0, "image_scale": 1.5, "interval": (0.4, 1.0), "renorm": "global"},
    "interleave": {"text_scale": 3.0, "image_scale": 1.5, "interval": (0.4, 1.0), "renorm": "global"},
    "references": {"text_scale": None, "image_scale": 2.5, "interval": (0.4, 1.0), "renorm": "text_channel"},
}
"""Guidance by name, as changes of the settings: none; the public release's agent; BAGEL's defaults for pictures and for
interleaved talk; by the references alone, as tiny models are guided."""


class Velocity(Protocol):
    """The model: noised latents [R, N, P] at time t -> velocities [R, N, P] of each branch asked for."""

    def __call__(self, x: Tensor, t: float, branches: Sequence[str]) -> Sequence[Tensor]: ...


Progress = Callable[[int, int], None]
"""Called after a step with (steps done, steps in all)."""


def sample(
    velocity: Velocity,
    noise: Tensor,
    settings: SamplerSettings,
    progress: Progress | None = None,
    watch: Callable[[Tensor, Tensor], None] | None = None,
) -> Tensor:
    """Integrate from noise [R, N, P] at t = 1 to latents at t = 0; t = 0 itself is never evaluated.

    `watch` receives each step's combined velocity and the latents after it.
    """
    times = settings.times()
    widths = times[:-1] - times[1:]
    x = noise
    for index in range(settings.steps - 1):
        t = times[index].item()
        names = settings.branches(t)
        found = dict(zip(names, velocity(x, t, names), strict=True))
        v = guide(found["full"], found.get("text"), found.get("image"), settings)
        x = x - v * widths[index].to(x.device)
        if watch:
            watch(v, x)
        if progress:
            progress(index + 1, settings.steps - 1)
    return x


def picture_noise(seed: int, patches: int, width: int) -> Tensor:
    """[patches, width] float32 standard normal that depends on the seed alone."""
    return torch.from_numpy(generator(seed, 0, "picture").standard_normal((patches, width), dtype="float32"))
