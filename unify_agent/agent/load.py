"""From a model folder to a policy, with the folder's own layout, transforms, prompts, and sensible settings."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unify_agent.agent.unified import UnifiedPolicy
from unify_agent.agent.wording import Prompts, load_prompts
from unify_agent.errors import UserError
from unify_agent.files import digest
from unify_agent.generation.sampler import SamplerSettings
from unify_agent.generation.text import Sampling
from unify_agent.interleave.layout import Pixels
from unify_agent.model.weights import ModelFolder, load_model

COMPACT_SETTINGS = SamplerSettings(steps=25, shift=1.0, text_scale=1.0, image_scale=1.0)
"""For tiny models, which are asked in the compact words: no guidance."""
COMPACT_TOKENS = 192
"""Longest reply of a tiny model."""


def load_policy(
    source: Path | str,
    *,
    prompts: str | Path | None = None,
    size: tuple[int, int] | None = None,
    device: str | None = None,
    sampling: Sampling | None = None,
    **changes: Any,
) -> tuple[UnifiedPolicy, Prompts]:
    """The policy of a model folder (or hub id) and the words to ask it with.

    `prompts`: by name or file, instead of the folder's. `size`: (height, width) of pictures; the default is the largest
    square that the folder's VAE transform makes. `changes`: fields of `SamplerSettings`. On a GPU weights are bfloat16.
    Raises UserError for a folder that is none, or a size that the model cannot draw.
    """
    folder = ModelFolder(source)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    transforms = folder.transforms
    pixels = Pixels(
        vae=transforms["vae"],
        vit=transforms["vit"],
        vae_patch=folder.config.pixels_per_token,
        vit_patch=folder.config.vit.patch_size,
    )
    words = load_prompts(prompts or folder.prompts)
    compact = words.name == "compact"
    settings = COMPACT_SETTINGS if compact else SamplerSettings()
    settings = replace(settings, **{key: value for key, value in changes.items() if value is not None})
    height, width = size or (transforms["vae"].max_size,) * 2
    patch, most = folder.config.pixels_per_token, folder.config.max_latent_size * folder.config.pixels_per_token
    for side in (height, width):
        if side % patch or not patch <= side <= most:
            raise UserError(f"size {height}x{width}: sides must be multiples of {patch} from {patch} to {most}")
    model = load_model(folder, dtype, device).eval()
    model.requires_grad_(False)
    policy = UnifiedPolicy(
        model,
        folder.vae().to(device).eval(),
        folder.grammar(),
        pixels,
        folder.layout,
        sampling=sampling or Sampling(max_new=COMPACT_TOKENS if compact else 1024),
        settings=settings,
        size=(height, width),
        provenance={"model": str(source), "weights": weights_hash(folder), "prompts": words.name},
    )
    return policy, words


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
