"""Trains a small FLUX-shaped autoencoder: the embedded world's `ae.safetensors`.

    loss = L1 + 0.5 L2 + edges (L1 of finite differences at 1/1, 1/2, 1/4 size) + kl_weight * max(KL, floor)

The decoder sees the posterior sample with `latent_noise` more of it (relative to the latents' spread), so that
latents which a small transformer draws only nearly right still decode well. What is kept is the moving average of the
weights; at the end the measured mean and spread of the latents become ONE shift and ONE scale of `VaeConfig`, so that
latents have mean 0, deviation 1.

Stopping is safe at any moment: the same call continues from the last checkpoint, with the same batches and the same
noise.
"""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.memory_format import convert_conv2d_weight_memory_format

from unify_agent import files
from unify_agent.errors import UserError
from unify_agent.model.config import VaeConfig, vae_to_json
from unify_agent.model.vae import FluxVae
from unify_agent.training.config import Config

HELD_OUT_STEP = -1
"""The step whose batch is never trained on."""


class PictureSource(Protocol):
    """Where training pictures come from."""

    def batch(self, step: int, size: int) -> np.ndarray:
        """uint8 [size, H, W, 3], a pure function of `step`; step -1 gives held-out pictures."""
        ...


def train_autoencoder(
    config: Config, shape: VaeConfig, source: PictureSource, report: Callable[[dict], None] | None = None
) -> Path:
    """Trains an autoencoder of `shape` for `config.steps` steps as `config.vae` says; returns `config.output`.

    That folder gets `log.jsonl`, `checkpoint.pt` while under way, and at the end `ae.safetensors` (FLUX's key names,
    float32), `vae.json` (the VaeConfig with measured scale and shift) and `metrics.json`. A finished folder is
    returned as it is.

    Raises:
        UserError: the folder holds a run with other settings.
    """
    out, options = Path(config.output), config.vae
    out.mkdir(parents=True, exist_ok=True)
    settings = {k: v for k, v in asdict(options).items() if k not in ("pictures", "options")}
    settings |= {"steps": config.steps, "seed": config.seed, "vae": asdict(shape)}
    settings = json.loads(json.dumps(settings))
    if (out / "config.json").exists():
        _same_settings(files.read_json(out / "config.json"), settings, out)
    files.write_json(out / "config.json", settings)
    if (out / "metrics.json").exists():
        return out

    torch.manual_seed(config.seed)
    vae = FluxVae(replace(shape, scale_factor=1.0, shift_factor=0.0))
    convert_conv2d_weight_memory_format(vae, torch.channels_last)
    _start_near_identity(vae, shape.z_channels)
    average = {k: v.clone() for k, v in vae.state_dict().items()}
    optimizer = torch.optim.AdamW(vae.parameters(), lr=options.lr, betas=(0.9, 0.99), weight_decay=0.0)
    step = _resume(out, vae, average, optimizer)
    _trim_log(out / "log.jsonl", step)
    started, first = time.monotonic(), step
    with open(out / "log.jsonl", "a", encoding="utf-8") as log:
        while step < config.steps:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(config, step)
            terms = _losses(config, vae, _tensor(source.batch(step, options.batch_size)), step)
            optimizer.zero_grad(set_to_none=True)
            terms["loss"].backward()
            norm = torch.nn.utils.clip_grad_norm_(vae.parameters(), options.clip)
            optimizer.step()
            decay = min(options.ema, (1 + step) / (10 + step))
            with torch.no_grad():
                current = vae.state_dict()
                torch._foreach_lerp_(list(average.values()), [current[k] for k in average], 1 - decay)
            step += 1
            if step % config.logging.every == 0 or step == config.steps:
                row = {
                    "step": step,
                    **{k: float(v.detach()) for k, v in terms.items()},
                    "grad_norm": float(norm),
                    "lr": optimizer.param_groups[0]["lr"],
                    "seconds_per_step": round((time.monotonic() - started) / (step - first), 4),
                }
                log.write(json.dumps(row) + "\n")
                log.flush()
                if report:
                    report(row)
            if step % config.checkpoint.every == 0 and step < config.steps:
                _save(out, step, vae, average, optimizer)
    vae.load_state_dict(average)
    return _finish(config, shape, vae.eval(), source)


@torch.no_grad()
def _start_near_identity(vae: FluxVae, channels: int) -> None:
    """Residual branches start at zero, so learning begins from an almost linear code; and the posterior starts
    narrow, since a deviation of 1 would drown the picture for hundreds of steps."""
    for name, parameter in vae.named_parameters():
        if name.rpartition(".")[0].endswith(("conv2", "to_out.0")):
            parameter.zero_()
    vae.get_parameter("net.encoder.conv_out.bias")[channels:] = -6.0


def learning_rate(config: Config, step: int) -> float:
    """Linear warm-up, then a cosine down to a hundredth."""
    warm = min(1.0, (step + 1) / max(1, config.vae.warmup))
    cosine = 0.5 * (1 + math.cos(math.pi * step / max(1, config.steps)))
    return config.vae.lr * warm * (0.01 + 0.99 * cosine)


def edge_loss(drawn: Tensor, real: Tensor) -> Tensor:
    """Mean absolute difference of horizontal and vertical gradients, at full, half and quarter size. [B, 3, H, W] ->
    []"""
    total = drawn.new_zeros(())
    for level in range(3):
        if level:
            drawn, real = F.avg_pool2d(drawn, 2), F.avg_pool2d(real, 2)
        for axis in (2, 3):
            total = total + (drawn.diff(dim=axis) - real.diff(dim=axis)).abs().mean()
    return total / 3


