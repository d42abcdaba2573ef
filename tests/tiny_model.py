"""A tiny model folder of random weights that reads long texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from datasets_tools import tokenizer

from tests.training_toy import TOY
from unify_agent.interleave.transforms import Transform
from unify_agent.model.bagel import Bagel
from unify_agent.model.initialise import initialise
from unify_agent.model.saving import save_folder
from unify_agent.model.vae import FluxVae
from unify_agent.model.weights import Description


def write_tiny_model(where: Path) -> Path:
    """Writes a model below `where` that reads 20,000 tokens; returns its folder."""
    (where / "tokenizer").mkdir()
    tokenizer().save(str(where / "tokenizer" / "tokenizer.json"))
    config = replace(TOY, llm=replace(TOY.llm, vocab_size=512, max_position_embeddings=20_000))
    description = Description("paper", {"vae": Transform(64, 32, 16), "vit": Transform(56, 28, 14)}, "compact")
    state = initialise(Bagel(config), 0).state_dict()
    return save_folder(where / "tiny", state, config, FluxVae(config.vae), where / "tokenizer", description)
