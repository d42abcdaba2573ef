"""What the chunked cross-entropy costs beside the plain one over full logits.

    python -m benchmarks.cross_entropy [--json] [--threads 2]    {memory_ratio, time_ratio, ...}

2,048 positions, a vocabulary of 152,064, float32, forward and backward with unequal weights. `memory_ratio`: how much
the peak of resident memory grows in the first run, ours over the plain one's, each in a process of its own.
`time_ratio`: seconds of the best of the next two runs, ours over the plain one's. The bar, at hidden 256: 0.15 and 1.4.
At BAGEL's hidden 3,584 (under `hidden 3584`) a run is 6.7 TFLOP and happens once, for memory and time alike; the head's
own gradient of 2.2 GB is most of what either needs. `gemm`: GFLOP/s of multiplying float32 matrices on the same
threads. With --json a line for each hidden size appears on stderr as soon as it is measured. Takes 7 GB.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.decode import gemm_rate
from benchmarks.visibility import peak
from unify_agent.errors import UserError, run
from unify_agent.model.losses import weighted_cross_entropy

VOCABULARY, POSITIONS = 152064, 2048
REPEATS = {256: 2, 3584: 0}
"""Hidden size -> runs after the first; without any the first one is timed."""
BARRED, BARS = 256, {"memory_ratio": 0.15, "time_ratio": 1.4}


def plain(hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The sum of weighted cross-entropies, over logits that exist all at once."""
    return (F.cross_entropy(hidden @ head.T, labels, reduction="none") * weights).sum()


def chunked(hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    return weighted_cross_entropy(hidden, head, labels, weights)[0]


def measure(ours: bool, width: int, repeats: int, threads: int) -> tuple[float, float, float]:
    """MiB by which the first run's peak grows, seconds of the best of the next ones, and GFLOP/s of matrices."""
    torch.set_num_threads(threads)
    rate = gemm_rate()
    torch.manual_seed(0)
    loss = chunked if ours else plain
    hidden = torch.randn(POSITIONS, width, requires_grad=True)
    head = torch.randn(VOCABULARY, width).mul_(width**-0.5).requires_grad_()
    labels, weights = torch.randint(VOCABULARY, (POSITIONS,)), torch.rand(POSITIONS)
    loss(hidden[:2], head[:16], labels[:2] % 16, weights[:2]).backward()  # imports and first calls
    times = []
    for _ in range(1 + repeats):
        hidden.grad = head.grad = None
        gc.collect()
        before, began = peak(reset=True), time.perf_counter()
        loss(hidden, head, labels, weights).backward()
        times.append((peak() - before, time.perf_counter() - began))
    return times[0][0], min(seconds for _, seconds in times[1:] or times), rate


def compare(width: int, threads: int) -> dict[str, float]:
    """The row of one hidden size."""
    found = []
    for ours in (True, False):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            found.append(pool.submit(measure, ours, width, REPEATS[width], threads).result())
    (our_mib, our_seconds, our_rate), (mib, seconds, rate) = found
    row = {"memory_ratio": our_mib / mib, "time_ratio": our_seconds / seconds, "mib": our_mib, "plain_mib": mib}
    return row | {"seconds": our_seconds, "plain_seconds": seconds, "gemm": min(our_rate, rate)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cross_entropy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU (default: %(default)s)")
    args = parser.parse_args(arguments)
    if args.threads < 1:
        raise UserError(f"--threads {args.threads}: at least 1")
    rows = {}
    for width in REPEATS:
        row = rows[width] = compare(width, args.threads)
        bars = "".join(f", {key} at most {bar}" for key, bar in BARS.items()) if width == BARRED else ""
        told = f"hidden {width}: " + ", ".join(f"{key} {value:.3g}" for key, value in row.items()) + bars
        print(told, file=sys.stderr if args.json else sys.stdout, flush=True)
    if args.json:
        first, *others = rows
        print(json.dumps(rows[first] | {f"hidden {width}": rows[width] for width in others}))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
