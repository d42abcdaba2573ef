"""What a training step costs, in seconds, memory and compilations.

    python -m benchmarks.step [--json] [--threads 2] [--device cpu|cuda]
    a list of {case, tokens, seconds, growth_mib}

`agent sample`: forward, backward and update on one trajectory (two references through VAE and ViT, one picture drawn,
ten segments) of a model of hidden size 256, 4 layers, 8 query and 2 key heads, MLP 704, vocabulary 8,192, in float32;
the VAE is left out. `eight samples`: as many tokens, fewer visible pairs. `whole step`: everything, from the loader to
the average of the weights, of the embedded world's model, with the time by part; on two ranks too, where
`communication` (inside the others) is what the collectives took. `compiled`: 20 mixed packs, and how often each kind
of block was compiled, at most twice. With `--device cuda`: the same there, whole steps in bfloat16, and attention and 4
layers of BAGEL-7B's shape on a pack of 41,600 slots (benchmarks/step_cuda.py). A case that fails is told on stderr, and
the exit code is then 1; with --json each line appears there as well, as soon as it is measured.

Each case has a process of its own. `seconds` is the best of a few steps, `growth_mib` by how much the peak of resident
memory (on a GPU: of allocated memory), `peak_mib`, exceeds what was held before the first. `gemm`: GFLOP/s of
multiplying matrices on the same threads (on a GPU: on it, in the dtype of the case). `mfu`: the model's arithmetic over
seconds x `gemm`, on one rank; counted are its forward and backward pass and the VAE's forward pass where it runs, as
training/planning/flops.py does: matrix products, attention by visible pairs.

The public code on its dense mask takes 0.49, 7.9 and 31.7 s and grows by 0.6, 3.7 and 13.3 GB at 1,000, 4,000 and 8,000
tokens on a machine of two cores; ours may take a quarter of the time at 4,000, a sixth at 8,000, and a quarter of the
memory at both.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.agent_sample import CONFIG, RULES, agent_sample
from benchmarks.decode import gemm_rate
from benchmarks.step_cuda import BACK_ENDS, attempt, case_of, matrices, real_shape
from benchmarks.visibility import peak
from unify_agent.errors import UserError, run
from unify_agent.interleave.batch import PackedBatch, pack
from unify_agent.interleave.visibility import visible_pairs
from unify_agent.model.bagel import Bagel
from unify_agent.model.config import BagelConfig
from unify_agent.model.initialise import initialise
from unify_agent.training import optimiser, parallel
from unify_agent.training.assembly import assemble
from unify_agent.training.compose import load_config
from unify_agent.training.config import Config, ParallelConfig
from unify_agent.training.ema import Ema
from unify_agent.training.engine import TorchEngine
from unify_agent.training.parallelize import COMPILED, blocks, compilations, parallelize, place
from unify_agent.training.planning.flops import flops
from unify_agent.training.planning.parameters import parameters_of
from unify_agent.training.planning.workload import Load
from unify_agent.training.step import Stepper

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = {1000: (0.49, 0.6e9), 4000: (7.9, 3.7e9), 8000: (31.7, 13.3e9)}
"""Tokens -> the public code's seconds and bytes."""
TIMES_AS_FAST = {4000: 4, 8000: 6}
SIZES = (1000, 4000, 8000)
WHOLE = (1000, 2000, 4000)
PACKS, REPEATS, SAMPLE = 20, 3, 330
MOST_COMPILATIONS = 2
"""Of each kind of block, over all packs."""
Row = dict[str, Any]


