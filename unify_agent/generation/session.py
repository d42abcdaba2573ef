"""Sequences that grow segment by segment over a KV cache, by the rules by which training packs them.

A session holds B rows. What is appended takes the markers, rope ids and visibility of its segment
(`interleave.segments`), so every key a token sees here is a key it sees in the packed training forward. Token
positions are those of the row, counted from 0; a drawing is never cached, because nothing ever looks back at
it.

What one forward appends is planned in `appending.py`. Axes: B rows, L new tokens of all rows packed, H hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unify_agent.generation.appending import Entry, Markers, Part, Plan
from unify_agent.generation.cache import Cache, Prefill
from unify_agent.generation.drawing import Preview, Progress, draw
from unify_agent.generation.prefix import Prefix, Prefixes
from unify_agent.generation.sampler import SamplerSettings
from unify_agent.generation.text import Decoded, Sampling, Watch, decode
from unify_agent.interleave.layout import Pixels
from unify_agent.interleave.segments import Text
from unify_agent.interleave.visibility import Range

if TYPE_CHECKING:
    from unify_agent.interleave.grammar import Grammar
    from unify_agent.model.bagel import Bagel
    from unify_agent.model.vae import FluxVae


@dataclass(frozen=True)
class Appended:
    """`ranges[i]`: tokens of part i (empty for a gap); `hidden` [n, H]: their states after the final norm."""

    ranges: list[Range]
    hidden: Tensor


class Session:
    """`rows` sequences, all empty at first. `seeds` (one a row) key the VAE's posterior samples. `prefixes`: beginnings
    of texts that were computed before, for other rows or by another session of the same model. `dtype` is that of
    hidden states, the weights' by default: sharded weights are stored in another than they compute in.

    Methods take the rows they work on, in any order, each at most once. Rows never influence one another.
    """

    def __init__(
        self,
        model: Bagel,
        vae: FluxVae | None,
        markers: Markers | Grammar,
        pixels: Pixels | None = None,
        *,
        rows: int = 1,
        seeds: Sequence[int] | None = None,
        capacity: int = 256,
        prefixes: Prefixes | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.model, self.vae, self.markers, self.pixels = model, vae, markers, pixels
        self.prefixes = prefixes if prefixes is not None else Prefixes()
        self.config = model.config
        weight = next(model.parameters())
        self.device, self.dtype = weight.device, dtype or weight.dtype
        llm = self.config.llm
        self.cache = Cache(
            llm.num_hidden_layers,
            rows,
            llm.num_key_value_heads,
            llm.head_dim,
            dtype=self.dtype,
            device=self.device,
            capacity=capacity,
        )
        self.rope = [0] * rows
        self.history: list[list[Entry]] = [[] for _ in range(rows)]
        self.seeds = list(seeds) if seeds is not None else [0] * rows

    @property
    def rows(self) -> int:
        return self.cache.rows

    @property
    def lengths(self) -> list[int]:
        """Tokens in each row."""
        return self.cache.lengths

    def fork(self, rows: Sequence[int], lengths: Sequence[int] | None = None) -> Session:
        """A new session whose rows go on from copies of `rows`, cut at the segment borders `lengths`."""
        other = object.__new__(Session)
        other.__dict__.update(self.__dict__)
        other.cache = self.cache.select(rows, lengths)
        other.seeds = [self.seeds[r] for r in rows]
        other.history, other.rope = [], []
        for row, length in zip(rows, other.cache.lengths, strict=True):
            entries = self.history[row]
            kept = next((i for i, entry in enumerate(entries) if entry.stop > length), len(entries))
            other.history.append(entries[:kept])
            other.rope.append(entries[kept].rope if kept < len(entries) else self.rope[row])
        return other

    def rewind(self, row: int, length: int) -> None:
        """Cuts a row back to the segment border `length`."""
        kept = next((i for i, entry in enumerate(self.history[row]) if entry.stop > length), len(self.history[row]))
        if kept < len(self.history[row]):
            self.rope[row] = self.history[row][kept].rope
        self.history[row] = self.history[row][:kept]
        self.cache.lengths[row] = length

    # Appending

    def add_text(self, rows: Sequence[int], ids: Sequence[Sequence[int]]) -> list[Range]:
        """Append bos, ids, eos to each row, causal; -> the tokens of each, markers included.

        What the texts of empty rows have in common at their beginning is computed once (`prefix`).
        """
        texts = [tuple(each) for each in ids]
        cached = self._share(rows, texts)
        plan = Plan(self, rows, [[Text(each)] for each in texts], cached)
        self._forward(plan, None)
        return [ranges[0] for ranges in plan.ranges]

    def _share(self, rows: Sequence[int], texts: Sequence[tuple[int, ...]]) -> list[int]:
        """Fills the beginnings that several empty rows share; -> how many tokens each row then holds of its text."""
        cached = [0] * len(rows)
        empty = [i for i, row in enumerate(rows) if not self.lengths[row] and not self.rope[row]]
        for common, members in self.prefixes.groups([texts[i] for i in empty]):
            held = self.prefixes.find(texts[empty[members[0]]][:common])
            if held is None:
                held = self._compute(texts[empty[members[0]]][:common])
                self.prefixes.keep(held)
            for i in (empty[member] for member in members):
                cached[i] = 1 + len(held.ids)
                self.cache.put([rows[i]], held.cache, [0], [0])
        return cached

    @torch.no_grad()
    def _compute(self, ids: tuple[int, ...]) -> Prefix:
        """Keys and values of bos and `ids` at the beginning of a row."""
        alone = self.fork([])
        alone.cache = self.cache.empty(1)
        alone.rope, alone.history, alone.seeds = [0], [[]], [0]
        alone._forward(Plan(alone, [0], [[Text(ids)]]), None)
        return Prefix(ids, alone.cache.select([0], [1 + len(ids)]))

    @torch.no_grad()
    def _forward(self, plan: Plan, vae_noise: Sequence[Sequence[Tensor | None]] | None) -> Tensor:
        """Computes what is planned and makes it part of the rows; -> states [L, H] after the final norm."""
        hidden = torch.zeros(0, self.config.llm.hidden_size, device=self.device, dtype=self.dtype)
        if plan.length:
            attention = Prefill(self.cache, plan.rows, plan.counts, torch.tensor(plan.limits))
            rope = torch.tensor(plan.rope_ids, device=self.device)
            hidden = self.model.language_model.model(plan.embed(vae_noise), *plan.experts(), rope, attention)
            attention.commit()
        for row, position, entries in zip(plan.all_rows, plan.rope, plan.entries, strict=True):
            self.rope[row] = position
            self.history[row] += entries
        return hidden

    def add_pictures(
        self,
        rows: Sequence[int],
        groups: Sequence[Sequence[Image.Image]],
        *,
        joint: bool,
        parts: Sequence[Literal["vae", "vit"]] = ("vae", "vit"),
    ) -> list[list[Range]]:
        """Append reference pictures, for each its VAE block and then its ViT block (only those in `parts`).

        `joint`: all of a row's group form one full block (not in preset `released`), else each is its own. -> for
        each row the ranges of its blocks in order. A row's group may be empty.
        """
        assert self.pixels is not None, "a session without transforms takes no PIL pictures"
        sequences: list[list[Part]] = []
        for group in groups:
            blocks = [self.pixels.reference(picture, n, joint) for n, picture in enumerate(group, 1)]
            sequences.append([part for pair in blocks for part in pair if part.use in parts])
        busy = [i for i, parts_ in enumerate(sequences) if parts_]
        found = iter(self.append([rows[i] for i in busy], [sequences[i] for i in busy]) if busy else ())
        return [next(found).ranges if sequence else [] for sequence in sequences]

    def append(
        self,
        rows: Sequence[int],
        parts: Sequence[Sequence[Part]],
        vae_noise: Sequence[Sequence[Tensor | None]] | None = None,
    ) -> list[Appended]:
        """Append segments to each row in one forward; what training's packer would emit, without drawings.

        `vae_noise[i]`: for each VAE picture of row i the standard normal [16, H/8, W/8] of its posterior
        sample, where it must be a given one.
        """
        plan = Plan(self, rows, parts)
        hidden = self._forward(plan, vae_noise)
        states = hidden.split(plan.sizes) if plan.sizes else ()
        return [Appended(ranges, own) for ranges, own in zip(plan.ranges, states, strict=True)]

    # Producing

    def decode(
        self,
        rows: Sequence[int],
        sampling: Sampling,
        *,
        prefix: Sequence[Sequence[int]] | None = None,
        seeds: Sequence[int] | None = None,
        watch: Watch | None = None,
    ) -> list[Decoded]:
        """Let the model write one text segment in each row (see `text.decode`)."""
        return decode(self, rows, sampling, prefix=prefix, seeds=seeds, watch=watch)

    def draw(
        self,
        rows: Sequence[int],
        sees: Sequence[Sequence[Range] | None],
        sizes: Sequence[tuple[int, int]],
        settings: SamplerSettings,
        seeds: Sequence[int],
        *,
        keep_rope: bool = True,
        progress: Progress | None = None,
        preview: Preview | None = None,
    ) -> list[np.ndarray]:
        """Let the model draw one picture in each row (see `drawing.draw`); the rows stay as they are."""
        return draw(self, rows, sees, sizes, settings, seeds, keep_rope=keep_rope, progress=progress, preview=preview)
