"""A sample is a list of segments; each fixes markers, rope ids and losses.

| segment   | slots                            | rope ids          | span          | loss                    |
|-----------|----------------------------------|-------------------|---------------|-------------------------|
| Text      | <|im_start|> ids <|im_end|>      | one a slot        | causal        | CE when `loss`          |
| Picture   | <|vision_start|> patches <|vision_end|> | one for all | full          | none                    |
| Drawing   | the same, patches noised         | one, not consumed | noise, `sees` | MSE                     |

(BAGEL's packing rules, facts section 5.) Segments that follow one another with the same `block` share one full
span, as the references of the paper's Appendix B do. `hidden` marks a segment removed by condition dropout.
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

    `loss`: every id and the end marker are trained. `role`: how the log names its loss. `spans`: named ranges
    of *slots* inside the segment, the opening marker being slot 0 (the recaption, for instance).
    """

    ids: tuple[int, ...]
    loss: bool = False
    role: str = "text"
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        return len(self.ids) + 2


@dataclass(frozen=True)
class Picture:
    """A picture as context: ViT patches (`vit`) or clean VAE latents (`vae`). `pixels`: uint8 [H, W, 3]."""

    pixels: PixelSource
    use: Literal["vit", "vae"]
    patch: int
    role: str = "picture"
    block: str | None = None

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

    `sees`: names of segments or named text spans it may look at, None for the whole past. `copies`: how often
    the same clean picture is noised anew, each copy with its own timestep and noise; copies never see one
    another, so the context is computed once for all.
    """

    pixels: PixelSource
    patch: int = 16
    sees: tuple[str, ...] | None = None
    copies: int = 1
    role: str = "drawing"

    @property
    def grid(self) -> tuple[int, int]:
        return self.pixels.shape[0] // self.patch, self.pixels.shape[1] // self.patch

    @property
    def slots(self) -> int:
        return self.copies * (self.grid[0] * self.grid[1] + 2)


Segment = Text | Picture | Drawing


@dataclass(frozen=True)
class Document:
    """One sample, ready to be packed. `id` keys its random numbers and every report about it."""

    id: str
    segments: tuple[Segment, ...]

    @property
    def slots(self) -> int:
        return sum(segment.slots for segment in self.segments)


def text_loss_weight(ids: Sequence[int]) -> float:
    """BAGEL's weight of each trained token of a text: 1 / sqrt(number of trained tokens)."""
    return 1.0 / (len(ids) + 1) ** 0.5
