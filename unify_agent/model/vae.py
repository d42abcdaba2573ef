"""FLUX's autoencoder: diffusers' `AutoencoderKL` behind BAGEL's key names and BAGEL's scaling.

Axes: B pictures, C = 16 latent channels, H W pixels, h w latent patches (one is 2 x 2 latents, 16 x 16 pixels), P = 64.
A posterior sample is always drawn, for context pictures too, then scaled: latent = scale * (mean +
exp(logvar/2)*noise - shift) (BAGEL, facts: VAE). Pictures of different sizes never share a batch: padding would
change their latents.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from unify_agent.interleave.batch import PackedBatch, picture_values
from unify_agent.model.config import VaeConfig
from unify_agent.model.tensors import WeightsError, read_tensors

# (pattern in the original names, replacement in diffusers' names); decoder levels also count from the other end.
_RULES = (
    (r"^encoder\.down\.(\d+)\.block\.(\d+)\.", r"encoder.down_blocks.\1.resnets.\2."),
    (r"^encoder\.down\.(\d+)\.downsample\.conv\.", r"encoder.down_blocks.\1.downsamplers.0.conv."),
    (r"^decoder\.up\.(\d+)\.block\.(\d+)\.", r"decoder.up_blocks.\1.resnets.\2."),
    (r"^decoder\.up\.(\d+)\.upsample\.conv\.", r"decoder.up_blocks.\1.upsamplers.0.conv."),
    (r"\.mid\.block_1\.", ".mid_block.resnets.0."),
    (r"\.mid\.block_2\.", ".mid_block.resnets.1."),
    (r"\.mid\.attn_1\.norm\.", ".mid_block.attentions.0.group_norm."),
    (r"\.mid\.attn_1\.([qkv])\.", r".mid_block.attentions.0.to_\1."),
    (r"\.mid\.attn_1\.proj_out\.", ".mid_block.attentions.0.to_out.0."),
    (r"\.nin_shortcut\.", ".conv_shortcut."),
    (r"\.norm_out\.", ".conv_norm_out."),
)
_ATTENTION = re.compile(r"\.mid\.attn_1\.(q|k|v|proj_out)\.weight$")


def diffusers_name(name: str, levels: int) -> str:
    """The name that an original FLUX key has in diffusers."""
    for pattern, replacement in _RULES:
        name = re.sub(pattern, replacement, name)
    if match := re.match(r"decoder\.up_blocks\.(\d+)\.", name):
        name = f"decoder.up_blocks.{levels - 1 - int(match[1])}.{name[match.end() :]}"
    return name


class FluxVae(nn.Module):
    """Encoder and decoder with FLUX's geometry; `config` holds the scale and the shift of its latents."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        # four seconds: only where a VAE is built
        from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

        widths = tuple(config.ch * m for m in config.ch_mult)
        self.config = config
        self.net = AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * len(widths),
            up_block_types=("UpDecoderBlock2D",) * len(widths),
            block_out_channels=widths,
            layers_per_block=config.num_res_blocks,
            latent_channels=config.z_channels,
            norm_num_groups=config.norm_groups,
            use_quant_conv=False,
            use_post_quant_conv=False,
        )

    def encode_moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """[B, 3, H, W] in [-1, 1], H and W multiples of 8 -> mean and log variance, each [B, C, H/8, W/8]; unscaled."""
        return self.net.encoder(images).chunk(2, dim=1)

    def latents(self, mean: Tensor, logvar: Tensor, noise: Tensor) -> Tensor:
        """Scaled posterior sample for a standard normal `noise`; all three of one shape."""
        return self.config.scale_factor * (mean + torch.exp(0.5 * logvar) * noise - self.config.shift_factor)

    def decode(self, latent: Tensor) -> Tensor:
        """Scaled latents [B, C, H/8, W/8] -> pictures [B, 3, H, W], about [-1, 1], not clamped."""
        return self.net.decoder(latent / self.config.scale_factor + self.config.shift_factor)

    def original_state_dict(self) -> dict[str, Tensor]:
        """The weights under FLUX's own names and shapes (attention as 1 x 1 convolutions)."""
        ours = self.net.state_dict()
        return {
            name: ours[key].reshape(*ours[key].shape, 1, 1) if _ATTENTION.search(name) else ours[key]
            for name, key in self._names().items()
        }

    def load_original(self, state: dict[str, Tensor], where: str) -> None:
        """Loads weights under FLUX's names, strictly.

        Raises:
            UserError: one line per missing, unexpected or misshapen tensor of `where`.
        """
        names, ours = self._names(), self.net.state_dict()
        problems = {
            "missing": [f"{where}: tensor {n} is missing" for n in names if n not in state],
            "unexpected": [
                f"{where}: tensor {n} belongs to no autoencoder of this shape" for n in state if n not in names
            ],
            "misshapen": [],
        }
        values = {}
        for name, key in names.items():
            if name not in state:
                continue
            value = (
                state[name].squeeze(-1).squeeze(-1)
                if _ATTENTION.search(name) and state[name].dim() == 4
                else state[name]
            )
            if value.shape != ours[key].shape:
                problems["misshapen"].append(
                    f"{where}: tensor {name} is {tuple(value.shape)}, the configuration says {tuple(ours[key].shape)}"
                )
            values[key] = value
        if any(problems.values()):
            raise WeightsError(where, problems)
        self.net.load_state_dict(values)

    def _names(self) -> dict[str, str]:
        """original name -> diffusers' name, for every tensor there is."""
        return {
            original: diffusers_name(original, len(self.config.ch_mult)) for original in original_names(self.config)
        }


