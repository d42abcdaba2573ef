"""From a model folder to a policy, with the folder's own layout, transforms, prompts, and sensible settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from unify_agent.agent import placement
from unify_agent.agent.unified import UnifiedPolicy
from unify_agent.agent.wording import Prompts, load_prompts
from unify_agent.errors import UserError
from unify_agent.files import digest
from unify_agent.generation.sampler import GUIDANCE, SamplerSettings
from unify_agent.generation.text import Sampling
from unify_agent.interleave.layout import Pixels, Preset
from unify_agent.model.loading import DTYPES
from unify_agent.model.weights import ModelFolder, Weights

COMPACT_SETTINGS = SamplerSettings(steps=25, shift=3.0, **GUIDANCE["references"])
"""For tiny models, which are asked in the compact words: guidance by the references alone."""
COMPACT_TOKENS = 192
"""Longest reply of a tiny model."""


def load_policy(
    source: Path | str,
    *,
    prompts: str | Path | None = None,
    size: tuple[int, int] | None = None,
    aspect: float | None = None,
    device: str | None = None,
    dtype: str | None = None,
    spread: bool = False,
    quant: str | None = None,
    sampling: Sampling | None = None,
    **changes: Any,
) -> tuple[UnifiedPolicy, Prompts]:
    """The policy of a model folder (or hub id) and the words to ask it with.

    `prompts`: by name or file, instead of the folder's. `size`: (height, width) of pictures; the default is the largest
    square that the folder's VAE transform makes. `aspect`: width over height, of a picture of that area. `dtype`
    (`bf16` or `fp32`): by default bf16 on a card, fp32 on a CPU.
    `spread` and `quant`: see `placement.place`. `changes`: see `sampler_settings`.

    Raises UserError, before any weight is read, for a folder that is none, weights that are not those of its
    configuration, more tokens than rows, or a size that the position tables cannot hold.
    """
    placement.check_quant(quant)
    folder = ModelFolder(source)
    home = torch.device(device) if device else placement.home_device()
    kind = DTYPES[dtype] if dtype else placement.default_dtype(home)
    weights, grammar, transforms = Weights(folder), folder.grammar(), folder.transforms
    if grammar.size > folder.config.llm.vocab_size:
        raise UserError(
            f"{folder.path}: the tokenizer has {grammar.size} tokens with the tags, the model's table "
            f"{folder.config.llm.vocab_size} rows; training with model.path grows it"
        )
    pixels = Pixels(
        vae=transforms["vae"],
        vit=transforms["vit"],
        vae_patch=folder.config.pixels_per_token,
        vit_patch=folder.config.vit.patch_size,
    )
    words = load_prompts(prompts or folder.prompts)
    compact = words.name == "compact"
    settings = sampler_settings(words.name, changes)
    height, width = picture_size(folder, size, aspect)
    _fit_tables(folder)
    vae = folder.vae().to(home).eval()
    policy = UnifiedPolicy(
        placement.place(weights, kind, home=home, spread=spread, quant=quant),
        vae,
        grammar,
        pixels,
        cast(Preset, folder.layout),
        sampling=sampling or Sampling(max_new=COMPACT_TOKENS if compact else 1024),
        settings=settings,
        size=(height, width),
        provenance={
            "model": str(source),
            "weights": weights_hash(folder),
            "prompts": words.name,
            "dtype": str(kind).removeprefix("torch."),
            **({"quant": quant} if quant else {}),
        },
    )
    return policy, words


def sampler_settings(prompts: str, changes: Mapping[str, Any]) -> SamplerSettings:
    """How pictures are sampled: what suits a model that is asked with these prompts, with changes of fields of
    `SamplerSettings`; `preset` names changes in `GUIDANCE`, which others go before."""
    given = {name: value for name, value in changes.items() if value is not None}
    given = GUIDANCE.get(given.pop("preset", ""), {}) | given
    return replace(COMPACT_SETTINGS if prompts == "compact" else SamplerSettings(), **given)


def picture_size(folder: ModelFolder, size: tuple[int, int] | None, aspect: float | None) -> tuple[int, int]:
    """(height, width) of the pictures to draw; for the arguments see `load_policy`. Raises UserError."""
    height, width = size or (folder.transforms["vae"].max_size,) * 2
    patch, most = folder.config.pixels_per_token, folder.config.max_latent_size * folder.config.pixels_per_token
    if aspect is not None:
        area = height * width
        sides = ((area / aspect) ** 0.5, (area * aspect) ** 0.5)
        height, width = (max(patch, round(side / patch) * patch) for side in sides)
        if max(height, width) > most:
            raise UserError(f"aspect {aspect:.3g}: {height}x{width} is too long, the model draws up to {most} a side; "
                            "give a smaller --size")  # fmt: skip
    for side in (height, width):
        if side % patch or not patch <= side <= most:
            raise UserError(f"size {height}x{width}: sides must be multiples of {patch} from {patch} to {most}")
    return height, width


def _fit_tables(folder: ModelFolder) -> None:
    """Raises UserError when the pictures that the folder's transforms make are too large for its position tables."""
    config = folder.config
    sides = {
        "vae": config.max_latent_size * config.pixels_per_token,
        "vit": config.vit_max_num_patch_per_side * config.vit.patch_size,
    }
    for use, most in sides.items():
        if folder.transforms[use].max_size > most:
            raise UserError(
                f"{folder.path}: transforms.{use}.max_size is {folder.transforms[use].max_size}, but the position "
                f"table holds pictures of at most {most} pixels a side"
            )


def weights_hash(folder: ModelFolder) -> str:
    """Identity of a folder's weights: of the whole file when it is small, else of its size, beginning and end."""
    parts = []
    for file in sorted({*(each.file for each in folder.tensors.values()), folder.path / "ae.safetensors"}):
        size = file.stat().st_size
        if size <= 1 << 28:
            parts.append(digest(file))
            continue
        hasher = hashlib.sha256(str(size).encode())
        with file.open("rb") as opened:
            hasher.update(opened.read(1 << 22))
            opened.seek(-(1 << 22), 2)
            hasher.update(opened.read())
        parts.append(hasher.hexdigest())
    return digest(*parts)[:16]
