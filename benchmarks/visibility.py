"""What FlexAttention's block mask costs to build from the spans of one pack.

    python -m benchmarks.visibility [--tokens 41520] [--json]   {tokens, build_ms, extra_mib}

The pack holds trajectories in the default layout (questions and answers, two references of 1024 x 768 as one block,
a drawing limited to them), as many as fit, and padding. `build_ms`: from the list of spans to the BlockMask, median
of nine builds on one thread. `extra_mib`: by how much the process's peak of resident memory exceeds what it held
before one build (Linux).
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from unify_agent.interleave.blocks import block_tables
from unify_agent.interleave.segments import Document, Drawing, Picture, Text
from unify_agent.interleave.visibility import Span, document_spans
from unify_agent.model.attention import block_mask


def trajectory(scale: int = 1) -> Document:
    """18,376 slots: three turns, two references of 1024 x 768, and the picture drawn from them; or pictures of a
    `scale`-th of the side."""

    def text(length: int, name: str | None = None, **spans: tuple[int, int]) -> Text:
        return Text((0,) * (length - 2), name=name, spans=spans)

    def shape(height: int, width: int) -> np.ndarray:
        return np.broadcast_to(np.uint8(0), (height // scale, width // scale, 3))

    def reference(number: int) -> tuple[Picture, Picture]:
        vae = Picture(shape(768, 1024), "vae", 16, f"{number}.vae", "references")
        return vae, Picture(shape(728, 980), "vit", 14, f"{number}.vit", "references")

    turns = [text(120), text(160), text(600), text(200)]
    final = [text(400), text(390, recaption=(150, 380))]
    drawing = Drawing(shape(768, 1024), sees=("references", "recaption"))
    return Document("trajectory", (*turns, *reference(1), *reference(2), *final, drawing))


def layout(tokens: int) -> list[Span]:
    """The spans of a pack of `tokens` slots."""
    document = trajectory()
    spans: list[Span] = []
    at = number = 0
    while at + document.slots <= tokens:
        spans += document_spans(document, at, number)
        at, number = at + document.slots, number + 1
    return [*spans, Span(at, tokens, "causal", number)] if at < tokens else spans


def peak(reset: bool = False) -> float:
    """Peak of resident memory in MiB; `reset` starts a new one from what is held now."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def measure(tokens: int) -> dict[str, float]:
    spans = layout(tokens)
    small = trajectory(scale=16)
    block_mask(block_tables(document_spans(small), small.slots), "cpu")  # imports and first calls
    gc.collect()
    before = peak(reset=True)
    kept = block_mask(block_tables(spans, tokens), "cpu")
    extra = peak() - before
    del kept
    times = []
    for _ in range(9):
        began = time.perf_counter()
        block_mask(block_tables(spans, tokens), "cpu")
        times.append((time.perf_counter() - began) * 1000)
    return {"tokens": tokens, "build_ms": round(median(times), 2), "extra_mib": round(extra, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.visibility", description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=41520, help="slots of the pack (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.tokens < 1:
        parser.error(f"--tokens {options.tokens}: must be at least 1")
    torch.set_num_threads(1)
    row = measure(options.tokens)
    print(json.dumps(row) if options.json else "\n".join(f"{key:10} {value:>10,}" for key, value in row.items()))


if __name__ == "__main__":
    main()
