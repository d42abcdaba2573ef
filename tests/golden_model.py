"""The golden training batch as a PackedBatch of ours, and how tensors are compared (relative L2, float32)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from unify_agent.interleave.batch import PackedBatch
from unify_agent.interleave.visibility import Span
from unify_agent.model.bagel import Bagel
from unify_agent.model.config import BagelConfig, llm_from_json, vae_from_json, vit_from_json
from unify_agent.model.vae import patchify

GOLDEN = Path(__file__).parent / "golden"


@cache
def golden(name: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / f"{name}.safetensors")


@cache
def golden_meta(name: str) -> dict:
    return json.loads((GOLDEN / f"{name}.json").read_text())


@cache
def golden_config(shift: float = 1.0) -> BagelConfig:
    raw = json.loads((GOLDEN / "tiny_config.json").read_text())
    sizes = raw["bagel_config"]
    return BagelConfig(
        llm=llm_from_json(raw["llm_config"]),
        vit=vit_from_json(raw["vit_config"]),
        vae=vae_from_json(raw["vae_config"]),
        max_latent_size=sizes["max_latent_size"],
        vit_max_num_patch_per_side=sizes["vit_max_num_patch_per_side"],
        timestep_shift=shift,
    )


def golden_model(shift: float = 1.0) -> Bagel:
    model = Bagel(golden_config(shift))
    model.load_state_dict(golden("tiny_bagel"))
    return model


def relative(ours: Tensor, theirs: Tensor) -> float:
    ours, theirs = ours.detach().double(), theirs.detach().double()
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-30))


def golden_spans() -> list[Span]:
    """The spans of the three stored samples. A picture's span of the final drawing sees the items marked as its
    context."""
    meta, spans, at = golden_meta("train_forward"), [], 0
    for number, sample in enumerate(meta["samples"]):
        lengths, modes = meta["split_lens"][number], meta["attn_modes"][number]
        context, own = [], []
        for item, length, mode in zip(sample, lengths, modes, strict=True):
            if item["final_context"]:
                context.append((at, at + length))
            own.append((at, at + length, mode, item["final_gen"]))
            at += length
        spans += [Span(a, b, mode, number, tuple(context) if final else None) for a, b, mode, final in own]
    return spans


def golden_batch() -> tuple[PackedBatch, Tensor]:
    """The stored batch and its clean latents [24, 64], cropped from the padded ones."""
    g = {k[3:]: v for k, v in golden("train_forward").items() if k.startswith("in.")}
    grids = [tuple(row) for row in g["patchified_vae_latent_shapes"].tolist()]
    latents = torch.cat(
        [patchify(padded[:, : h * 2, : w * 2]) for padded, (h, w) in zip(g["padded_latent"], grids, strict=True)]
    )
    crop = list(zip(g["padded_images"], g["vae_sample_noise"], grids, strict=True))
    batch = PackedBatch(
        length=int(g["sample_lens"].sum()),
        text_ids=g["packed_text_ids"],
        text_at=g["packed_text_indexes"],
        rope_ids=g["packed_position_ids"],
        vit_patches=g["packed_vit_tokens"],
        vit_at=g["packed_vit_token_indexes"],
        vit_position_ids=g["packed_vit_position_ids"],
        vit_lengths=g["vit_token_seqlens"].tolist(),
        vae_images=[image[:, : h * 16, : w * 16] for image, _, (h, w) in crop],
        vae_noise=[noise[:, : h * 2, : w * 2] for _, noise, (h, w) in crop],
        latent_image=[0, 1, 2],
        latent_grids=grids,
        latent_at=g["packed_vae_token_indexes"],
        latent_position_ids=g["packed_latent_position_ids"],
        timestep_logits=g["packed_timesteps"],
        flow_noise=g["flow_noise"],
        ce_at=g["ce_loss_indexes"],
        ce_labels=g["packed_label_ids"],
        ce_weights=g["ce_loss_weights"],
        ce_roles=torch.zeros_like(g["packed_label_ids"]),
        mse_at=g["mse_loss_indexes"],
        spans=golden_spans(),
        sample_ids=["0", "1", "2"],
    )
    return batch, latents
