"""4 layers of BAGEL-7B's shape on a pack of 41,600 slots: FlexAttention and kernels of variable length, on a GPU.

    python -m benchmarks.step_cuda [--json]    needs torch and numpy alone; part of benchmarks.step --device cuda too

Weights, activations and gradients in bfloat16. A back end that this machine or this torch does not have is told on
stderr, and the exit code is then 1. `error`: relative L2 distance of one layer's attention from the dense oracle's in
float32, on the same random numbers, forwards; `error_backward`: of the three gradients, the largest. `seconds`: forward
and backward pass of the layers, full checkpointing off, best of a few. `mfu`: the arithmetic of the linear layers (6 x
parameters x tokens, of each token's own expert) and of attention (12 x visible pairs x width), over seconds x the
card's dense bfloat16 rate (`card_tflops`: of its data sheet; of a card that is not in training/planning/cards.py, what
matrices reach). `gemm`: GFLOP/s of multiplying bfloat16 matrices.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.visibility import layout
from unify_agent.errors import UserError, run
from unify_agent.interleave.visibility import Span, visible_pairs, visible_ranges
from unify_agent.model.attention import Attend, FlexAttention, scaled_dot_product
from unify_agent.model.config import BAGEL_7B_MOT, LlmConfig
from unify_agent.model.decoder import Decoder
from unify_agent.model.varlen import VarlenAttention, best_kernel
from unify_agent.training.planning.cards import CARDS

TOKENS, LAYERS, REPEATS = 41600, 4, 5
BACK_ENDS = ("flex", "varlen")


def real_shape(back_end: str) -> dict[str, Any]:
    """One row: `flex` or `varlen`."""
    torch.manual_seed(0)
    device = torch.device("cuda")
    config = replace(BAGEL_7B_MOT.llm, num_hidden_layers=LAYERS)
    spans = layout(TOKENS)
    attend: Attend
    if back_end == "flex":
        attend, kernel = FlexAttention(spans, TOKENS, device), "flex_attention"
    else:
        attend, kernel = VarlenAttention(spans, device), best_kernel().__name__
    row: dict[str, Any] = {"case": case_of(back_end), "tokens": TOKENS}
    forward, backward = errors(attend, spans, config, device)
    rate, measured = card_rate()
    seconds, growth = timed(attend, spans, config, device)
    flops = arithmetic(config, spans)
    row |= {"seconds": seconds, "growth_mib": growth, "gemm": measured, "pairs": visible_pairs(spans)}
    row |= {"mfu": flops / seconds / (rate * 1e12), "tflops": flops / seconds / 1e12, "card_tflops": rate}
    row |= {"error": forward, "error_backward": backward, "kernel": kernel}
    return row | {"card": torch.cuda.get_device_name(), "torch": torch.__version__}


def case_of(back_end: str) -> str:
    return f"{LAYERS} layers of BAGEL-7B, {back_end}"


def attempt(case: str, call: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any] | None:
    """What the call returns; where it fails, whatever the reason, None, and a line on stderr."""
    try:
        return call(*arguments)
    except Exception as error:
        told = (str(error).strip() or "no reason given").splitlines()[0]
        print(f"{case}: not measured ({type(error).__name__}: {told})", file=sys.stderr, flush=True)
        return None


def card_rate() -> tuple[float, float]:
    """(dense bfloat16 TFLOP/s of this card, GFLOP/s that multiplying two matrices of 8,192 reaches)."""
    measured = matrices(torch.bfloat16)
    words = re.split(r"[^a-z0-9]+", torch.cuda.get_device_name().lower())
    known = (card.tflops for name, card in CARDS.items() if name.partition("_")[0] in words)
    return next(known, measured / 1e3), measured


def matrices(dtype: torch.dtype, side: int = 8192) -> float:
    """GFLOP/s of multiplying two square matrices on the card, the best of a few."""
    a, b = torch.randn(2, side, side, device="cuda", dtype=dtype)
    return 2e-9 * side**3 / min(_seconds(lambda: a @ b) for _ in range(10))


def _seconds(call: Any) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def errors(attend: Attend, spans: list[Span], config: LlmConfig, device: torch.device) -> tuple[float, float]:
    """Relative distances from the oracle, of the result and of the worst gradient."""
    shapes = [(TOKENS, n, config.head_dim) for n in (config.num_attention_heads, *[config.num_key_value_heads] * 2)]
    values = [torch.randn(shape, device=device, dtype=torch.bfloat16) for shape in shapes]
    grad = torch.randn(shapes[0], device=device, dtype=torch.bfloat16)
    ours = [value.clone().requires_grad_() for value in values]
    out = attend(0, *ours)
    out.backward(grad)
    q, k, v = (value.float().requires_grad_() for value in values)
    expected = oracle(spans, q, k, v, grad.float())
    apart = [_apart(_gradient(a), _gradient(b)) for a, b in zip(ours, (q, k, v), strict=True)]
    return _apart(out, expected), max(apart)


def oracle(spans: list[Span], q: Tensor, k: Tensor, v: Tensor, grad: Tensor, rows: int = 1024) -> Tensor:
    """Dense boolean masks over all keys, a block of rows at a time (all of them at once are 1.7 GB, and their scores
    200 GB), in float32; adds the gradients to those of q, k and v."""
    past, out = visible_ranges(spans), []
    at = torch.arange(TOKENS, device=q.device)
    for start in range(0, TOKENS, rows):
        stop = min(TOKENS, start + rows)
        mask = torch.zeros(stop - start, TOKENS, dtype=torch.bool, device=q.device)
        for span, ranges in zip(spans, past, strict=True):
            a, b = max(span.start, start), min(span.stop, stop)
            if a < b:
                for c, d in ranges:
                    mask[a - start : b - start, c:d] = True
                own = (at >= span.start) & (at < span.stop)
                mask[a - start : b - start] |= own & ((span.mode != "causal") | (at <= at[a:b, None]))
        block = scaled_dot_product(q[start:stop], k, v, mask)
        block.backward(grad[start:stop])
        out.append(block.detach())
    return torch.cat(out)


def _gradient(value: Tensor) -> Tensor:
    assert value.grad is not None, "attention depends on all that it is given"
    return value.grad


def _apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.detach().float() - theirs).norm() / theirs.norm())


def timed(attend: Attend, spans: list[Span], config: LlmConfig, device: torch.device) -> tuple[float, float]:
    """Seconds of forward and backward pass, and MiB by which the peak exceeds the weights and the input."""
    with torch.device(device):
        decoder = Decoder(replace(config, vocab_size=8)).to(torch.bfloat16)
        hidden = torch.randn(TOKENS, config.hidden_size, dtype=torch.bfloat16, requires_grad=True)
        at = torch.arange(TOKENS)
        drawn = torch.zeros(TOKENS, dtype=torch.bool)
        for span in spans:
            if span.mode != "causal":  # pictures: as in a real pack half of them are latents, the rest patches
                drawn[span.start : (span.start + span.stop) // 2 if span.mode == "full" else span.stop] = True

        und, gen = at[~drawn], at[drawn]

    def step() -> None:
        decoder(hidden, und, gen, at, attend).sum().backward()
        decoder.zero_grad()

    step()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    seconds = min(_seconds(step) for _ in range(REPEATS))
    return seconds, (torch.cuda.max_memory_allocated() - before) / 2**20


def arithmetic(config: LlmConfig, spans: list[Span]) -> float:
    """FLOPs of forward and backward pass of the layers."""
    wide, narrow = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    expert = config.hidden_size * (2 * wide + 2 * narrow + 3 * config.intermediate_size)
    return LAYERS * (6.0 * expert * TOKENS + 12.0 * wide * visible_pairs(spans))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step_cuda", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of lines")
    args = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise UserError("torch finds no GPU here")
    rows = []
    for back_end in BACK_ENDS:
        row = attempt(case_of(back_end), real_shape, back_end)
        if row is not None:
            rows.append(row)
            told = "  ".join(f"{key} {value}" for key, value in row.items())
            print(told, file=sys.stderr if args.json else sys.stdout, flush=True)
        torch.cuda.empty_cache()
    if args.json:
        print(json.dumps(rows))
    return int(len(rows) < len(BACK_ENDS))


if __name__ == "__main__":
    sys.exit(run(main))
