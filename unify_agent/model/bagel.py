"""BAGEL: text, ViT patches and VAE latents in one sequence, next tokens and velocities out.

Axes: L slots of a pack, T text, P ViT patches, Q latent patches, C and M trained positions, H hidden. Parameter names
are exactly those of a BAGEL checkpoint; the VAE is not part of the model. Sharding and checkpointing wrap
`language_model.model.layers` and `vit_model.vision_model.encoder.layers` from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unify_agent.interleave.batch import PackedBatch, pixel_values
from unify_agent.model.attention import Attend
from unify_agent.model.config import BagelConfig, LlmConfig
from unify_agent.model.decoder import Decoder
from unify_agent.model.embeddings import PositionTable, TimestepEmbedder
from unify_agent.model.losses import flow_matching, noised, timesteps, weighted_cross_entropy
from unify_agent.model.varlen import segments
from unify_agent.model.vit import Vit


class LossSums(NamedTuple):
    """Sums over one pack, undivided. `ce_tokens` [C] and `mse_tokens` [M] carry no gradient and no weight."""

    ce: Tensor
    mse: Tensor
    ce_tokens: Tensor
    mse_tokens: Tensor
    hidden: Tensor
    """[L, H] after the final norms, without gradient."""


class Head(nn.Linear):
    """To the vocabulary."""

    def cross_entropy(self, hidden: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """`losses.weighted_cross_entropy` with this head, called as a method so that sharding can gather it."""
        return weighted_cross_entropy(hidden, self.weight, labels, weights)


class LanguageModel(nn.Module):
    def __init__(self, config: LlmConfig) -> None:
        super().__init__()
        self.model = Decoder(config)
        self.lm_head = Head(config.hidden_size, config.vocab_size, bias=False)


class Connector(nn.Module):
    def __init__(self, narrow: int, wide: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(narrow, wide), nn.Linear(wide, wide)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class Bagel(nn.Module):
    def __init__(self, config: BagelConfig) -> None:
        super().__init__()
        hidden = config.llm.hidden_size
        self.config = config
        self.language_model = LanguageModel(config.llm)
        self.vit_model = Vit(config.vit)
        self.connector = Connector(config.vit.hidden_size, hidden)
        self.vit_pos_embed = PositionTable(config.vit_max_num_patch_per_side, hidden)
        self.time_embedder = TimestepEmbedder(hidden)
        self.vae2llm = nn.Linear(config.latent_dim, hidden)
        self.llm2vae = nn.Linear(hidden, config.latent_dim)
        self.latent_pos_embed = PositionTable(config.max_latent_size, hidden)

    # What a token is made of; generation uses these too.

    def embed_text(self, ids: Tensor) -> Tensor:
        """ids [T] -> [T, H]"""
        return self.language_model.model.embed_tokens(ids)

    def embed_vit(self, patches: Tensor, position_ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """patches [P, 3*p*p], position_ids [P], patches of each picture -> [P, H]"""
        return self.connector(self.vit_model(patches, position_ids, lengths)) + self.vit_pos_embed(position_ids)

    def embed_latents(self, x: Tensor, t: Tensor, position_ids: Tensor) -> Tensor:
        """x [Q, 64] at times t [Q] (0: clean), position_ids [Q] -> [Q, H]"""
        place = self.latent_pos_embed(position_ids)
        return self.vae2llm(x.to(self.vae2llm.weight.dtype)) + self.time_embedder(t) + place

    def logits(self, hidden: Tensor) -> Tensor:
        """`und` rows after the final norm [N, H] -> float32 [N, V]"""
        return self.language_model.lm_head(hidden).float()

    def velocity(self, hidden: Tensor) -> Tensor:
        """`gen` rows after the final norm [N, H] -> float32 [N, 64], the velocity from data to noise"""
        return self.llm2vae(hidden).float()

    def forward(self, batch: PackedBatch, latents: Tensor, attend: Attend | None = None) -> LossSums:
        """The training forward pass of one pack.

        `latents` [Q, 64]: clean latents in `latent_at` order (`vae.encode_batch`). `attend` defaults to exact
        attention over `batch.spans`. Works under autocast; norms, rotary angles, noising and losses stay in float32.
        Every parameter takes part whatever the pack lacks, so that gradients are zero rather than absent and ranks
        stay in step.
        """
        t = timesteps(batch.timestep_logits, self.config.timestep_shift)
        x = noised(latents, batch.flow_noise, t)
        text = self.embed_text(batch.text_ids)
        vit = self._embed_vit_of(batch, text)
        gen = self.embed_latents(x, t, batch.latent_position_ids)

        und_at = torch.cat([batch.text_at, batch.vit_at])
        place = torch.empty(batch.length, dtype=torch.int64, device=text.device)
        place[torch.cat([und_at, batch.latent_at])] = torch.arange(batch.length, device=text.device)
        wide = torch.promote_types(text.dtype, vit.dtype)
        hidden = torch.cat([text.to(wide), vit.to(wide), gen.to(wide)])[place]
        attend = attend or segments(batch.spans, batch.length, hidden)
        hidden = self.language_model.model(hidden, und_at, batch.latent_at, batch.rope_ids, attend)

        head = self.language_model.lm_head
        ce, ce_tokens = head.cross_entropy(hidden[batch.ce_at], batch.ce_labels, batch.ce_weights)
        row = torch.empty(batch.length, dtype=torch.int64, device=text.device)
        row[batch.latent_at] = torch.arange(len(batch.latent_at), device=text.device)
        trained = row[batch.mse_at]
        velocity = self.llm2vae(hidden[batch.mse_at])
        mse, mse_tokens = flow_matching(velocity, latents[trained], batch.flow_noise[trained])
        return LossSums(ce, mse, ce_tokens, mse_tokens, hidden.detach())

    def _embed_vit_of(self, batch: PackedBatch, like: Tensor) -> Tensor:
        """The pack's ViT patches; a pack without any still runs the tower on one blank patch and keeps none of it."""
        if batch.vit_lengths:
            return self.embed_vit(pixel_values(batch.vit_patches), batch.vit_position_ids, batch.vit_lengths)
        blank = torch.zeros(1, self.config.vit.patch_dim, device=like.device)
        return self.embed_vit(blank, batch.text_at.new_zeros(1), [1])[:0]
