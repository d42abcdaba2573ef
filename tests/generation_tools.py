"""What the generation tests share: the golden tiny model with its VAE, markers, distances."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch
from golden_model import golden, golden_config, golden_model

from unify_agent.generation.appending import Markers
from unify_agent.model.bagel import Bagel
from unify_agent.model.vae import FluxVae

GOLDEN = Path(__file__).parent / "golden"
MARKERS = Markers(500, 501, 502, 503, 512)


@cache
def tiny() -> tuple[Bagel, FluxVae]:
    """The golden model and its VAE."""
    vae = FluxVae(golden_config().vae)
    vae.load_original(golden("tiny_ae"), "tiny_ae.safetensors")
    return golden_model().eval(), vae.eval()


@cache
def image_cases() -> dict[str, dict]:
    """The golden drawings: name -> how it is sampled, in BAGEL's words."""
    return json.loads((GOLDEN / "infer_image_cases.json").read_text())


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative L2 distance."""
    return ((found.float() - expected.float()).norm() / expected.float().norm()).item()
