"""Drawing: from what a row's picture may see (`branches.py`) to the picture.

The keys and values of that context are gathered once; each step computes the marker and noise tokens only. All branches
that a step of guidance needs run as one batch, each attending to its own context.

Axes: R pictures of one size, S sequences of all branches, N latent patches, T = N + 2 tokens of a picture
with its markers, K keys, A query heads, G key/value heads, D head dimension, P = 64 numbers of a patch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from unify_agent.errors import UserError
from unify_agent.generation.branches import Context, contexts
from unify_agent.generation.sampler import Progress, SamplerSettings, picture_noise, sample
from unify_agent.interleave.batch import position_ids
from unify_agent.interleave.visibility import Range
from unify_agent.model.vae import to_uint8, unpatchify

if TYPE_CHECKING:
    from unify_agent.generation.session import Session
    from unify_agent.model.config import BagelConfig

DRAW_TOKENS = 1 << 16
"""Tokens of noised pictures, over all branches, in one forward: five guided pictures of 1024x1024."""

DECODE_PIXELS = 1 << 20
"""Pixels that the VAE decodes in one call."""

LOOKS = 8
"""Times that a forming picture is shown."""

Preview = Callable[[int, np.ndarray], None]


class _Branch:
    """One context of every picture that has it: its S sequences are those `first` to `last` of the forward.

    `keys` and `values` hold [S, own tokens | context, G, D] of each layer; `bias` masks what a shorter context leaves
    empty. Branches are as wide as their own contexts, so a short one costs little.
    """

    def __init__(self, context: Context, first: int, tokens: int) -> None:
        like = context.cache.keys[0]
        self.members = torch.tensor(context.members, dtype=torch.int64, device=like.device)
        self.first, self.last, self.tokens = first, first + len(context.members), tokens
        counts = [sum(b - a for a, b in ranges) for ranges in context.ranges]
        width = tokens + max(counts, default=0)
        self.keys = [self._gathered(store, context, width) for store in context.cache.keys]
        self.values = [self._gathered(store, context, width) for store in context.cache.values]
        self.bias = None
        if min(counts, default=0) < max(counts, default=0):
            real = torch.arange(width) < tokens + torch.tensor(counts)[:, None]
            bias = torch.zeros(len(counts), 1, 1, width, dtype=like.dtype)
            self.bias = bias.masked_fill_(~real[:, None, None], -torch.inf).to(like.device)

    def _gathered(self, store: Tensor, context: Context, width: int) -> Tensor:
        room = store.new_zeros(len(context.members), width, *store.shape[2:])
        for place, (row, ranges) in enumerate(zip(context.rows, context.ranges, strict=True)):
            at = self.tokens
            for a, b in ranges:
                room[place, at : at + b - a] = store[row, a:b]
                at += b - a
        return room

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [S, T, A, D], k and v [S, T, G, D] of the pictures' own tokens -> [S, T, A, D].

        All tokens of a picture see the same keys, so the heads of a group are laid out as queries.
        """
        sequences, t, heads, width = q.shape
        groups = k.shape[2]
        keys, values = self.keys[layer], self.values[layer]
        keys[:, :t], values[:, :t] = k, v
        query = q.to(keys.dtype).view(sequences, t, groups, heads // groups, width).permute(0, 2, 3, 1, 4)
        found = scaled_dot_product_attention(
            query.reshape(sequences, groups, heads // groups * t, width),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=self.bias,
        ).view(sequences, groups, heads // groups, t, width)
        return found.permute(0, 3, 1, 2, 4).reshape(q.shape).to(q.dtype)


class Denoiser:
    """The model as `sampler.Velocity` for pictures of one grid over fixed contexts; one forward a step."""

    def __init__(self, session: Session, found: Sequence[Context], grid: tuple[int, int]) -> None:
        self.model, self.dtype = session.model, session.dtype
        device = session.device
        self.patches = grid[0] * grid[1]
        self.tokens = self.patches + 2
        self.branches: list[_Branch] = []
        for context in found:
            first = self.branches[-1].last if self.branches else 0
            self.branches.append(_Branch(context, first, self.tokens))
        self.source = torch.cat([branch.members for branch in self.branches])
        self.rope = torch.tensor([r for c in found for r in c.rope], device=device).repeat_interleave(self.tokens)
        self.ids = position_ids(grid, session.config.max_latent_size).to(device).repeat(len(found[0].members))
        markers = torch.tensor([session.markers.start_of_image, session.markers.end_of_image], device=device)
        self.markers = self.model.embed_text(markers)
        slots = torch.arange(len(self.source) * self.tokens, device=device).view(-1, self.tokens)
        self.und, self.gen = slots[:, [0, -1]], slots[:, 1:-1]

    @torch.no_grad()
    def __call__(self, x: Tensor, t: float, branches: Sequence[str]) -> list[Tensor]:
        """x [R, N, P] float32 -> the velocity [R, N, P] float32 of each branch: all that there are, or the first."""
        used = self.branches[: len(branches)]
        sequences = used[-1].last
        when = torch.full((len(self.ids),), t, device=x.device)
        noisy = self.model.embed_latents(x.flatten(0, 1).to(self.dtype), when, self.ids).view(len(x), self.patches, -1)
        start, end = self.markers
        edge = (sequences, 1, noisy.shape[-1])
        hidden = torch.cat([start.expand(edge), noisy[self.source[:sequences]], end.expand(edge)], dim=1)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (each.view(sequences, self.tokens, *each.shape[1:]) for each in (q, k, v))
            parts = (slice(branch.first, branch.last) for branch in used)
            seen = [branch.attend(layer, q[p], k[p], v[p]) for branch, p in zip(used, parts, strict=True)]
            return (torch.cat(seen) if len(seen) > 1 else seen[0]).flatten(0, 1)

        und, gen = self.und[:sequences].flatten(), self.gen[:sequences].flatten()
        rope = self.rope[: sequences * self.tokens]
        out = self.model.language_model.model(hidden.flatten(0, 1), und, gen, rope, attend)
        v = self.model.velocity(out[gen]).float().view(sequences, self.patches, -1)
        full = v[: used[0].last]
        results = [full]
        for branch in used[1:]:
            other = full.clone()
            other[branch.members] = v[branch.first : branch.last]
            results.append(other)
        return results


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
    forming: Callable[[list[int], Tensor], None] | None = None,
) -> list[Tensor]:
    """Integrate `noise[i]` [N, P] in row i; -> latent patches [N, P] float32.

    Pictures of one grid run together, as many as `DRAW_TOKENS` allows. `forming` is told now and then where those
    pictures (indices) are heading, [R, N, P]. For `watch` see `sample`, for the rest `draw`.
    """
    if not rows:
        return []
    groups: dict[tuple[int, int], list[int]] = {}
    for i, grid in enumerate(grids):
        groups.setdefault(grid, []).append(i)
    needed = max((settings.branches(t) for t in settings.times()[:-1].tolist()), key=len)
    found = contexts(session, rows, sees, branches=needed, keep_rope=keep_rope)
    batches: list[tuple[tuple[int, int], list[int]]] = []
    for grid, members in groups.items():
        at_once = max(1, DRAW_TOKENS // (len(needed) * (grid[0] * grid[1] + 2)))
        batches += [(grid, members[a : a + at_once]) for a in range(0, len(members), at_once)]
    result: list[Tensor] = [torch.empty(0)] * len(rows)
    for number, (grid, members) in enumerate(batches):
        denoiser = Denoiser(session, [c.only(members) for c in found], grid)
        start = torch.stack([noise[i] for i in members]).to(session.device, torch.float32)
        report = None
        if progress:
            report = lambda step, steps, n=number: progress(n * steps + step, len(batches) * steps)  # noqa: E731
        looks = _forming(settings, members, forming, watch) if forming else watch
        for i, latent in zip(members, sample(denoiser, start, settings, report, looks), strict=True):
            result[i] = latent
    return result


def _forming(
    settings: SamplerSettings,
    members: list[int],
    forming: Callable[[list[int], Tensor], None],
    watch: Callable[[Tensor, Tensor], None] | None,
) -> Callable[[Tensor, Tensor], None]:
    """A `watch` that tells `forming` at some of the steps: straight on from x at time t, the end is x - t v."""
    times, step = settings.times(), 0
    every = max(1, (settings.steps - 1) // LOOKS)

    def looks(v: Tensor, x: Tensor) -> None:
        nonlocal step
        step += 1
        if watch:
            watch(v, x)
        if step % every == 0:
            forming(members, x - times[step].to(x.device) * v)

    return looks


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
    preview: Preview | None = None,
) -> list[np.ndarray]:
    """Draw one picture a row; -> uint8 [H, W, 3] each.

    `sees[i]`: the ranges of row i that its picture may look at, None for all. `sizes`: (H, W) in pixels.
    `seeds`: one a picture; the same seed gives the same picture whatever else is drawn. `keep_rope`: see
    `contexts`. `preview` is told (index, uint8 [H, W, 3]) now and then how a picture is forming.

    Raises:
        UserError: a size that is no multiple of 16, or that the model's position table cannot hold.
    """
    grids = [grid_of_size(session.config, *size) for size in sizes]
    noise = [picture_noise(s, h * w, session.config.latent_dim) for s, (h, w) in zip(seeds, grids, strict=True)]
    forming = _decoded(session, grids, preview) if preview is not None else None
    latents = draw_latents(
        session, rows, sees, grids, settings, noise, keep_rope=keep_rope, progress=progress, forming=forming
    )
    return decode_latents(session, latents, grids)


def _decoded(
    session: Session, grids: Sequence[tuple[int, int]], preview: Preview
) -> Callable[[list[int], Tensor], None]:
    """A `forming` that decodes what it is told for `preview`."""

    def forming(members: list[int], latents: Tensor) -> None:
        for i, latent in zip(members, latents, strict=True):
            preview(i, decode_latents(session, [latent], [grids[i]])[0])

    return forming


def grid_of_size(config: BagelConfig, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of latent patches of a picture of so many pixels. Raises UserError as `draw`."""
    unit, side = config.pixels_per_token, config.max_latent_size
    if height < unit or width < unit or height % unit or width % unit:
        raise UserError(f"size {height}x{width}: height and width must be positive multiples of {unit}")
    if max(height, width) > unit * side:
        raise UserError(f"size {height}x{width}: this model draws at most {unit * side} pixels a side")
    return height // unit, width // unit


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
