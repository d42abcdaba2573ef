"""The run: assemble, resume, train to the last step, export. The same command continues it at any point.

    outputs/RUN/  config.yaml  metrics.jsonl  losses.png  checkpoints/step_0000123/  final/ (BAGEL-layout folder)

Data are a pure function of (plan, step), randomness of (seed, epoch, sample), the learning rate of the step; so a
checkpoint is the tensors and a step number, and a continued run repeats what an uninterrupted one would have done
(bitwise in one process).
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

from unify_agent import files
from unify_agent.errors import UserError
from unify_agent.training import checkpoint, lora, metrics, optimiser, parallel, plots
from unify_agent.training.assembly import Assembly, assemble
from unify_agent.training.compose import to_yaml
from unify_agent.training.config import Config
from unify_agent.training.console import Console
from unify_agent.training.ema import Ema
from unify_agent.training.engine import TorchEngine
from unify_agent.training.export import commit, export_run
from unify_agent.training.parallel import World
from unify_agent.training.parallelize import place
from unify_agent.training.step import Stepper
from unify_agent.training.zero import ZeroEngine


def fit(config: Config) -> int:
    """Train as configured; returns the exit code (0, or 128 + signal when stopped by SIGTERM or SIGINT)."""
    world = parallel.start(config.parallel)
    try:
        with _signals() as caught:
            torch.manual_seed(config.seed)
            return Trainer(config, world, assemble(config, world)).run(caught)
    finally:
        parallel.stop(world)


class Trainer:
    """Everything of one run in one process."""

    def __init__(self, config: Config, world: World, parts: Assembly) -> None:
        self.config, self.world = config, world
        self.folder = Path(config.output)
        self.checkpoints = self.folder / "checkpoints"
        self.parts = parts
        self.model = place(parts.model, parts.weights, world, config)
        self.model.train()
        self.zero = None if config.parallel.strategy == "fsdp" else ZeroEngine(self.model, config, world)
        self.ema = Ema(self.model, config.ema)
        if self.zero is None:
            self.optimiser = optimiser.build(self.model, config.optim)
        engine = self.zero or TorchEngine(self.model, self.optimiser, config.optim)
        called = self.model if self.zero is None else self.zero.model
        self.stepper = Stepper(called, engine, self.ema, self.parts.encode, config, world)
        self.done = 0

    def run(self, caught: list[int]) -> int:
        config, world = self.config, self.world
        self._resume()
        if world.main:
            files.write_text(self.folder / "config.yaml", to_yaml(config))
        console = Console(config.steps, self.done, config.logging.every, world.main)
        console.say(self._opening())
        log = None
        if world.main:
            extra = config.logging
            log = metrics.MetricsLog(
                self.folder, self.done, extra.wandb, extra.tensorboard, extra.project, asdict(config)
            )
        steps = self.parts.loader.steps(self.done, config.steps)
        try:
            while self.done < config.steps:
                started = time.perf_counter()
                data = next(steps)
                loaded = time.perf_counter()
                row = self.stepper.step(self.done, data.packs, skipped=len(data.skipped), stop=bool(caught))
                ended = time.perf_counter()
                self.done += 1
                stop = row.pop("stop")
                for each in data.skipped:
                    console.say(f"skipped {each.id}: {each.detail or each.reason}")
                row |= {
                    "epoch": data.epoch,
                    "seconds": round(ended - started, 4),
                    "loader_seconds": round(loaded - started, 4),
                    "tokens_per_second": round(row["tokens"] / (ended - started), 1),
                }
                if log is not None:
                    log.write(row)
                console.step(row)
                self._guard(row)
                if self.done % config.checkpoint.every == 0 or self.done == config.steps or stop:
                    self._save()
                if stop and self.done < config.steps:
                    number = caught[0] if caught else signal.SIGTERM
                    console.say(
                        f"stopped by {signal.Signals(number).name} after step {self.done}; checkpoint saved; "
                        f"the same command continues"
                    )
                    return 128 + number
        finally:
            steps.close()
            console.close()
            if log is not None:
                log.close()
        return self._finish(console)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of a checkpoint under a name of its own; loading into them restores the run."""
        if self.zero is not None:
            return self.zero.tensors(self.ema)
        state = lora.trained(self.model) if self.config.lora.rank else self.model.state_dict()
        tensors = {f"model/{name}": value for name, value in state.items()}
        tensors |= {f"ema/{name}": value for name, value in self.ema.tensors.items()}
        tensors |= {f"optimiser/{name}": value for name, value in optimiser.state(self.model, self.optimiser).items()}
        return tensors

    def _save(self) -> None:
        tensors = self.tensors()
        tensors |= self._generators()
        meta = {"data": self.parts.loader.state(self.done), "ranks": self.world.size, "commit": commit()}
        checkpoint.save(self.checkpoints, self.done, tensors, meta, self.world, self.config.checkpoint.keep_last)

    def _generators(self) -> dict[str, Tensor]:
        """States of torch's own generators on this rank. What belongs to a sample has generators of its own."""
        states = {f"random/{self.world.rank}": torch.get_rng_state()}
        if self.world.device.type == "cuda":
            states[f"random_cuda/{self.world.rank}"] = torch.cuda.get_rng_state()
        return states

    def _resume(self) -> None:
        found = checkpoint.latest(self.checkpoints)
        if found is None:
            return
        try:
            self.parts.loader.resume(found.meta["data"])
        except UserError as error:
            raise UserError(f"{found.path}: {error}") from None
        if self.zero is not None and found.meta["ranks"] != self.world.size:
            raise UserError(
                f"{found.path}: written by {found.meta['ranks']} ranks; DeepSpeed continues with as many "
                f"(parallel.strategy=fsdp with any number)"
            )
        if found.step > self.config.steps:
            raise UserError(f"{found.path}: has more steps than steps={self.config.steps}; choose another output")
        tensors = self.tensors()
        generators = self._generators() if found.meta["ranks"] == self.world.size else {}
        checkpoint.load(found, tensors | generators, self.world)
        for name, state in generators.items():
            torch.set_rng_state(state) if name.startswith("random/") else torch.cuda.set_rng_state(state)
        self.done = found.step

    def _opening(self) -> str:
        trained = sum(getattr(p, "ds_numel", p.numel()) for p in self.model.parameters() if p.requires_grad)
        state = f"continuing after step {self.done}" if self.done else f"starting from {self.parts.origin}"
        mesh = "one process"
        if self.world.mesh is not None:
            mesh = "{} replicas x {} shards".format(*self.world.mesh.shape)
        return f"{self.folder}: {trained / 1e6:.2f} M trained parameters, {mesh}, {state}; {self.parts.data_line}"

    def _guard(self, row: dict[str, float]) -> None:
        """Fine-tuning that starts as bad as guessing means that the weights were not what they should be."""
        if self.done != 1 or self.config.model.init != "pretrained" or "ce_mean" not in row:
            return
        guess = math.log(self.parts.model.config.llm.vocab_size)
        if row["ce_mean"] > 0.9 * guess:
            raise UserError(
                f"first cross-entropy {row['ce_mean']:.2f} is near ln(vocabulary) = {guess:.2f}: the weights in "
                f"{self.config.model.path} know nothing of this data; model.init=random trains from scratch"
            )

    def _finish(self, console: Console) -> int:
        if self.world.main:
            plots.losses(metrics.read(self.folder / "metrics.jsonl"), self.folder / "losses.png")
        final = self.folder / "final"
        if self.world.main:
            export_run(self.folder, final, self.config, self.parts.start)
        self.world.barrier()
        console.say(f"done: {self.done} steps; {self.config.export.weights} weights in {final}")
        return 0


@contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGTERM and SIGINT are noted and answered after the step under way; a second SIGINT interrupts at once."""
    caught: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
