"""Training the small autoencoder: it can be stopped anywhere, it learns, and its latents come out with mean 0 and
deviation 1."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from unify_agent.errors import UserError
from unify_agent.model.config import VaeConfig, vae_from_json
from unify_agent.model.vae import load_vae
from unify_agent.training.autoencoder import edge_loss, train_autoencoder
from unify_agent.training.config import CheckpointConfig, Config, LoggingConfig, VaeTrainingConfig

SMALL = VaeConfig(ch=4, ch_mult=(1, 1, 1, 1), num_res_blocks=1, norm_groups=2, scale_factor=1.0, shift_factor=0.0)


def settings(out: Path, steps: int = 6, **changes) -> Config:
    options = {"batch_size": 2, "warmup": 1, "evaluate_pictures": 4, "bf16": False} | changes
    return Config(
        output=str(out),
        steps=steps,
        vae=VaeTrainingConfig(**options),
        checkpoint=CheckpointConfig(every=2),
        logging=LoggingConfig(every=1),
    )


class Flat:
    """Pictures of one colour with a square in another."""

    def batch(self, step: int, size: int) -> np.ndarray:
        rng = np.random.default_rng(step + 10)
        out = np.empty((size, 32, 32, 3), np.uint8)
        out[:] = rng.integers(0, 256, (size, 1, 1, 3))
        out[:, 8:20, 8:20] = rng.integers(0, 256, (size, 1, 1, 3))
        return out


class Stopped(Exception):
    pass


@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_stopped_run_continues_to_the_same_weights(tmp_path, at):
    def stop(row: dict) -> None:
        if row["step"] == at:
            raise Stopped

    train_autoencoder(settings(tmp_path / "whole"), SMALL, Flat())
    with pytest.raises(Stopped):
        train_autoencoder(settings(tmp_path / "cut"), SMALL, Flat(), stop)
    train_autoencoder(settings(tmp_path / "cut"), SMALL, Flat())
    whole, cut = (load_file(tmp_path / name / "ae.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(cut[name], value) for name, value in whole.items())
    rows = [json.loads(line) for line in (tmp_path / "cut" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]


def test_it_learns_and_its_latents_are_standardised(tmp_path):
    rows: list[dict] = []
    config = settings(tmp_path, steps=40, batch_size=8, lr=5e-3, evaluate_pictures=64)
    out = train_autoencoder(config, SMALL, Flat(), rows.append)
    assert rows[-1]["l1"] < rows[0]["l1"]
    vae = load_vae(out / "ae.safetensors", vae_from_json(json.loads((out / "vae.json").read_text())))
    pictures = torch.from_numpy(np.concatenate([Flat().batch(step, 8) for step in range(8)])).float() / 127.5 - 1
    with torch.no_grad():
        mean, logvar = vae.encode_moments(pictures.permute(0, 3, 1, 2))
        latents = vae.latents(mean, logvar, torch.randn_like(mean))
    assert abs(float(latents.mean())) < 0.05 and abs(float(latents.std()) - 1) < 0.05
    assert json.loads((out / "metrics.json").read_text())["psnr_db"] > 0


def test_a_finished_folder_is_left_alone_and_other_settings_are_refused(tmp_path):
    train_autoencoder(settings(tmp_path), SMALL, Flat())
    before = (tmp_path / "ae.safetensors").stat().st_mtime_ns
    train_autoencoder(settings(tmp_path), SMALL, Flat())
    assert (tmp_path / "ae.safetensors").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="kl_weight"):
        train_autoencoder(settings(tmp_path, kl_weight=1.0), SMALL, Flat())


def test_edges_are_what_a_change_of_colour_does_not_touch():
    picture = torch.rand(2, 3, 16, 16)
    assert float(edge_loss(picture + 0.3, picture)) < 1e-6
    assert float(edge_loss(picture.flip(3), picture)) > 0.1
