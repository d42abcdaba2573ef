"""A complete model folder in BAGEL's layout, written one file of weights at a time, whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from unify_agent import files
from unify_agent.errors import UserError
from unify_agent.model.card import model_card
from unify_agent.model.config import BagelConfig, llm_to_json, vit_to_json
from unify_agent.model.folder import DESCRIPTION, Description, describe
from unify_agent.model.loading import shapes
from unify_agent.model.tensors import WeightsError
from unify_agent.model.vae import FluxVae

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
GIB = 1 << 30
SHARD_GIB = 40.0
"""Largest file of weights. The public code reads one file only, and a 7B in bfloat16 has 27 GiB."""
Read = Callable[[Sequence[str]], Mapping[str, Tensor]]
"""Names -> those tensors, whole. Asked for a GiB at a time."""


def save_folder(
    out: Path | str,
    state: Mapping[str, Tensor],
    config: BagelConfig,
    vae: FluxVae,
    tokenizer: Path | str,
    description: Description,
    dtype: torch.dtype = torch.float32,
    shard_gib: float = SHARD_GIB,
) -> Path:
    """`write_folder` of tensors that are in memory: the model's weights or their moving average, under BAGEL's names.

    Raises:
        UserError: there is no tokenizer to copy, or a tensor is missing.
    """
    lost = [f"{out}: tensor {n} is missing from what is to be saved" for n in shapes(config) if n not in state]
    if lost:
        raise WeightsError(out, {"missing": lost})
    return write_folder(
        out, lambda names: {n: state[n] for n in names}, config, vae, tokenizer, description, dtype, shard_gib
    )


def write_folder(
    out: Path | str,
    read: Read,
    config: BagelConfig,
    vae: FluxVae,
    tokenizer: Path | str,
    description: Description,
    dtype: torch.dtype = torch.float32,
    shard_gib: float = SHARD_GIB,
) -> Path:
    """Writes a complete folder, or nothing. `tokenizer`: a folder whose tokenizer files are copied; `dtype`: of the
    weights (the autoencoder keeps its own). Weights of more than `shard_gib` become several files with an index.

    Raises:
        UserError: there is no tokenizer to copy.
    """
    from safetensors.torch import save_file

    out, tokenizer = Path(out), Path(tokenizer)
    copied = [tokenizer / name for name in TOKENIZER_FILES if (tokenizer / name).is_file()]
    if not copied:
        raise UserError(f"{tokenizer}: no tokenizer here; expected tokenizer.json, or vocab.json and merges.txt")
    sizes = {name: prod(shape) * dtype.itemsize for name, shape in shapes(config).items()}
    parts = shards(sizes, int(shard_gib * GIB))
    with files.whole_folder(out) as work:
        for file, names in parts.items():
            ready: dict[str, Tensor] = {}
            for few in _batches({name: sizes[name] for name in names}, GIB):
                ready |= {name: value.detach().to("cpu", dtype).contiguous() for name, value in read(few).items()}
            save_file(ready, work / file, metadata={"format": "pt"})
        if len(parts) > 1:
            placed = {name: file for file, names in parts.items() for name in names}
            index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": placed}
            files.write_json(work / "ema.safetensors.index.json", index)
        kept = {name: value.detach().cpu().contiguous() for name, value in vae.original_state_dict().items()}
        save_file(kept, work / "ae.safetensors", metadata={"format": "pt"})
        files.write_json(work / "llm_config.json", llm_to_json(config.llm))
        files.write_json(work / "vit_config.json", vit_to_json(config.vit))
        files.write_json(work / DESCRIPTION, describe(config, description))
        files.write_text(work / "README.md", model_card(config, description, dtype, sizes, list(parts)))
        for path in copied:
            shutil.copyfile(path, work / path.name)
        for path in work.glob("*.safetensors"):  # safetensors writes through a private temporary file
            path.chmod(0o644)
    return out


def shards(sizes: Mapping[str, int], most: int) -> dict[str, list[str]]:
    """File name -> tensors, in order, at most `most` bytes a file unless one tensor alone has more."""
    parts = _batches(sizes, most)
    if len(parts) == 1:
        return {"ema.safetensors": parts[0]}
    return {f"ema-{n:05d}-of-{len(parts):05d}.safetensors": names for n, names in enumerate(parts, 1)}


def _batches(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    batches: list[list[str]] = [[]]
    room = most
    for name, size in sizes.items():
        if batches[-1] and size > room:
            batches.append([])
            room = most
        batches[-1].append(name)
        room -= size
    return batches
