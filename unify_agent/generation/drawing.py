"""Drawing: from what a row's picture may see to the picture.

The keys and values of that context are gathered once; each step computes the marker and noise tokens only.
Guidance compares with two contexts, and all branches that a step needs run as one batch:

* text hidden: the picture sees its references only;
* pictures hidden: the row's texts are computed anew without any picture, because their keys have seen them.

A branch whose context would equal the full one is not computed.

Axes: R pictures of one size, S sequences of all branches, N latent patches, T = N + 2 tokens of a picture
with its markers, K keys, A query heads, G key/value heads, D head dimension, P = 64 numbers of a patch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from unify_agent.errors import UserError
from unify_agent.generation.cache import Cache
from unify_agent.generation.sampler import Progress, SamplerSettings, picture_noise, sample
from unify_agent.interleave.batch import position_ids
from unify_agent.interleave.segments import Gap, Text
from unify_agent.interleave.visibility import Range, intersect
from unify_agent.model.vae import to_uint8, unpatchify

if TYPE_CHECKING:
    from unify_agent.generation.session import Session

DECODE_PIXELS = 1 << 20
"""Pixels that the VAE decodes in one call."""


@dataclass(frozen=True)
class Context:
    """What the pictures `members` (indices into the drawn rows) see in one branch.

    `ranges[i]` of row `rows[i]` of `cache`; `rope[i]` is the picture's rope id there.
    """

    cache: Cache
    members: list[int]
    rows: list[int]
    ranges: list[list[Range]]
    rope: list[int]

    def only(self, wanted: Sequence[int]) -> Context:
        """The same for some of the drawn rows, renumbered in their order."""
        place = {member: i for i, member in enumerate(self.members)}
        kept = [(new, place[old]) for new, old in enumerate(wanted) if old in place]
        return Context(
            self.cache,
            [new for new, _ in kept],
            [self.rows[i] for _, i in kept],
            [self.ranges[i] for _, i in kept],
            [self.rope[i] for _, i in kept],
        )


def contexts(
    session: Session,
    rows: Sequence[int],
    sees: Sequence[Sequence[Range] | None],
    *,
    branches: int,
    keep_rope: bool,
) -> list[Context]:
    """The first `branches` contexts (full, text hidden, pictures hidden) of a picture in each row.

    `sees` None is the whole row. `keep_rope`: hidden segments still use up their rope ids, as in training's
    condition dropout of preset `paper`; otherwise a branch is numbered as if they had never been there, as in
    BAGEL.
    """
    every = list(range(len(rows)))
    visible = [
        [(0, session.lengths[row])] if seen is None else intersect(sorted(seen), [(0, session.lengths[row])])
        for row, seen in zip(rows, sees, strict=True)
    ]
    rope = [session.rope[row] for row in rows]
    found = [Context(session.cache, every, list(rows), visible, rope)]
    texts, pictures = [], []
    for row, ranges in zip(rows, visible, strict=True):
        held = session.history[row]
        texts.append(intersect(ranges, [(e.start, e.stop) for e in held if e.kind == "text"]))
        pictures.append(intersect(ranges, [(e.start, e.stop) for e in held if e.kind in ("vae", "vit")]))
    if branches > 1:
        members = [i for i in every if texts[i]]
        moved = []
        for i in members:
            hidden = [
                e for e in session.history[rows[i]] if e.kind == "text" and intersect(texts[i], [(e.start, e.stop)])
            ]
            moved.append(rope[i] - (0 if keep_rope else sum(e.stop - e.start for e in hidden)))
        found.append(Context(session.cache, members, [rows[i] for i in members], [pictures[i] for i in members], moved))
    if branches > 2:
        found.append(_pictures_hidden(session, rows, texts, keep_rope))
    return found


def _pictures_hidden(session: Session, rows: Sequence[int], texts: list[list[Range]], keep_rope: bool) -> Context:
    """Rows as they would be had no picture ever been shown. What precedes a row's first picture is copied."""
    members, cuts, parts, ranges = [], [], [], []
    for i, row in enumerate(rows):
        held = session.history[row]
        first = next((n for n, entry in enumerate(held) if entry.kind in ("vae", "vit")), None)
        if first is None:
            continue
        last = texts[i][-1][1] if texts[i] else 0
        rest: list[Text | Gap] = []
        for entry in held[first:]:
            if entry.kind == "text" and entry.start < last:
                rest.append(Text(entry.ids))
            elif entry.kind == "gap" or (keep_rope and entry.kind != "text"):
                rest.append(Gap())
        members.append(i)
        cuts.append(held[first].start)
        parts.append(rest)
        ranges.append([_without(held, each) for each in texts[i]])
    chosen = [rows[i] for i in members]
    fresh = session.fork(chosen, cuts)
    if members:
        fresh.append(range(len(members)), parts)
    shown = [sum(e.kind in ("vae", "vit") for e in session.history[row]) for row in chosen]
    rope = [session.rope[row] - (0 if keep_rope else n) for row, n in zip(chosen, shown, strict=True)]
    return Context(fresh.cache, members, list(range(len(members))), ranges, rope)


