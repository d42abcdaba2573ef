"""From a checkpoint of a run to a complete model folder in BAGEL's layout, with where it comes from.

One process does it, whatever number of ranks wrote the checkpoint, and holds one file of weights at a time.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from unify_agent.errors import UserError
from unify_agent.files import digest
from unify_agent.interleave.transforms import Transform
from unify_agent.model.config import BagelConfig
from unify_agent.model.loading import DTYPES, shapes
from unify_agent.model.tensors import WeightsError
from unify_agent.model.weights import Description, write_folder
from unify_agent.training import checkpoint, metrics
from unify_agent.training.assembly import Start
from unify_agent.training.checkpoint import Checkpoint
from unify_agent.training.config import Config, TransformConfig
from unify_agent.training.lora import Merged


def export_run(run: Path, out: Path, config: Config, start: Start) -> Path:
    """Write what `config.export` says of the newest checkpoint of `run` to `out`, complete or not at all.

    What has no average (position tables, frozen towers) is the model's own.

    Raises:
        UserError: there is no checkpoint, or a line per tensor that it lacks or has in another shape.
    """
    found = checkpoint.latest(run / "checkpoints")
    if found is None:
        raise UserError(f"{run}: no complete checkpoint in {run / 'checkpoints'}; train first")
    read = Merged(found, config, start) if config.lora.rank else _reader(found, config.export.weights, start.shape)
    description = Description(
        layout=config.layout,
        transforms={"vae": _transform(config.data.vae_transform), "vit": _transform(config.data.vit_transform)},
        prompts=config.export.prompts,
        provenance=provenance(run, found, config, start),
    )
    dtype = DTYPES[config.export.dtype]
    return write_folder(out, read, start.shape, start.vae, start.tokenizer, description, dtype, config.export.shard_gib)


def _reader(found: Checkpoint, weights: str, shape: BagelConfig) -> Callable[[Sequence[str]], Mapping[str, Tensor]]:
    keys = _keys(found, weights, shape)

    def read(names: Sequence[str]) -> Mapping[str, Tensor]:
        tensors = checkpoint.read(found, [keys[name] for name in names])
        return {name: tensors[keys[name]] for name in names}

    return read


def provenance(run: Path, found: Checkpoint, config: Config, start: Start) -> dict[str, Any]:
    """Recipe, seed, commit, hashes of data, tokenizer and architecture, and the run's last metrics."""
    rows = [row for row in metrics.read(run / "metrics.jsonl") if row["step"] <= found.step]
    return {
        "recipe": config.recipe,
        "start": config.model.path or "random",
        "seed": config.seed,
        "steps": found.step,
        "weights": config.export.weights,
        "commit": found.meta.get("commit"),
        "data": found.meta["data"]["index"],
        "tokenizer": start.grammar.fingerprint,
        "architecture": architecture_hash(start.shape),
        "metrics": metrics.totals(rows),
    }


def architecture_hash(config: BagelConfig) -> str:
    """Identifies every size of a model; not its weights, its timestep shift or the measured scale of its latents."""
    sizes = asdict(config)
    del sizes["timestep_shift"]
    for measured in ("scale_factor", "shift_factor"):
        del sizes["vae"][measured]
    return digest(json.dumps(sizes, sort_keys=True))[:16]


@cache
def commit() -> str | None:
    """The checkout's commit, with `+changes` when files differ from it; None outside a checkout. A snapshot of the
    code (slurm/common.sh) has it in a file."""
    root = Path(__file__).resolve().parents[2]
    if (root / "COMMIT").is_file():
        return (root / "COMMIT").read_text(encoding="utf-8").strip()

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _keys(found: Checkpoint, weights: str, shape: BagelConfig) -> dict[str, str]:
    """Name of every tensor of the model -> its key in the checkpoint."""
    held, wanted = checkpoint.shapes(found), shapes(shape)
    keys = {name: f"model/{name}" for name in wanted}
    if weights == "ema":
        keys = {name: f"ema/{name}" if f"ema/{name}" in held else key for name, key in keys.items()}
    missing = [f"{found.path}: tensor {key} is missing" for key in keys.values() if key not in held]
    misshapen = [
        f"{found.path}: tensor {key} is {held[key]}, the run's configuration says {wanted[name]}"
        for name, key in keys.items()
        if key in held and held[key] != wanted[name]
    ]
    if missing or misshapen:
        raise WeightsError(found.path, {"missing": missing, "misshapen": misshapen})
    return keys


def _transform(config: TransformConfig) -> Transform:
    return Transform(config.max, config.min, config.stride)
