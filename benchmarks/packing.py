"""How full the packs of a plan are and how evenly they load the ranks, for samples of three ranges of length.

    python -m benchmarks.packing [--samples 20000] [--ranks 64] [--json]
    a list of {lengths, lost, fill, worst_over_mean, empty, seconds}

Lengths are uniform; a sample is one causal text as to cost. The budget is the paper's: a pack counts as full with
40,240 tokens and never exceeds 41,520. `lost`: % of the samples that are in no pack. `fill`: % of the hard limit that
is used, over the packs that hold something. `worst_over_mean`: the costliest rank's FLOPs (BAGEL-7B's) over the mean
rank's, averaged over steps; of a last, short step over the ranks that have a pack in it. `empty`: packs without a
sample, which fill up that step. `seconds`: to make the plan of one epoch.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from benchmarks.report import print_rows
from unify_agent.interleave.packing import Limits, make_plan

RANGES = ((500, 6000), (2000, 20000), (8000, 40000))


def measure(low: int, high: int, samples: int, ranks: int) -> dict:
    slots = np.random.default_rng(0).integers(low, high + 1, samples)
    ids = [f"sample-{number:07d}" for number in range(samples)]
    began = time.perf_counter()
    plan = make_plan(ids, slots, slots * (slots + 1) // 2, Limits(packs_per_step=ranks), seed=0, epoch=0)
    seconds = time.perf_counter() - began
    packed = {index for pack in plan.packs for index in pack}
    return {
        "lengths": f"{low}-{high}",
        "lost": round(100 * (1 - len(packed) / samples), 2),
        "fill": round(100 * plan.fill, 2),
        "worst_over_mean": round(plan.worst_over_mean, 4),
        "empty": sum(not pack for pack in plan.packs),
        "seconds": round(seconds, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packing", description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=20000, help="samples of each range (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=64, help="packs in one step (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    options = parser.parse_args()
    for name in ("samples", "ranks"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: must be at least 1")
    print_rows([measure(low, high, options.samples, options.ranks) for low, high in RANGES], options.json)


if __name__ == "__main__":
    main()