def _without(held: Sequence, span: Range) -> Range:
    """Where the tokens of a range inside texts stand once all pictures are gone."""
    gone = sum(e.stop - e.start for e in held if e.kind in ("vae", "vit") and e.stop <= span[0])
    return span[0] - gone, span[1] - gone


class Denoiser:
    """The model as `sampler.Velocity` for pictures of one grid over fixed contexts."""

    def __init__(self, session: Session, found: Sequence[Context], grid: tuple[int, int]) -> None:
        self.model, self.dtype = session.model, session.dtype
        device = session.device
        self.patches = grid[0] * grid[1]
        self.tokens = self.patches + 2
        self.members = [torch.tensor(c.members, dtype=torch.int64, device=device) for c in found]
        self.ends = np.cumsum([len(c.members) for c in found]).tolist()
        self.source = torch.cat(self.members)
        self.rope = torch.tensor([r for c in found for r in c.rope], device=device).repeat_interleave(self.tokens)
        ids = position_ids(grid, session.config.max_latent_size).to(device)
        self.ids = ids.repeat(len(found[0].members))
        markers = torch.tensor([session.markers.start_of_image, session.markers.end_of_image], device=device)
        self.ends_embedded = self.model.embed_text(markers)
        slots = torch.arange(self.ends[-1] * self.tokens, device=device).view(-1, self.tokens)
        self.und, self.gen = slots[:, [0, -1]], slots[:, 1:-1]
        self._gather(found)

    def _gather(self, found: Sequence[Context]) -> None:
        """Room for [own tokens | context] of every sequence; fills the context in and masks the rest."""
        device = self.source.device
        counts = [sum(b - a for a, b in ranges) for c in found for ranges in c.ranges]
        width = max(counts)
        like = found[0].cache.keys[0]
        shape = (self.ends[-1], self.tokens + width, *like.shape[2:])
        layers = len(found[0].cache.keys)
        self.keys = [like.new_zeros(shape) for _ in range(layers)]
        self.values = [like.new_zeros(shape) for _ in range(layers)]
        first = 0
        for c in found:
            for row, ranges in zip(c.rows, c.ranges, strict=True):
                at = self.tokens
                for a, b in ranges:
                    for layer in range(layers):
                        self.keys[layer][first, at : at + b - a] = c.cache.keys[layer][row, a:b]
                        self.values[layer][first, at : at + b - a] = c.cache.values[layer][row, a:b]
                    at += b - a
                first += 1
        self.bias = None
        if min(counts) < width:
            real = torch.arange(width) < torch.tensor(counts)[:, None]
            bias = torch.zeros(shape[0], 1, 1, shape[1], dtype=like.dtype)
            bias[:, 0, 0, self.tokens :].masked_fill_(~real, -torch.inf)
            self.bias = bias.to(device)

    @torch.no_grad()
    def __call__(self, x: Tensor, t: float, branches: Sequence[str]) -> list[Tensor]:
        """x [R, N, P] float32 -> the velocity [R, N, P] float32 of each branch."""
        sequences = self.ends[len(branches) - 1]
        when = torch.full((len(self.ids),), t, device=x.device)
        noisy = self.model.embed_latents(x.flatten(0, 1).to(self.dtype), when, self.ids).view(len(x), self.patches, -1)
        start, end = self.ends_embedded
        edge = (sequences, 1, noisy.shape[-1])
        hidden = torch.cat([start.expand(edge), noisy[self.source[:sequences]], end.expand(edge)], dim=1)
        und, gen = self.und[:sequences].flatten(), self.gen[:sequences].flatten()
        rope = self.rope[: sequences * self.tokens]
        out = self.model.language_model.model(hidden.flatten(0, 1), und, gen, rope, self._attend)
        v = self.model.velocity(out[gen]).float().view(sequences, self.patches, -1)
        full = v[: self.ends[0]]
        results = [full]
        for number in range(1, len(branches)):
            other = full.clone()
            other[self.members[number]] = v[self.ends[number - 1] : self.ends[number]]
            results.append(other)
        return results

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [S*T, A, D], k and v [S*T, G, D] of the pictures' own tokens -> [S*T, A, D].

        All tokens of a picture see the same keys, so the heads of a group are laid out as queries.
        """
        t, (groups, width) = self.tokens, k.shape[1:]
        sequences, heads = q.shape[0] // t, q.shape[1]
        keys, values = self.keys[layer][:sequences], self.values[layer][:sequences]
        keys[:, :t] = k.view(sequences, t, groups, width)
        values[:, :t] = v.view(sequences, t, groups, width)
        query = q.to(keys.dtype).view(sequences, t, groups, heads // groups, width).permute(0, 2, 3, 1, 4)
        bias = None if self.bias is None else self.bias[:sequences]
        found = scaled_dot_product_attention(
            query.reshape(sequences, groups, -1, width),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=bias,
        ).view(sequences, groups, heads // groups, t, width)
        return found.permute(0, 3, 1, 2, 4).reshape(q.shape).to(q.dtype)


def draw_latents(
    session: Session,
    rows: Sequence[int],
    sees: Sequence[Sequence[Range] | None],
    grids: Sequence[tuple[int, int]],
    settings: SamplerSettings,
    noise: Sequence[Tensor],
    *,
    keep_rope: bool = True,
    progress: Progress | None = None,
    watch: Callable[[Tensor, Tensor], None] | None = None,
) -> list[Tensor]:
    """Integrate `noise[i]` [N, P] in row i; -> latent patches [N, P] float32.

    Pictures of one grid run together. For `watch` see `sample`, for the rest `draw`.
    """
    if not rows:
        return []
    groups: dict[tuple[int, int], list[int]] = {}
    for i, grid in enumerate(grids):
        groups.setdefault(grid, []).append(i)
    needed = max(len(settings.branches(t)) for t in settings.times()[:-1].tolist())
    found = contexts(session, rows, sees, branches=needed, keep_rope=keep_rope)
    result: list[Tensor] = [torch.empty(0)] * len(rows)
    for number, (grid, members) in enumerate(groups.items()):
        denoiser = Denoiser(session, [c.only(members) for c in found], grid)
        start = torch.stack([noise[i] for i in members]).to(session.device, torch.float32)
        report = None
        if progress:
            report = lambda step, steps, n=number: progress(n * steps + step, len(groups) * steps)  # noqa: E731
        for i, latent in zip(members, sample(denoiser, start, settings, report, watch), strict=True):
            result[i] = latent
    return result


def draw(
    session: Session,
    rows: Sequence[int],
    sees: Sequence[Sequence[Range] | None],
    sizes: Sequence[tuple[int, int]],
    settings: SamplerSettings,
    seeds: Sequence[int],
    *,
    keep_rope: bool = True,
    progress: Progress | None = None,
) -> list[np.ndarray]:
    """Draw one picture a row; -> uint8 [H, W, 3] each.

    `sees[i]`: the ranges of row i that its picture may look at, None for all. `sizes`: (H, W) in pixels.
    `seeds`: one a picture; the same seed gives the same picture whatever else is drawn. `keep_rope`: see
    `contexts`.

    Raises:
        UserError: a size that is no multiple of 16, or that the model's position table cannot hold.
    """
    unit, side = session.config.pixels_per_token, session.config.max_latent_size
    grids = []
    for height, width in sizes:
        if height < unit or width < unit or height % unit or width % unit:
            raise UserError(f"size {height}x{width}: height and width must be positive multiples of {unit}")
        if max(height, width) > unit * side:
            raise UserError(f"size {height}x{width}: this model draws at most {unit * side} pixels a side")
        grids.append((height // unit, width // unit))
    noise = [picture_noise(s, h * w, session.config.latent_dim) for s, (h, w) in zip(seeds, grids, strict=True)]
    latents = draw_latents(session, rows, sees, grids, settings, noise, keep_rope=keep_rope, progress=progress)
    return decode_latents(session, latents, grids)


@torch.no_grad()
def decode_latents(session: Session, latents: Sequence[Tensor], grids: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Latent patches [N, P] -> uint8 [H, W, 3] each; pictures of one size are decoded together."""
    assert session.vae is not None, "a session without a VAE draws latents only"
    weight = next(session.vae.parameters())
    groups: dict[tuple[int, int], list[int]] = {}
    for i, grid in enumerate(grids):
        groups.setdefault(grid, []).append(i)
    result: list[np.ndarray] = [np.empty(0)] * len(latents)
    for grid, members in groups.items():
        at_once = max(1, DECODE_PIXELS // (grid[0] * grid[1] * session.config.pixels_per_token**2))
        for a in range(0, len(members), at_once):
            part = members[a : a + at_once]
            stacked = torch.stack([unpatchify(latents[i], grid, session.config.latent_patch_size) for i in part])
            for i, picture in zip(part, session.vae.decode(stacked.to(weight.device, weight.dtype)), strict=True):
                result[i] = to_uint8(picture)
    return result
