"""Documents packed into one sequence: indices, pixels, noise and losses as tensors.

Packing follows BAGEL's rules (the golden pack cases). Axes: L slots, T text slots, P ViT patches, Q latent
patches, C trained text positions, M trained latent positions. Random numbers come from generators keyed by
(seed, epoch, document id, segment), so they do not depend on rank, worker or neighbours in the pack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from unify_agent.interleave.randomness import generator
from unify_agent.interleave.segments import Document, Drawing, Gap, Picture, Text, text_loss_weight
from unify_agent.interleave.visibility import Span, document_spans

ROLES = ("text", "call", "recaption", "caption", "copying")
"""Roles under which text losses are logged."""

CLEAN = -float("inf")
"""Timestep logit of a clean latent: its sigmoid is 0."""

LATENT_CHANNELS = 16
LATENT_PATCH = 2


@dataclass(frozen=True)
class PackRules:
    """What packing must know of model and recipe.

    `latent_side`, `vit_side`: sides of the position tables (a patch's id is row * side + column).
    `tag_weight`: factor on the CE weight of labels in `tag_ids` (paper, Table 6: 3.0).
    """

    bos: int
    eos: int
    start_of_image: int
    end_of_image: int
    latent_side: int
    vit_side: int
    tag_ids: frozenset[int] = frozenset()
    tag_weight: float = 1.0


@dataclass
class PackedBatch:
    """One pack. Index tensors are int64 [n] into the L slots, values float32, all on the same device."""

    length: int
    text_ids: Tensor
    text_at: Tensor
    rope_ids: Tensor
    vit_patches: Tensor
    """[P, patch * patch * 3], a patch flattened by (row, column, channel): uint8 levels, see `pixel_values`."""
    vit_at: Tensor
    vit_position_ids: Tensor
    vit_lengths: list[int]
    vae_images: list[Tensor]
    """uint8 [H, W, 3], at their own sizes, see `picture_values`; `latent_image[i]` is the one of latent run i."""
    vae_noise: list[Tensor]
    """[16, H/8, W/8], the standard normal of each picture's posterior sample."""
    latent_image: list[int]
    latent_grids: list[tuple[int, int]]
    latent_at: Tensor
    latent_position_ids: Tensor
    timestep_logits: Tensor
    """[Q], one normal draw per noised run repeated over its patches, -inf where clean."""
    flow_noise: Tensor
    """[Q, 64]; zero where clean."""
    ce_at: Tensor
    ce_labels: Tensor
    ce_weights: Tensor
    ce_roles: Tensor
    """[C], indices into ROLES."""
    mse_at: Tensor
    spans: list[Span]
    sample_ids: list[str] = field(default_factory=list)

    def to(self, device: torch.device | str) -> PackedBatch:
        """The same pack with its tensors on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> PackedBatch:
        """The same pack in page-locked memory (CUDA only)."""
        return self._map(Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> PackedBatch:
        changed: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                value = change(value)
            elif isinstance(value, list) and value and isinstance(value[0], Tensor):
                value = [change(each) for each in value]
            changed[name] = value
        return PackedBatch(**changed)


def pixel_values(levels: Tensor) -> Tensor:
    """uint8 levels -> float32 in [-1, 1] (mean and std 0.5, as in BAGEL). Numbers that are floats already stay."""
    return levels if levels.is_floating_point() else _scaled(levels)


def picture_values(pixels: Tensor) -> Tensor:
    """uint8 [H, W, 3] -> float32 [3, H, W] in [-1, 1]. A picture [3, H, W] of floats stays."""
    return pixels if pixels.is_floating_point() else _scaled(pixels.permute(2, 0, 1)).contiguous()


def normalise(pixels: np.ndarray) -> Tensor:
    """Levels [H, W, 3] of any type -> float32 [3, H, W] in [-1, 1]."""
    return _scaled(torch.from_numpy(np.require(pixels, requirements=("C", "W"))).permute(2, 0, 1)).contiguous()


def _scaled(levels: Tensor) -> Tensor:
    return (levels.to(torch.float32) / 255 - 0.5) / 0.5


def patchify(image: Tensor, patch: int) -> Tensor:
    """[3, H, W] -> [patches, patch * patch * 3], row-major, channel fastest."""
    return rearrange(image, "c (h p) (w q) -> (h w) (p q c)", p=patch, q=patch)


def patch_levels(pixels: np.ndarray, patch: int) -> Tensor:
    """What `patchify` makes of a picture, from its uint8 [H, W, 3]."""
    rows = rearrange(pixels, "(h p) (w q) c -> (h w) (p q c)", p=patch, q=patch)
    return torch.from_numpy(np.require(rows, requirements=("C", "W")))


def position_ids(grid: tuple[int, int], side: int) -> Tensor:
    """Ids row * side + column of a grid of patches, row-major. `side` is the table's, not the picture's."""
    if max(grid) > side:
        raise ValueError(f"{grid[0]}x{grid[1]} patches do not fit a position table of side {side}")
    return (torch.arange(grid[0])[:, None] * side + torch.arange(grid[1])).reshape(-1)


class _Packer:
    """Grows the lists of one pack. A document is added whole."""

    def __init__(self, rules: PackRules, seed: int) -> None:
        self.rules, self.seed, self.epoch = rules, seed, 0
        self.at = 0
        self.text_ids: list[int] = []
        self.text_at: list[int] = []
        self.rope: list[int] = []
        self.vit: list[Tensor] = []
        self.vit_at: list[Tensor] = []
        self.vit_position: list[Tensor] = []
        self.images: list[Tensor] = []
        self.image_noise: list[Tensor] = []
        self.latent_image: list[int] = []
        self.grids: list[tuple[int, int]] = []
        self.latent_at: list[Tensor] = []
        self.latent_position: list[Tensor] = []
        self.logits: list[Tensor] = []
        self.noise: list[Tensor] = []
        self.ce: list[tuple[int, int, float, int]] = []
        self.mse: list[Tensor] = []
        self.spans: list[Span] = []
        self.ids: list[str] = []

    def add(self, document: Document, epoch: int) -> None:
        self.epoch = epoch
        self.spans += document_spans(document, self.at, len(self.ids))
        rope = 0
        for index, segment in enumerate(document.segments):
            if isinstance(segment, Gap):
                rope += segment.rope
            elif isinstance(segment, Text):
                self._text(segment, rope)
                rope += segment.slots
            elif isinstance(segment, Picture):
                self._picture(segment, rope, document.id, index)
                rope += 1
            else:
                self._drawing(segment, rope, document.id, index)
        self.ids.append(document.id)

    def _marker(self, token: int, rope: int) -> None:
        self.text_ids.append(token)
        self.text_at.append(self.at)
        self.rope.append(rope)
        self.at += 1

    def _text(self, segment: Text, rope: int) -> None:
        slots = (self.rules.bos, *segment.ids, self.rules.eos)
        if segment.loss:
            weight = text_loss_weight(segment.ids)
            role = ROLES.index(segment.role)
            tags = self.rules.tag_ids
            factor = self.rules.tag_weight
            for at, label in enumerate(slots[1:], self.at):
                self.ce.append((at, label, weight * factor if label in tags else weight, role))
        self.text_ids += slots
        self.text_at += range(self.at, self.at + len(slots))
        self.rope += range(rope, rope + len(slots))
        self.at += len(slots)
        self._then(segment)

    def _picture(self, segment: Picture, rope: int, name: str, index: int) -> None:
        grid = segment.grid
        patches = grid[0] * grid[1]
        self._marker(self.rules.start_of_image, rope)
        slots = torch.arange(self.at, self.at + patches)
        if segment.use == "vit":
            self.vit.append(patch_levels(segment.pixels, segment.patch))
            self.vit_at.append(slots)
            self.vit_position.append(position_ids(grid, self.rules.vit_side))
        else:
            self._image(segment.pixels, grid, name, index)
            self._latents(grid, slots, None)
        self.rope += [rope] * patches
        self.at += patches
        self._marker(self.rules.end_of_image, rope)
        self._then(segment)

    def _then(self, segment: Text | Picture) -> None:
        """The end marker just written predicts the marker that comes next, where it is asked to."""
        if segment.then is not None:
            self.ce.append((self.at - 1, segment.then, 1.0, ROLES.index("text")))

    def _drawing(self, segment: Drawing, rope: int, name: str, index: int) -> None:
        grid = segment.grid
        patches = grid[0] * grid[1]
        self._image(segment.pixels, grid, name, index)
        for copy in range(segment.copies):
            self._marker(self.rules.start_of_image, rope)
            slots = torch.arange(self.at, self.at + patches)
            self._latents(grid, slots, generator(self.seed, self.epoch, name, index, copy))
            self.mse.append(slots)
            self.rope += [rope] * patches
            self.at += patches
            self._marker(self.rules.end_of_image, rope)

    def _image(self, pixels: np.ndarray, grid: tuple[int, int], name: str, index: int) -> None:
        shape = (LATENT_CHANNELS, grid[0] * LATENT_PATCH, grid[1] * LATENT_PATCH)
        rng = generator(self.seed, self.epoch, name, index, "vae")
        self.images.append(torch.from_numpy(np.require(pixels, requirements=("C", "W"))))
        self.image_noise.append(torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)))

    def _latents(self, grid: tuple[int, int], slots: Tensor, rng: np.random.Generator | None) -> None:
        width = LATENT_CHANNELS * LATENT_PATCH**2
        patches = len(slots)
        self.latent_image.append(len(self.images) - 1)
        self.grids.append(grid)
        self.latent_at.append(slots)
        self.latent_position.append(position_ids(grid, self.rules.latent_side))
        if rng is None:
            self.logits.append(torch.full((patches,), CLEAN))
            self.noise.append(torch.zeros(patches, width))
        else:
            self.logits.append(torch.full((patches,), float(rng.standard_normal())))
            self.noise.append(torch.from_numpy(rng.standard_normal((patches, width), dtype=np.float32)))

    def pad(self, slots: int) -> None:
        """An isolated document of end markers: no row is empty, nothing else sees it."""
        if slots:
            number = self.spans[-1].document + 1 if self.spans else 0
            self.spans.append(Span(self.at, self.at + slots, "causal", number))
            for rope in range(slots):
                self._marker(self.rules.eos, rope)

    def finish(self) -> PackedBatch:
        def joined(parts: list[Tensor], *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.cat(parts) if parts else torch.zeros(shape or (0,), dtype=dtype)

        at, labels, weights, roles = zip(*self.ce, strict=True) if self.ce else ((), (), (), ())
        return PackedBatch(
            length=self.at,
            text_ids=torch.tensor(self.text_ids, dtype=torch.int64),
            text_at=torch.tensor(self.text_at, dtype=torch.int64),
            rope_ids=torch.tensor(self.rope, dtype=torch.int64),
            vit_patches=joined(self.vit, 0, 0, dtype=torch.uint8),
            vit_at=joined(self.vit_at),
            vit_position_ids=joined(self.vit_position),
            vit_lengths=[len(part) for part in self.vit],
            vae_images=self.images,
            vae_noise=self.image_noise,
            latent_image=self.latent_image,
            latent_grids=self.grids,
            latent_at=joined(self.latent_at),
            latent_position_ids=joined(self.latent_position),
            timestep_logits=joined(self.logits, dtype=torch.float32),
            flow_noise=joined(self.noise, 0, LATENT_CHANNELS * LATENT_PATCH**2, dtype=torch.float32),
            ce_at=torch.tensor(at, dtype=torch.int64),
            ce_labels=torch.tensor(labels, dtype=torch.int64),
            ce_weights=torch.tensor(weights, dtype=torch.float32),
            ce_roles=torch.tensor(roles, dtype=torch.int64),
            mse_at=joined(self.mse),
            spans=self.spans,
            sample_ids=self.ids,
        )


def pack(
    documents: Sequence[Document],
    rules: PackRules,
    *,
    seed: int = 0,
    epoch: int | Sequence[int] = 0,
    pad_to: int = 1,
) -> PackedBatch:
    """Pack documents in order; the length is padded to a multiple of `pad_to` (and to at least one slot).

    `epoch` keys the random numbers, one for all or one for each document (sources have their own epochs).
    Without documents this is the empty pack with which a last, short step is filled: it carries no loss.
    """
    packer = _Packer(rules, seed)
    epochs = [epoch] * len(documents) if isinstance(epoch, int) else epoch
    for document, own in zip(documents, epochs, strict=True):
        packer.add(document, own)
    packer.pad(-packer.at % pad_to if packer.at else pad_to)
    return packer.finish()
