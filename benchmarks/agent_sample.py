"""An agent's trajectory of any length, for benchmarks: ten segments, two of its pictures read, one drawn."""

from __future__ import annotations

import math

import numpy as np

from unify_agent.datasets.sources import Source, SourceContext
from unify_agent.interleave.batch import PackRules
from unify_agent.interleave.segments import Document, Drawing, Picture, Segment, Text
from unify_agent.model.config import BagelConfig, LlmConfig, VaeConfig, VitConfig

CONFIG = BagelConfig(
    llm=LlmConfig(
        vocab_size=8192,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
    ),
    vit=VitConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=2, image_size=560),
    vae=VaeConfig(),
    max_latent_size=64,
    vit_max_num_patch_per_side=40,
)
"""The model of the first case: hidden 256, 4 layers, 8 query and 2 key heads, MLP 704, vocabulary 8,192."""

RULES = PackRules(bos=8000, eos=8001, start_of_image=8002, end_of_image=8003, latent_side=64, vit_side=40)
SHARES = {"vae": 0.30, "vit": 0.33, "drawing": 0.45}
"""Side of each kind of picture in patches, as a part of the square root of the tokens: 57 % of them are pictures."""


def agent_sample(name: str, tokens: int, most: int = 40, words: int = 8000, seed: int = 0) -> Document:
    """A trajectory of exactly `tokens` slots in the default layout. `most`: patches along a picture's side at most;
    `words`: ids are below this."""
    rng = np.random.default_rng(seed)
    sides = {kind: min(most, max(1, round(share * math.sqrt(tokens)))) for kind, share in SHARES.items()}

    def pixels(side: int) -> np.ndarray:
        return rng.integers(0, 256, (side, side, 3), dtype=np.uint8)

    references: list[Segment] = [
        Picture(pixels(sides[use] * patch), use, patch, f"{n}.{use}", "references")  # type: ignore[arg-type]
        for n in (1, 2)
        for use, patch in (("vae", 16), ("vit", 14))
    ]
    drawing = Drawing(pixels(sides["drawing"] * 16), 16, sees=("references", "recaption"))
    left = tokens - sum(each.slots for each in (*references, drawing))
    lengths = [left * part // 16 for part in (1, 3, 4, 4)]
    lengths.append(left - sum(lengths))

    def text(length: int, loss: bool, **spans: tuple[int, int]) -> Text:
        return Text(tuple(rng.integers(4, words, length - 2).tolist()), loss=loss, spans=spans)

    turns = [text(length, loss) for length, loss in zip(lengths[:4], (False, True, False, True), strict=True)]
    final = text(lengths[4], True, recaption=(lengths[4] // 3, lengths[4] - 1))
    return Document(name, (*turns, *references, final, drawing))


class Samples(Source):
    """`size` such trajectories of about `tokens` slots, no two quite alike in length."""

    name = "agent samples"

    def __init__(self, context: SourceContext, tokens: int, size: int) -> None:
        self.context, self.tokens, self.size = context, tokens, size

    @property
    def fingerprint(self) -> str:
        return f"{self.tokens} {self.size}"

    def ids(self) -> list[str]:
        return [str(index) for index in range(self.size)]

    def slots(self, index: int) -> int:
        return self.tokens - 7 * (index % 12)

    def document(self, index: int, rng: np.random.Generator) -> Document:
        return agent_sample(str(index), self.slots(index), most=4, words=250, seed=index)