def _losses(config: Config, vae: FluxVae, real: Tensor, step: int) -> dict[str, Tensor]:
    """`real`: [B, 3, H, W] in [-1, 1]. The noise depends on (seed, step) only, so a resumed run repeats it."""
    options, draw = config.vae, torch.Generator().manual_seed(config.seed * 1_000_003 + step)
    with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
        mean, logvar = vae.encode_moments(real)
    mean, logvar = mean.float(), logvar.float().clamp(-30, 20)
    spread = mean.detach().std()
    sigma = torch.exp(0.5 * logvar) + options.latent_noise * spread
    latent = mean + sigma * torch.randn(mean.shape, generator=draw)
    with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
        drawn = vae.decode(latent.contiguous(memory_format=torch.channels_last))
    drawn = drawn.float()
    kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar)  # nats, one a latent
    terms = {
        "l1": (drawn - real).abs().mean(),
        "l2": (drawn - real).square().mean(),
        "edge": edge_loss(drawn, real),
        "kl": kl.mean(),
        "latent_std": spread,
    }
    # The sum over a picture's latents, as FLUX's and Stable Diffusion's autoencoders weigh it.
    pull = options.kl_weight * kl.mean().clamp(min=options.kl_floor) * (kl.numel() / len(kl))
    return {"loss": terms["l1"] + 0.5 * terms["l2"] + terms["edge"] + pull, **terms}


@torch.no_grad()
def _finish(config: Config, shape: VaeConfig, vae: FluxVae, source: PictureSource) -> Path:
    """Measures the latents' mean and spread and the reconstruction on held-out pictures, then writes the result."""
    from safetensors.torch import save

    out, options = Path(config.output), config.vae
    seen = [
        _encode(vae, _tensor(source.batch(step, options.batch_size)))
        for step in range(max(1, options.evaluate_pictures // options.batch_size))
    ]
    mean, sigma = torch.cat([m for m, _ in seen]), torch.cat([s for _, s in seen])
    drawn = mean + sigma * torch.randn(mean.shape, generator=torch.Generator().manual_seed(config.seed))
    final = replace(shape, scale_factor=float(1 / drawn.std()), shift_factor=float(drawn.mean()))
    vae.config = final

    held = _tensor(source.batch(HELD_OUT_STEP, options.evaluate_pictures))
    errors, absolute = [], []
    for part in held.split(64):
        m, s = _encode(vae, part)
        noise = torch.randn(m.shape, generator=torch.Generator().manual_seed(config.seed + 1))
        back = vae.decode(vae.latents(m, 2 * s.log(), noise)).clamp(-1, 1)
        errors.append((back - part).square().mean(dim=(1, 2, 3)) / 4)  # on the scale 0..1
        absolute.append((back - part).abs().mean(dim=(1, 2, 3)) / 2)
    squared = torch.cat(errors)
    files.write_bytes(out / "ae.safetensors", save({k: v.contiguous() for k, v in vae.original_state_dict().items()}))
    files.write_json(out / "vae.json", vae_to_json(final))
    files.write_json(
        out / "metrics.json",
        {
            "steps": config.steps,
            "pictures": len(held),
            "psnr_db": round(float((-10 * squared.clamp(min=1e-10).log10()).mean()), 3),
            "mean_absolute_error": round(float(torch.cat(absolute).mean()), 5),
            "latent_mean": float(drawn.mean()),
            "latent_std": float(drawn.std()),
            "posterior_std_over_latent_std": float(sigma.mean() / drawn.std()),
            "channel_std_over_latent_std": [round(float(s), 3) for s in drawn.std(dim=(0, 2, 3)) / drawn.std()],
        },
    )
    (out / "checkpoint.pt").unlink(missing_ok=True)
    return out


def _encode(vae: FluxVae, pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Posterior mean and standard deviation, in float32."""
    moments = [vae.encode_moments(part) for part in pictures.split(64)]
    return torch.cat([m for m, _ in moments]), torch.cat([torch.exp(0.5 * v) for _, v in moments])


def _tensor(pictures: np.ndarray) -> Tensor:
    """uint8 [B, H, W, 3] -> [B, 3, H, W] in [-1, 1], channels last in memory."""
    return (torch.from_numpy(np.ascontiguousarray(pictures)).float() / 127.5 - 1).permute(0, 3, 1, 2)


def _save(out: Path, step: int, vae: FluxVae, average: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
    buffer = io.BytesIO()
    torch.save({"step": step, "vae": vae.state_dict(), "average": average, "optimizer": optimizer.state_dict()}, buffer)
    files.write_bytes(out / "checkpoint.pt", buffer.getvalue())


def _resume(out: Path, vae: FluxVae, average: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> int:
    """Restores the last checkpoint in place; returns the number of finished steps."""
    file = out / "checkpoint.pt"
    if not file.exists():
        return 0
    state = torch.load(file, weights_only=True)
    vae.load_state_dict(state["vae"])
    for name, value in state["average"].items():
        average[name].copy_(value)
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def _trim_log(file: Path, step: int) -> None:
    """Drops log rows of steps that are done again."""
    if file.exists():
        rows = [line for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
        kept = [row for row in rows if json.loads(row)["step"] <= step]
        files.write_text(file, "".join(row + "\n" for row in kept))


def _same_settings(old: dict, new: dict, out: Path) -> None:
    for key in new:
        if old.get(key) != new[key]:
            raise UserError(
                f"{out}: holds a run with {key} = {old.get(key)!r}, this one asks for {new[key]!r}; "
                "choose another folder or the same settings"
            )
