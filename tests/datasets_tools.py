"""What the tests of grammar and data share: a small tokenizer, a folder of trajectories."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from unify_agent.datasets.sources import SourceContext
from unify_agent.interleave.batch import PackRules
from unify_agent.interleave.grammar import Grammar
from unify_agent.interleave.layout import Pixels, Preset
from unify_agent.interleave.transforms import Transform

WORDS = [
    "the owl draws a red kite over the old harbour",
    "search the name and look at pictures",
    "夜里的猫头鹰",
]


def tokenizer() -> Tokenizer:
    """Byte-level BPE with every byte in its alphabet, so that any text has ids."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        WORDS * 5, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    )
    return made


@cache
def grammar() -> Grammar:
    return Grammar(tokenizer())


def pixels() -> Pixels:
    return Pixels(Transform(64, 32, 16), Transform(56, 28, 14))


def context(preset: Preset = "paper", **changes: object) -> SourceContext:
    return SourceContext(grammar(), pixels(), preset, **changes)


def rules() -> PackRules:
    g = grammar()
    return PackRules(g.bos, g.eos, g.start_of_image, g.end_of_image, latent_side=8, vit_side=8)


def picture(seed: int, size: tuple[int, int] = (40, 48)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


def record(name: str, references: int = 2, **changes: object) -> dict:
    """A record of two turns in the release's schema; its recaption names a reference if there is one."""
    recaption = f"{name} of image_1" if references else name
    turns = [
        {
            "turn": 0,
            "input": f"draw {name}",
            "response_text": 'hm <tool_call>\n{"name": "text_search", "arguments": {"q": "x"}}\n</tool_call>',
            "tool_output": "x",
        },
        {
            "turn": 1,
            "input": "<observation>\nTool execution result:\n</observation>\n\nnow write",
            "response_text": f"<think>\nso\n</think>\n<recaption>\n{recaption}\n</recaption>",
            "tool_output": None,
        },
    ]
    return {"ip_index": name, "full_response": turns, "recaption": recaption} | changes


def add_sample(
    category: Path, name: str, references: int = 2, *, content: object = None, target: bool = True
) -> None:
    """One sample in the release's layout."""
    for folder in ("traj", "images", f"intermediate/{name}"):
        (category / folder).mkdir(parents=True, exist_ok=True)
    text = json.dumps(record(name, references) if content is None else content)
    (category / "traj" / f"{name}_trajectory.json").write_text(text)
    for number in range(1, references + 1):
        picture(number).save(category / "intermediate" / name / f"image_{number}.png")
    if target:
        picture(0).save(category / "images" / f"{name}_0.png")
