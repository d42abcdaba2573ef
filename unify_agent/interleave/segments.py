"""A sample is a list of segments; each fixes markers, rope ids and losses.

| segment | slots                                   | rope ids           | span          | loss             |
|---------|-----------------------------------------|--------------------|---------------|------------------|
| Text    | <|im_start|> ids <|im_end|>             | one a slot         | causal        | CE when `loss`   |
| Picture | <|vision_start|> patches <|vision_end|> | one for all slots  | full          | none             |
| Drawing | the same, with noised patches           | one, not used up   | noise, `sees` | MSE              |
| Gap     | none                                    | skips `rope` ids   | none          | none             |

(BAGEL's packing rules.) Pictures that follow one another with the same `block` share one full span, as the
references of the paper's Appendix B do. A gap is what condition dropout leaves of a removed picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

PixelSource = np.ndarray
"""uint8 [H, W, 3], already resized by the transform of its use."""


@dataclass(frozen=True)
class Text:
    """Token ids between the text markers.

    `loss`: every id and the end marker are trained. `role`: how the log names its loss. `name`: what a
    drawing's `sees` calls the whole segment. `spans`: named ranges of *slots* inside it, the opening marker
    being slot 0 (the recaption, for instance). `then`: an id that the end marker is trained to predict, the marker
    of what comes next (BAGEL's special token loss, weight 1).
    """

    ids: tuple[int, ...]
    loss: bool = False
    role: str = "text"
    name: str | None = None
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    then: int | None = None

    @property
    def slots(self) -> int:
        return len(self.ids) + 2


@dataclass(frozen=True)
class Picture:
    """A picture as context: ViT patches (`vit`) or clean VAE latents (`vae`). `pixels`: uint8 [H, W, 3].

    `name` and `block` are what a drawing's `sees` may call it. `then`: as in `Text`.
    """

    pixels: PixelSource
    use: Literal["vit", "vae"]
    patch: int
    name: str | None = None
    block: str | None = None
    then: int | None = None

    @property
    def grid(self) -> tuple[int, int]:
        """Patch rows and columns; `patch` is 14 pixels for the ViT, 16 for VAE latents (8 * 2)."""
        return self.pixels.shape[0] // self.patch, self.pixels.shape[1] // self.patch

    @property
    def slots(self) -> int:
        return self.grid[0] * self.grid[1] + 2


@dataclass(frozen=True)
class Drawing:
    """A picture to generate, trained by flow matching.

    `sees`: names of segments, blocks or text spans that it may look at, None for the whole past. `copies`: how often
    the same clean picture is noised anew, each copy with its own timestep and noise; copies never see one
    another, so the context is computed once for all.
    """

    pixels: PixelSource
    patch: int = 16
    sees: tuple[str, ...] | None = None
    copies: int = 1

    @property
    def grid(self) -> tuple[int, int]:
        return self.pixels.shape[0] // self.patch, self.pixels.shape[1] // self.patch

    @property
    def slots(self) -> int:
        return self.copies * (self.grid[0] * self.grid[1] + 2)


@dataclass(frozen=True)
class Gap:
    """No slots, but `rope` position ids are skipped."""

    rope: int = 1
    slots: int = field(default=0, init=False)


Segment = Text | Picture | Drawing | Gap


@dataclass(frozen=True)
class Document:
    """One sample, ready to be packed. `id` keys its random numbers and every report about it."""

    id: str
    segments: tuple[Segment, ...]

    @property
    def slots(self) -> int:
        return sum(segment.slots for segment in self.segments)


class Unusable(ValueError):
    """A sample that cannot be trained on. `reason` is a short constant under which it is counted."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def text_loss_weight(ids: Sequence[int]) -> float:
    """BAGEL's weight of each trained token of a text: 1 / sqrt(number of trained tokens)."""
    return 1.0 / (len(ids) + 1) ** 0.5