def original_names(config: VaeConfig) -> list[str]:
    """FLUX's name of every tensor of an autoencoder of this shape."""
    conv = ("weight", "bias")
    names: list[str] = []

    def block(prefix: str, wide_in: int, wide_out: int) -> None:
        parts = ["norm1", "conv1", "norm2", "conv2"] + (["nin_shortcut"] if wide_in != wide_out else [])
        names.extend(f"{prefix}.{part}.{leaf}" for part in parts for leaf in conv)

    def middle(side: str, width: int) -> None:
        block(f"{side}.mid.block_1", width, width)
        names.extend(
            f"{side}.mid.attn_1.{part}.{leaf}" for part in ("norm", "q", "k", "v", "proj_out") for leaf in conv
        )
        block(f"{side}.mid.block_2", width, width)

    widths, last = [config.ch * m for m in config.ch_mult], len(config.ch_mult) - 1
    for side in ("encoder", "decoder"):
        names.extend(f"{side}.{part}.{leaf}" for part in ("conv_in", "norm_out", "conv_out") for leaf in conv)
        middle(side, widths[-1])
    wide = config.ch
    for level, width in enumerate(widths):
        for b in range(config.num_res_blocks):
            block(f"encoder.down.{level}.block.{b}", wide, width)
            wide = width
        if level < last:
            names.extend(f"encoder.down.{level}.downsample.conv.{leaf}" for leaf in conv)
    wide = widths[-1]
    for level in range(last, -1, -1):
        for b in range(config.num_res_blocks + 1):
            block(f"decoder.up.{level}.block.{b}", wide, widths[level])
            wide = widths[level]
        if level > 0:
            names.extend(f"decoder.up.{level}.upsample.conv.{leaf}" for leaf in conv)
    return names


def load_vae(file: Path | str, config: VaeConfig, dtype: torch.dtype = torch.float32) -> FluxVae:
    """Reads ae.safetensors, frozen and in evaluation mode.

    Raises:
        UserError: the file is absent or cut short, or one line per tensor that doesn't fit.
    """
    vae = FluxVae(config)
    vae.load_original(read_tensors(Path(file)), str(file))
    return vae.to(dtype).eval().requires_grad_(False)


def patchify(latent: Tensor, patch: int = 2) -> Tensor:
    """[C, h*patch, w*patch] -> [h*w, patch*patch*C]: rows of patches; inside one (row, column, channel), channel
    fastest."""
    c, height, width = latent.shape
    h, w = height // patch, width // patch
    return latent.reshape(c, h, patch, w, patch).permute(1, 3, 2, 4, 0).reshape(h * w, patch * patch * c)


def unpatchify(rows: Tensor, grid: tuple[int, int], patch: int = 2) -> Tensor:
    """The inverse of `patchify`: [h*w, patch*patch*C] -> [C, h*patch, w*patch]."""
    h, w = grid
    c = rows.shape[-1] // patch**2
    return rows.reshape(h, w, patch, patch, c).permute(4, 0, 2, 1, 3).reshape(c, h * patch, w * patch)


def to_uint8(picture: Tensor) -> np.ndarray:
    """[3, H, W] about [-1, 1] -> uint8 [H, W, 3]; clamped, then truncated as the reference does."""
    scaled = (picture.float() * 0.5 + 0.5).clamp(0, 1).permute(1, 2, 0) * 255
    return scaled.to(torch.uint8).cpu().numpy()


@torch.no_grad()
def encode_pictures(vae: FluxVae, images: list[Tensor], noise: list[Tensor]) -> list[Tensor]:
    """Pictures [3, H, W] and a standard normal [C, H/8, W/8] each -> scaled latents [C, H/8, W/8] each, float32.

    Pictures of one size go through the VAE together; none is padded.
    """
    weight = next(vae.parameters())
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, image in enumerate(images):
        groups.setdefault(tuple(image.shape), []).append(i)
    out: list[Tensor] = [torch.empty(0)] * len(images)
    for members in groups.values():
        mean, logvar = vae.encode_moments(torch.stack([images[i] for i in members]).to(weight.device, weight.dtype))
        drawn = torch.stack([noise[i] for i in members]).to(weight.device)
        for i, latent in zip(members, vae.latents(mean.float(), logvar.float(), drawn), strict=True):
            out[i] = latent
    return out


def encode_batch(vae: FluxVae, batch: PackedBatch, patch: int = 2) -> Tensor:
    """The clean latents [Q, 64] of every latent segment of a pack, in `latent_at` order, float32, on the VAE's
    device."""
    pictures = [picture_values(image) for image in batch.vae_images]
    rows = [patchify(latent, patch) for latent in encode_pictures(vae, pictures, batch.vae_noise)]
    if not batch.latent_image:
        return torch.zeros(0, patch**2 * vae.config.z_channels, device=next(vae.parameters()).device)
    return torch.cat([rows[i] for i in batch.latent_image])
