"""A source and a start folder small enough to train on in a test."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from unify_agent import files
from unify_agent.datasets.sources import Source, SourceContext
from unify_agent.interleave.segments import Document, Drawing, Picture, Text
from unify_agent.model.config import TINY, LlmConfig, VitConfig, vae_to_json
from unify_agent.model.vae import FluxVae

TOY = replace(
    TINY,
    llm=LlmConfig(
        vocab_size=272,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    ),
    vit=VitConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=112),
    vae=replace(TINY.vae, ch=8),
)
"""A hundredth of the embedded world's model."""

WORDS = ("red square", "blue disc", "a green thing", "nothing much to see here")


class ToySource(Source):
    """Coloured pictures named in words. Every fourth sample has text only, every fourth no reference."""

    name = "toy"

    def __init__(self, context: SourceContext, size: int = 12) -> None:
        self.context, self.size = context, size
        self.fingerprint = f"toy {size}"

    fingerprint = ""

    def ids(self) -> list[str]:
        return [f"s{index}" for index in range(self.size)]

    def slots(self, index: int) -> int:
        return self.document(index, np.random.default_rng(0)).slots

    def document(self, index: int, rng: np.random.Generator) -> Document:
        picture = np.full((64, 64, 3), (index * 37) % 255, np.uint8)
        text = self.context.grammar.encode(f"<think>{WORDS[index % len(WORDS)]}</think>")
        segments = [Text(text, loss=True, role="caption", name="request")]
        if index % 4 == 0:
            return Document(self.ids()[index], tuple(segments))
        if index % 4 != 1:
            pixels = self.context.pixels
            segments.insert(0, Picture(picture, "vae", pixels.vae_patch))
            segments.insert(1, Picture(picture[:56, :56], "vit", pixels.vit_patch))
        drawing = Drawing(picture, self.context.pixels.vae_patch, sees=("request",), copies=self.context.copies)
        return Document(self.ids()[index], (*segments, drawing))


def write_start(folder: Path) -> list[str]:
    """An untrained autoencoder and a tokenizer of bytes; returns the settings that train on them."""
    torch.manual_seed(0)
    vae = FluxVae(TOY.vae)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in vae.original_state_dict().items()}, folder / "ae.safetensors")
    files.write_json(folder / "vae.json", vae_to_json(TOY.vae))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    return [
        "model=tiny",
        "model.arch=tests.training_toy:TOY",
        "data=openmoji",
        "optim=tiny",
        f"model.vae={folder}",
        f"model.tokenizer={folder}",
        "data.sources=[{kind: 'tests.training_toy:ToySource'}]",
        "data.expected_tokens=150",
        "data.max_tokens=200",
        "data.max_tokens_per_sample=200",
        "data.workers=0",
        "parallel.packs_per_step=2",
        "optim.warmup_steps=2",
        "logging.every=1",
    ]


class ToyPictures:
    """For the autoencoder: plain colours."""

    def batch(self, step: int, size: int) -> np.ndarray:
        colours = np.random.default_rng(step + 1).integers(0, 256, (size, 1, 1, 3), dtype=np.uint8)
        return np.broadcast_to(colours, (size, 64, 64, 3))
