"""The end of a run: `final/`, a complete model folder in BAGEL's layout with where it comes from."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unify_agent.files import digest
from unify_agent.model.config import BagelConfig
from unify_agent.model.weights import Description, save_folder
from unify_agent.training import metrics
from unify_agent.training.parallel import full

if TYPE_CHECKING:
    from unify_agent.training.trainer import Trainer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@torch.no_grad()
def export_run(trainer: Trainer) -> Path:
    """Write the weights that `export.weights` names to RUN/final, complete and atomically (a collective).

    Tensors that are not trained (position tables, frozen towers) are the model's own.
    """
    config, parts = trainer.config, trainer.parts
    out = trainer.folder / "final"
    averages = trainer.ema.tensors if config.export.weights == "ema" else {}
    state: dict[str, Tensor] = {}
    for name, tensor in trainer.model.state_dict().items():
        whole = full(averages.get(name, tensor))
        if trainer.world.main:
            state[name] = whole
    if trainer.world.main:
        description = Description(
            layout=config.layout,
            transforms={"vae": parts.pixels.vae, "vit": parts.pixels.vit},
            prompts=config.export.prompts,
            provenance=provenance(trainer),
        )
        dtype = DTYPES[config.export.dtype]
        save_folder(out, state, parts.model.config, parts.vae, parts.tokenizer, description, dtype)
    trainer.world.barrier()
    return out


def provenance(trainer: Trainer) -> dict[str, Any]:
    """Recipe, seed, commit, hashes of data, tokenizer and architecture, and the run's last metrics."""
    config, parts = trainer.config, trainer.parts
    return {
        "recipe": config.recipe,
        "start": config.model.path or "random",
        "seed": config.seed,
        "steps": trainer.done,
        "weights": config.export.weights,
        "commit": commit(),
        "data": parts.loader.fingerprint,
        "tokenizer": parts.grammar.fingerprint,
        "architecture": architecture_hash(parts.model.config),
        "metrics": metrics.totals(metrics.read(trainer.folder / "metrics.jsonl")),
    }


def architecture_hash(config: BagelConfig) -> str:
    """Identifies every size of a model; not its weights, nor the measured scale and shift of its latents."""
    sizes = asdict(config)
    for measured in ("scale_factor", "shift_factor"):
        del sizes["vae"][measured]
    return digest(json.dumps(sizes, sort_keys=True))[:16]


def commit() -> str | None:
    """The checkout's commit, with `+changes` when files differ from it; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
