"""The tiny base model of the checkout: put there from a finished pre-training run, and checked against the code.

`python -m data base --run RUN --world WORLD` copies RUN/final to data/openmoji/base, with the autoencoder in half
precision, and notes which entities it was trained on. A world whose entities or tokenizer differ from the base's
would show it what it has seen, or speak other tokens; `check` refuses it.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from unify_agent.errors import UserError
from unify_agent.files import digest, read_json, whole_folder, write_json
from unify_agent.interleave.grammar import Grammar

BASE = Path(__file__).resolve().parent / "base"
LARGEST = 12 * 2**20
"""Bytes that the folder may take."""
REBUILD = "build it anew: recipes openmoji_vae, openmoji_pretrain, openmoji_refine, python -m data base (see README)"


def entities_of(world: Path) -> str:
    """Identity of a world's entities: names, aliases and splits."""
    return digest(Path(world) / "entities.json")[:16]


def install(run: Path, world: Path, base: Path = BASE) -> Path:
    """Put the export of a run into `base`. Raises UserError when it belongs to another world or is too large."""
    import torch
    from safetensors.torch import load_file, save_file

    final = Path(run) / "final"
    if not (final / "unify_agent.json").is_file():
        raise UserError(f"{final}: no exported model; finish the run first, with the command that started it")
    if Grammar.load(final).fingerprint != Grammar.load(Path(world) / "tokenizer").fingerprint:
        raise UserError(f"{final}: its tokenizer is not that of {world}; train on the world that is there")
    with whole_folder(base) as work:
        shutil.copytree(final, work, dirs_exist_ok=True)
        vae = {name: value.to(torch.float16) for name, value in load_file(final / "ae.safetensors").items()}
        save_file(vae, work / "ae.safetensors", metadata={"format": "pt"})
        (work / "ae.safetensors").chmod(0o644)
        described = read_json(work / "unify_agent.json")
        described["provenance"]["entities"] = entities_of(world)
        write_json(work / "unify_agent.json", described)
        size = sum(path.stat().st_size for path in work.iterdir())
        if size > LARGEST:
            raise UserError(f"{final}: {size} bytes, at most {LARGEST} belong into a checkout; export in bf16")
    return base


def check(world: Path, base: Path = BASE) -> None:
    """Raises UserError when the base was not made for this world's entities and tokenizer."""
    made = read_json(base / "unify_agent.json", "base model")["provenance"]
    if made.get("entities") != entities_of(world):
        raise UserError(f"{base}: it was trained on other entities than {world} has; {REBUILD}")
    if made.get("tokenizer") != Grammar.load(Path(world) / "tokenizer").fingerprint:
        raise UserError(f"{base}: its tokenizer is not that of {world}; {REBUILD}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m data base`."""
    parser.add_argument("--run", type=Path, required=True, help="run folder of the last pre-training recipe")
    parser.add_argument("--world", type=Path, required=True, help="the world it was trained on")


def main(args: argparse.Namespace) -> None:
    """`python -m data base`."""
    print(f"base model: {install(args.run, args.world)}")
