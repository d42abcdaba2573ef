"""A model folder as the evaluation needs it: a policy, its identity, and its autoencoder alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from eval.openmoji.results import Encode
from unify_agent.agent.load import load_policy
from unify_agent.agent.loop import Policy
from unify_agent.agent.wording import Prompts
from unify_agent.files import digest
from unify_agent.model.vae import to_uint8
from unify_agent.model.weights import ModelFolder

BATCH = 32


def policy_of(folder: Path) -> tuple[Policy, Prompts, str]:
    """The policy of a folder, the words to ask it with, and a key of its weights and how it speaks and draws.

    Where the folder lies is no part of the key.
    """
    policy, words = load_policy(folder)
    described = {key: value for key, value in policy.described().items() if key != "model"}
    return policy, words, digest(json.dumps(described, sort_keys=True, default=str), repr(policy.sampling))[:16]


def round_trip_of(folder: Path) -> Encode:
    """Pictures through the folder's autoencoder and back: the best that any drawing by the model could be."""
    vae = ModelFolder(folder).vae()

    @torch.no_grad()
    def through(pictures: Sequence[np.ndarray]) -> list[np.ndarray]:
        result: list[np.ndarray] = []
        for first in range(0, len(pictures), BATCH):
            pixels = torch.from_numpy(np.stack(pictures[first : first + BATCH])).permute(0, 3, 1, 2)
            mean, logvar = vae.encode_moments(pixels.float() / 127.5 - 1)
            decoded = vae.decode(vae.latents(mean, logvar, torch.zeros_like(mean)))
            result += [to_uint8(picture) for picture in decoded]
        return result

    return through