class Clock:
    """Seconds by part of what was timed since `reset`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.reset()

    def reset(self) -> None:
        self.seconds: dict[str, float] = {}

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = self.now()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self.now() - began


class TimedEngine(TorchEngine):
    """Tells backward pass and update apart."""

    clock: Clock

    def backward(self, loss: Tensor, last: bool) -> None:
        with self.clock.part("backward"):
            super().backward(loss, last)

    def update(self, rate: float) -> float:
        with self.clock.part("optimiser"):
            return super().update(rate)


class Memory:
    """By how many MiB a block's peak exceeds what was held before it."""

    def __init__(self, device: torch.device) -> None:
        self.cuda, self.growth, self.most = device.type == "cuda", 0.0, 0.0

    def __enter__(self) -> Memory:
        gc.collect()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_allocated() / 2**20 if self.cuda else peak(reset=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.most = torch.cuda.max_memory_allocated() / 2**20 if self.cuda else peak()
        self.growth = self.most - self.before


def stepper_of(model: nn.Module, encode: Any, config: Config, world: parallel.World) -> tuple[Stepper, Clock]:
    """What the trainer trains with, and a clock of its parts."""
    clock = Clock(world.device)
    engine = TimedEngine(model, optimiser.build(model, config.optim), config.optim)
    engine.clock = clock
    stepper = Stepper(model, engine, Ema(model, config.ema), clock_calls(clock, "vae", encode), config, world)
    stepper.model = clock_calls(clock, "forward", model)
    return stepper, clock


def clock_calls(clock: Clock, part: str, function: Any) -> Any:
    def timed(*inputs: Any) -> Any:
        with clock.part(part):
            return function(*inputs)

    return timed


def rate_of(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """GFLOP/s of multiplying matrices."""
    return matrices(dtype) if device.type == "cuda" else gemm_rate()


def gflop(shape: BagelConfig, model: nn.Module, batches: Sequence[PackedBatch], vae: bool) -> float:
    """The model's arithmetic in a step on these packs, with the VAE's or without."""
    counted = [flops(shape, parameters_of(model), Load.of(batch), "none") for batch in batches]
    return sum(each.total - (0.0 if vae else each.parts["VAE"]) for each in counted) / 1e9


def agent_case(tokens: int, samples: int, threads: int) -> Row:
    """Steps on one pack of `samples` trajectories, `tokens` slots together."""
    config = Config(parallel=ParallelConfig(threads=threads))
    world = parallel.start(config.parallel)
    model = parallelize(initialise(Bagel(CONFIG), 0).to(world.device), world, config.parallel).train()
    stepper, clock = stepper_of(model, _latents, config, world)
    stepper.step(0, [_pack(200, 1)])
    batch = _pack(tokens, samples)
    rate = rate_of(world.device)
    with Memory(world.device) as memory:
        stepper.step(1, [batch])
    times = []
    for number in range(REPEATS):
        began = clock.now()
        stepper.step(2 + number, [batch])
        times.append(clock.now() - began)
    name = "agent sample" if samples == 1 else f"{samples} agent samples"
    row: Row = {"case": name, "tokens": tokens, "seconds": min(times), "growth_mib": memory.growth, "gemm": rate}
    row["mfu"] = gflop(CONFIG, model, [batch], vae=False) / row["seconds"] / rate
    row |= {"peak_mib": memory.most, "pairs": visible_pairs(batch.spans)}
    if samples == 1 and tokens in PUBLIC:
        seconds, grown = PUBLIC[tokens]
        row |= {"public_seconds": seconds, "public_growth_mib": grown / 2**20}
        if tokens in TIMES_AS_FAST:
            row |= {"most_seconds": seconds / TIMES_AS_FAST[tokens], "most_growth_mib": grown / 2**20 / 4}
    return row


def _pack(tokens: int, samples: int) -> PackedBatch:
    return pack([agent_sample(str(n), tokens // samples, seed=n) for n in range(samples)], RULES, seed=0)


def _latents(batch: PackedBatch) -> Tensor:
    return torch.randn(len(batch.latent_at), 64, device=batch.latent_at.device)


def whole_case(tokens: int, threads: int, compiled: bool, rank: int, ranks: int, port: int) -> Row:
    """Steps of the embedded world's model on packs of `tokens` slots, one a rank, from the loader on."""
    place_of = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place_of.items()})
    steps = PACKS if compiled else 2 + REPEATS
    source = f"{{kind: 'benchmarks.agent_sample:Samples', options: {{tokens: {SAMPLE}, size: {steps * ranks * 16}}}}}"
    settings = [
        f"model.path={ROOT / 'data' / 'openmoji' / 'base'}",
        "data=openmoji",
        f"data.sources=[{source}]",
        *(f"data.{key}={tokens}" for key in ("expected_tokens", "max_tokens", "max_tokens_per_sample")),
        f"parallel.packs_per_step={ranks}",
        f"parallel.threads={threads}",
        f"parallel.compile={compiled}",
        f"parallel.dtype={'bf16' if torch.cuda.is_available() else 'fp32'}",
    ]
    config = load_config(settings, ROOT / "configs", ROOT / "recipes")
    world = parallel.start(config.parallel)
    parts = assemble(config, world)
    model = place(parts.model, parts.weights, world, config).train()
    stepper, clock = stepper_of(model, parts.encode, config, world)
    data = parts.loader.steps(0, steps)
    times: list[tuple[float, int, float, dict[str, float]]] = []
    rate = rate_of(world.device, torch.bfloat16)
    with Memory(world.device) as memory:
        for number in range(steps - 1):
            clock.reset()
            began = clock.now()
            with clock.part("loader"):
                packs = next(data).packs
            trained = stepper.step(number, packs)["tokens"]
            seconds = clock.now() - began
            work = gflop(parts.start.shape, model, packs, vae=True)
            times.append((seconds, trained, work, dict(clock.seconds)))
    seconds, trained, work, shares = min(times[1:], key=lambda each: each[0])
    row: Row = {
        "case": "whole step" + (", compiled" if compiled else "") + (f", {ranks} ranks" if ranks > 1 else ""),
        "tokens": tokens,
        "seconds": seconds,
        "growth_mib": memory.growth,
        "gemm": rate,
        "mfu": work / seconds / rate,
        "peak_mib": memory.most,
        "tokens_per_second": trained / seconds,
        "parts": {name: round(share, 4) for name, share in shares.items()},
    }
    row["parts"]["communication"] = round(_communication(stepper, steps - 1, next(data).packs), 4) if ranks > 1 else 0.0
    if compiled:
        row["packs"] = PACKS
        row["compilations"] = {_kind(block): compilations(block) for block in blocks(model)}
        row["most_compilations"] = MOST_COMPILATIONS
    data.close()
    parallel.stop(world)
    return row


def _kind(block: nn.Module) -> str:
    """The file of a block's class, also where the block is sharded and has another class."""
    return getattr(type(block), COMPILED[0]).__module__.rpartition(".")[2]


def _communication(stepper: Stepper, number: int, packs: Sequence[PackedBatch]) -> float:
    """Seconds of collectives in one more step, waiting for the other rank included."""
    with torch.profiler.profile() as profile:
        stepper.step(number, packs)
    events = [e for e in profile.key_averages() if e.key.startswith(("gloo:", "nccl:"))]
    return sum(max(e.cpu_time_total, e.device_time_total) for e in events) / 1e6


def alone(function: Any, *arguments: Any) -> Row:
    """The row that the first of one or more processes of their own returns; a tuple of arguments for each."""
    every = arguments if isinstance(arguments[0], tuple) else (arguments,)
    with ProcessPoolExecutor(len(every), multiprocessing.get_context("spawn")) as pool:
        rows = [pool.submit(function, *each) for each in every]
        return rows[0].result()


def cases(device: str, threads: int) -> Iterator[Row | None]:
    """All of them, one after another; None for one that failed."""

    def measured(case: str, function: Any, *arguments: Any) -> Row | None:
        return attempt(case, alone, function, *arguments)

    for tokens in SIZES:
        yield measured(f"agent sample, {tokens:,} tokens", agent_case, tokens, 1, threads)
    yield measured("8 agent samples", agent_case, SIZES[-1], 8, threads)
    for tokens in WHOLE:
        yield measured(f"whole step, {tokens:,} tokens", whole_case, tokens, threads, False, 0, 1, 0)
    if device == "cpu" or torch.cuda.device_count() > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [(WHOLE[0], max(1, threads // 2), False, rank, 2, port) for rank in range(2)]
        yield measured("whole step, 2 ranks", whole_case, *ranks)
    yield measured("whole step, compiled", whole_case, WHOLE[0], threads, True, 0, 1, 0)
    if device == "cuda":
        for back_end in BACK_ENDS:
            yield measured(case_of(back_end), real_shape, back_end)


def line(row: Row) -> str:
    told = f"{row['case']}, {row['tokens']:,} tokens: {row['seconds']:.3f} s, grows by {row['growth_mib']:,.0f} MiB"
    if "most_seconds" in row:
        told += f" (at most {row['most_seconds']:.2f} s and {row['most_growth_mib']:,.0f} MiB)"
    rest = {key: value for key, value in row.items() if key not in ("case", "tokens", "seconds", "growth_mib")}
    return f"{told}; " + ", ".join(f"{k} {v:,.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in rest.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of lines")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(arguments)
    if args.threads < 1:
        raise UserError(f"--threads {args.threads}: at least 1")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no GPU here")
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    rows = []
    for row in cases(args.device, args.threads):
        rows.append(row)
        if row is not None:
            print(line(row), file=sys.stderr if args.json else sys.stdout, flush=True)
    if args.json:
        print(json.dumps([row for row in rows if row is not None]))
    return int(None in rows)


if __name__ == "__main__":
    sys.exit(run(main))
