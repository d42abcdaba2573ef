"""What is appended to the rows of a session in one packed forward: slots, rope ids, limits and input states.

Axes: L new tokens of all rows packed, H hidden width, Q latent patches of all pictures, P = 64 numbers of a patch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from unify_agent.interleave.batch import normalise, patchify, position_ids
from unify_agent.interleave.randomness import generator
from unify_agent.interleave.segments import Gap, Picture, Text
from unify_agent.interleave.visibility import Range
from unify_agent.model.vae import encode_pictures
from unify_agent.model.vae import patchify as latent_rows

if TYPE_CHECKING:
    from unify_agent.generation.session import Session


@dataclass(frozen=True)
class Markers:
    """Ids of the four markers, and how many ids the tokenizer knows. A `Grammar` serves as well."""

    bos: int
    eos: int
    start_of_image: int
    end_of_image: int
    size: int


@dataclass(frozen=True)
class Latents:
    """A picture as context whose scaled latents [16, 2h, 2w] are known already; else like
    `Picture(use="vae")`."""

    value: Tensor
    name: str | None = None
    block: str | None = None


Part = Text | Picture | Latents | Gap


@dataclass(frozen=True)
class Entry:
    """What a row holds: `kind` over tokens [start, stop), rope ids from `rope` on, and the ids of a text."""

    kind: Literal["text", "vae", "vit", "gap"]
    start: int
    stop: int
    rope: int
    ids: tuple[int, ...] = ()


def grid_of(part: Picture | Latents) -> tuple[int, int]:
    """Rows and columns of patches."""
    if isinstance(part, Picture):
        return part.grid
    return part.value.shape[1] // 2, part.value.shape[2] // 2


def _patches(part: Picture | Latents) -> int:
    rows, columns = grid_of(part)
    return rows * columns


class Plan:
    """One packed forward: slots, rope ids and limits of the new tokens of several rows.

    `cached[i]`: so many tokens of the text that row i begins with are in its cache already.
    """

    def __init__(
        self,
        session: Session,
        rows: Sequence[int],
        parts: Sequence[Sequence[Part]],
        cached: Sequence[int] | None = None,
    ) -> None:
        self.session, self.all_rows = session, list(rows)
        self.text_ids: list[int] = []
        self.text_at: list[int] = []
        self.vit: list[tuple[int, Picture]] = []
        self.vae: list[tuple[int, Picture | Latents, int, int]] = []
        """(packed position, picture, index of the row in `parts`, VAE pictures that the row had before)."""
        self.rope_ids: list[int] = []
        self.limits: list[int] = []
        self.length = 0
        self.rope: list[int] = []
        self.ranges: list[list[Range]] = []
        self.entries: list[list[Entry]] = []
        self.sizes: list[int] = []
        done = cached or [0] * len(parts)
        for number, (row, sequence) in enumerate(zip(rows, parts, strict=True)):
            self._row(number, row, sequence, done[number])
        self.rows = [row for row, size in zip(rows, self.sizes, strict=True) if size]
        self.counts = [size for size in self.sizes if size]

    def _row(self, number: int, row: int, sequence: Sequence[Part], cached: int) -> None:
        session, markers = self.session, self.session.markers
        first, past, rope = self.length, session.lengths[row], session.rope[row]
        pictures = sum(entry.kind == "vae" for entry in session.history[row])
        ranges: list[Range] = []
        entries: list[Entry] = []
        block: str | None = None
        block_start = 0
        for part in sequence:
            start = past + self.length - first
            if isinstance(part, Gap):
                ranges.append((start, start))
                entries += [Entry("gap", start, start, rope + i) for i in range(part.rope)]
                rope += part.rope
                continue
            if isinstance(part, Text):
                slots = (markers.bos, *part.ids, markers.eos)[cached:]
                stop = start + len(slots)
                self.text_ids += slots
                self.text_at += range(self.length, self.length + len(slots))
                self.rope_ids += range(rope + cached, rope + cached + len(slots))
                self.limits += range(start + 1, stop + 1)
                self.length += len(slots)
                start -= cached
                entries.append(Entry("text", start, stop, rope, part.ids))
                rope += cached + len(slots)
                block, cached = None, 0
            else:
                kind = part.use if isinstance(part, Picture) else "vae"
                grid = grid_of(part)
                count = grid[0] * grid[1] + 2
                stop = start + count
                self.text_ids += (markers.start_of_image, markers.end_of_image)
                self.text_at += (self.length, self.length + count - 1)
                if kind == "vit":
                    assert isinstance(part, Picture)
                    self.vit.append((self.length + 1, part))
                else:
                    self.vae.append((self.length + 1, part, number, pictures))
                    pictures += 1
                self.rope_ids += [rope] * count
                if part.block is not None and part.block == block:
                    self.limits[block_start:] = [stop] * (len(self.limits) - block_start)
                else:
                    block_start = len(self.limits)
                self.limits += [stop] * count
                self.length += count
                entries.append(Entry(kind, start, stop, rope))
                rope += 1
                block = part.block
            ranges.append((start, stop))
        self.rope.append(rope)
        self.ranges.append(ranges)
        self.entries.append(entries)
        self.sizes.append(self.length - first)

    def experts(self) -> tuple[Tensor, Tensor]:
        """Packed positions of the tokens of either expert: text, markers and ViT patches; latent patches."""
        gen = [torch.arange(at, at + _patches(part)) for at, part, _, _ in self.vae]
        taken = torch.zeros(self.length, dtype=torch.bool)
        if gen:
            taken[torch.cat(gen)] = True
        device = self.session.device
        return (~taken).nonzero()[:, 0].to(device), taken.nonzero()[:, 0].to(device)

    def embed(self, vae_noise: Sequence[Sequence[Tensor | None]] | None) -> Tensor:
        """Input states [L, H]."""
        session = self.session
        model, device, config = session.model, session.device, session.config
        hidden = torch.zeros(self.length, config.llm.hidden_size, device=device, dtype=session.dtype)
        hidden[torch.tensor(self.text_at, device=device)] = model.embed_text(torch.tensor(self.text_ids, device=device))
        if self.vit:
            patches = torch.cat([patchify(normalise(p.pixels), p.patch) for _, p in self.vit])
            ids = torch.cat([position_ids(p.grid, config.vit_max_num_patch_per_side) for _, p in self.vit])
            at = torch.cat([torch.arange(at, at + _patches(p)) for at, p in self.vit])
            counts = [_patches(p) for _, p in self.vit]
            hidden[at.to(device)] = model.embed_vit(patches.to(device, session.dtype), ids.to(device), counts)
        if self.vae:
            latents = self._latents(vae_noise)
            ids = torch.cat([position_ids(grid_of(p), config.max_latent_size) for _, p, _, _ in self.vae])
            at = torch.cat([torch.arange(at, at + _patches(p)) for at, p, _, _ in self.vae])
            clean = torch.zeros(len(ids), device=device)
            hidden[at.to(device)] = model.embed_latents(latents.to(device, session.dtype), clean, ids.to(device))
        return hidden

    def _latents(self, vae_noise: Sequence[Sequence[Tensor | None]] | None) -> Tensor:
        """Latent patches [Q, P] of all VAE pictures; those of one size are encoded together."""
        session = self.session
        known: list[Tensor | None] = []
        images, noises = [], []
        given = [iter(each) for each in vae_noise] if vae_noise is not None else None
        for _, part, number, before in self.vae:
            noise = next(given[number]) if given is not None else None
            if isinstance(part, Latents):
                known.append(part.value)
                continue
            known.append(None)
            shape = (session.config.vae.z_channels, part.grid[0] * 2, part.grid[1] * 2)
            if noise is None:
                rng = generator(session.seeds[self.all_rows[number]], 0, "context", before, "vae")
                noise = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
            images.append(normalise(part.pixels))
            noises.append(noise)
        encoded: Iterator[Tensor] = iter(())
        if images:
            assert session.vae is not None, "a session without a VAE takes no VAE pictures"
            encoded = iter(encode_pictures(session.vae, images, noises))
        return torch.cat([latent_rows(next(encoded) if each is None else each) for each in known])
