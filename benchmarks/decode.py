"""How fast generation is: tokens a second after a short and a long context, and seconds of a step of a drawing.

    python -m benchmarks.decode [--json] [--threads 2]

The model has hidden width 256 and 4 layers, random weights, float32. The public code, on two threads of the machine of
our reference measurements: 137 tokens/s after 1,000 tokens of context, 64 after 8,000, and 0.32 s for a step of a
512x512 picture with both guidance branches after a prompt of 300 tokens. Ours must be 2, 3 and 1.5 times as fast; a
machine of another speed is told by its rate of multiplying matrices, which is measured right before each figure.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from unify_agent.errors import UserError, run
from unify_agent.generation.appending import Markers
from unify_agent.generation.drawing import draw_latents
from unify_agent.generation.sampler import SamplerSettings, picture_noise
from unify_agent.generation.session import Session
from unify_agent.generation.text import Sampling
from unify_agent.model.bagel import Bagel
from unify_agent.model.config import BagelConfig, LlmConfig, VaeConfig, VitConfig
from unify_agent.model.initialise import initialise

CONFIG = BagelConfig(
    llm=LlmConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    ),
    vit=VitConfig(hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, image_size=280),
    vae=VaeConfig(),
    max_latent_size=32,
    vit_max_num_patch_per_side=20,
)
"""The proportions of the golden tiny model, four times as wide, twice as deep."""

MARKERS = Markers(500, 501, 502, 503, 512)
CONTEXTS = ((1000, 137, 2), (8000, 64, 3))
"""(tokens of context, the public code's tokens/s after them, how many times as fast ours must be)"""
PROMPT, GRID = 300, (32, 32)
TOKENS, REPEATS, STEPS = 48, 5, 6


@dataclass(frozen=True)
class Figure:
    """`value` in `unit`; `bar` is what it has to reach on the reference machine; `gemm` in GFLOP/s, float32."""

    name: str
    value: float
    unit: str
    public: float
    bar: float
    gemm: float


def gemm_rate(side: int = 1024, repeats: int = 8) -> float:
    """GFLOP/s of multiplying two square float32 matrices, the best of a few."""
    a, b = torch.randn(2, side, side)
    return 2e-9 * side**3 / min(_seconds(lambda: a @ b) for _ in range(repeats))


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def context_of(model: Bagel, tokens: int) -> Session:
    """A session whose one row holds a text of `tokens` tokens."""
    session = Session(model, None, MARKERS)
    session.add_text([0], [np.random.default_rng(0).integers(0, 500, tokens - 2).tolist()])
    return session


def decoding(model: Bagel, context: int, public: float, factor: float) -> Figure:
    """Tokens a second of one sequence, greedily, after `context` tokens."""
    session = context_of(model, context)
    sampling = Sampling(max_new=TOKENS, forbidden=(MARKERS.eos,))
    rate = gemm_rate()
    times = []
    for _ in range(REPEATS):
        fork = session.fork([0])
        times.append(_seconds(partial(fork.decode, [0], sampling)))
    speed = (TOKENS + 2) / min(times)
    return Figure(f"decoding after {context:,} tokens", speed, "tokens/s", public, factor * public, rate)


def drawing(model: Bagel, public: float, factor: float) -> Figure:
    """Seconds of a step with guidance by text and by pictures."""
    session = context_of(model, PROMPT)
    noise = picture_noise(0, GRID[0] * GRID[1], CONFIG.latent_dim)
    settings = SamplerSettings(steps=STEPS + 1)
    rate = gemm_rate()
    marks: list[float] = []
    draw_latents(session, [0], [None], [GRID], settings, [noise], progress=lambda *_: marks.append(time.perf_counter()))
    seconds = min(b - a for a, b in pairwise(marks))
    size = "x".join(str(side * CONFIG.pixels_per_token) for side in GRID)
    return Figure(f"a guided step of {size} after {PROMPT} tokens", seconds, "s", public, public / factor, rate)


def measure() -> Iterator[Figure]:
    """All figures, one after another."""
    model = initialise(Bagel(CONFIG), 0).eval().requires_grad_(False)
    for context, public, factor in CONTEXTS:
        yield decoding(model, context, public, factor)
    yield drawing(model, 0.32, 1.5)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decode", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU (default: %(default)s)")
    args = parser.parse_args(arguments)
    if args.threads < 1:
        raise UserError(f"--threads {args.threads}: at least 1")
    torch.set_num_threads(args.threads)
    if args.json:
        figures = [asdict(figure) for figure in measure()]
        print(json.dumps({"threads": args.threads, "torch": torch.__version__, "figures": figures}))
        return 0
    for f in measure():
        print(
            f"{f.name}: {f.value:.4g} {f.unit} (public code {f.public:g}, bar {f.bar:.3g}; this machine multiplies "
            f"matrices at {f.gemm:.0f} GFLOP/s)",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
