"""Task `vae`: the run's configuration -> `train_autoencoder`, with progress on the console."""

from __future__ import annotations

import os
from pathlib import Path

from unify_agent import files
from unify_agent.errors import UserError
from unify_agent.training import plugins
from unify_agent.training.compose import to_yaml
from unify_agent.training.config import Config


def fit_vae(config: Config) -> int:
    """Train the autoencoder into `config.output`; a finished folder is left as it is."""
    if config.vae.pictures is None:
        raise UserError("vae.pictures is not set: name a source of pictures as package.module:Class")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("task=vae runs in one process: start it with python, not torchrun")
    kind = plugins.load(config.vae.pictures, "vae.pictures")
    source = plugins.call(kind, (), config.vae.options, "vae.options")

    from unify_agent.training.assembly import architecture
    from unify_agent.training.autoencoder import train_autoencoder
    from unify_agent.training.occupied import occupied
    from unify_agent.training.parallel import World, own_device, set_threads

    if config.model.arch is None:
        raise UserError("model.arch is not set: task=vae trains the autoencoder of an architecture")
    set_threads(config.parallel.threads)
    out = Path(config.output)
    with occupied(out, World(0, 1, own_device(), None)):
        files.write_text(out / "config.yaml", to_yaml(config))
        train_autoencoder(config, architecture(config.model.arch).vae, source, report=_print)
    metrics = files.read_json(out / "metrics.json")
    print(f"autoencoder in {out}: PSNR {metrics['psnr_db']} dB on {metrics['pictures']} held-out pictures", flush=True)
    return 0


def _print(row: dict) -> None:
    print(
        f"step {row['step']:>6}  loss {row['loss']:.4f}  l1 {row['l1']:.4f}  kl {row['kl']:.2f}  "
        f"grad {row['grad_norm']:.2f}  lr {row['lr']:.1e}  {row['seconds_per_step']:.3f} s/step",
        flush=True,
    )
