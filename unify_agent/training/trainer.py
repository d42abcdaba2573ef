"""The run: assemble, resume, train to the last step, export. The same command continues it at any point.

    outputs/RUN/  config.yaml  metrics.jsonl  summary.md  losses.png  samples/  checkpoints/step_0000123/
                  final/ (BAGEL-layout folder)  faults/ (what stopped the run)  ranks/ (what each rank is at)
                  .lock (one run at a time)

Data are a pure function of (plan, step), randomness of (seed, epoch, sample), the learning rate of the step; so a
checkpoint is the tensors and a step number, and a continued run repeats what an uninterrupted one would have done
(bitwise in one process).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from unify_agent import files
from unify_agent.datasets.loader import StepData
from unify_agent.datasets.sources import count_reasons
from unify_agent.errors import UserError
from unify_agent.training import checkpoint, generators, lora, optimiser, parallel, summary
from unify_agent.training.assembly import Assembly, assemble
from unify_agent.training.checkpoint import Saver
from unify_agent.training.compose import to_yaml
from unify_agent.training.config import Config
from unify_agent.training.console import Console
from unify_agent.training.ema import Ema
from unify_agent.training.engine import TorchEngine
from unify_agent.training.export import commit, export_run
from unify_agent.training.guards import Fault, Guards
from unify_agent.training.logs import RunLog
from unify_agent.training.meter import Meter
from unify_agent.training.occupied import occupied
from unify_agent.training.parallel import World
from unify_agent.training.parallelize import place
from unify_agent.training.samples import Samples
from unify_agent.training.step import Stepper
from unify_agent.training.watchdog import Watchdog
from unify_agent.training.zero import ZeroEngine


def fit(config: Config) -> int:
    """Train as configured; returns the exit code (0, or 128 + signal when stopped by SIGTERM or SIGINT)."""
    world = parallel.start(config.parallel)
    folder = Path(config.output)
    try:
        with (
            _signals() as caught,
            occupied(folder, world),
            Watchdog(folder, world, config.logging.stuck_after) as watchdog,
        ):
            torch.manual_seed(config.seed)
            watchdog.enter("assembly")
            parts = assemble(config, world)
            watchdog.enter("weights")
            return Trainer(config, world, parts, watchdog).run(caught)
    finally:
        parallel.stop(world)


class Trainer:
    """Everything of one run in one process."""

    def __init__(self, config: Config, world: World, parts: Assembly, watchdog: Watchdog) -> None:
        self.config, self.world, self.watchdog = config, world, watchdog
        self.folder = Path(config.output)
        self.checkpoints = self.folder / "checkpoints"
        self.parts = parts
        self.model = place(parts.model, parts.weights, world, config)
        self.model.train()
        self.meter = Meter(world, self.model, parts.start.shape)
        self.zero = None if config.parallel.strategy == "fsdp" else ZeroEngine(self.model, config, world)
        self.ema = Ema(self.model, config.ema)
        if self.zero is None:
            self.optimiser = optimiser.build(self.model, config.optim)
        engine = self.zero or TorchEngine(self.model, self.optimiser, config.optim)
        called = self.model if self.zero is None else self.zero.model
        self.guards = Guards(config, parts.start.shape.llm.vocab_size, world)
        self.stepper = Stepper(called, engine, self.ema, parts.encode, config, world, self.guards, watchdog.enter)
        self.saver = Saver(self.checkpoints, world, config.checkpoint.keep_last, config.checkpoint.asynchronous)
        self.samples = Samples(config, parts, self.model, self.ema, world)
        self.logged: dict[str, str] = {}
        self.done = self.saved = 0

    def run(self, caught: list[int]) -> int:
        config, world = self.config, self.world
        self.watchdog.enter("resume")
        self._resume()
        if world.main:
            files.write_text(self.folder / "config.yaml", to_yaml(config))
        console = Console(config.steps, self.done, config.logging.every, world.main)
        console.say(self._opening())
        log = RunLog(config, self.done, self.logged) if world.main else None
        self.logged = log.ids if log is not None else {}
        steps = self.parts.loader.steps(self.done, config.steps)
        try:
            while self.done < config.steps:
                self.watchdog.step = self.done + 1
                row, stop = self._step(steps, console, caught)
                if self.samples.due(self.done):
                    self.watchdog.enter("samples")
                    drawn = self.samples.draw(self.done)
                    if log is not None:
                        log.pictures(drawn, self.done)
                if log is not None:
                    log.write(row)
                console.step(row)
                if self.done % config.checkpoint.every == 0 or self.done == config.steps or stop:
                    self._save()
                if stop and self.done < config.steps:
                    self.saver.wait()
                    number = caught[0] if caught else signal.SIGTERM
                    console.say(
                        f"stopped by {signal.Signals(number).name} after step {self.done}; checkpoint saved; "
                        f"the same command continues"
                    )
                    return 128 + number
            self.watchdog.enter("save")
            self.saver.wait()
        except Fault:
            if world.main:
                summary.write(self.folder, config, self.meter.definition)
            raise
        finally:
            steps.close()
            console.close()
            self.saver.close()
            if log is not None:
                log.close()
        return self._finish(console)

    def _step(self, steps: Iterator[StepData], console: Console, caught: list[int]) -> tuple[dict[str, Any], bool]:
        """One optimiser step: its row of metrics, and whether any rank wants to stop after it."""
        started = time.perf_counter()
        self.watchdog.enter("loader")
        data = next(steps)
        stop = bool(caught) or self.saver.failed
        try:
            row = self.stepper.step(self.done, data.packs, skipped=len(data.skipped), stop=stop)
        except Fault:
            self._keep(console)
            raise
        seconds = time.perf_counter() - started
        self.watchdog.enter("metrics")
        self.done += 1
        stop = row.pop("stop")
        row |= {"epoch": data.epoch, **self.meter.read(data, row["tokens"], seconds)}
        if row["skipped"]:
            skipped = [each for held in self.world.gather(data.skipped) for each in held]
            for each in skipped:
                console.say(f"skipped {each.id}: {each.detail or each.reason}")
            row |= {f"skipped/{reason}": number for reason, number in count_reasons(skipped).items()}
        return row, stop

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of a checkpoint under a name of its own; loading into them restores the run."""
        if self.zero is not None:
            return self.zero.tensors(self.ema)
        state = lora.trained(self.model) if self.config.lora.rank else self.model.state_dict()
        tensors = {f"model/{name}": value for name, value in state.items()}
        tensors |= {f"ema/{name}": value for name, value in self.ema.tensors.items()}
        tensors |= {f"optimiser/{name}": value for name, value in optimiser.state(self.model, self.optimiser).items()}
        return tensors

    def _save(self, prune: bool = True) -> Path:
        self.watchdog.enter("save")
        meta = {
            "data": self.parts.loader.state(self.done),
            "ranks": self.world.size,
            "commit": commit(),
            "losses": list(self.guards.losses),
            "logs": self.logged,
        }
        self.saved = self.done
        return self.saver.save(self.done, self.tensors() | self._generators(), meta, prune)

    def _keep(self, console: Console) -> None:
        """The state before a step that must not be taken, beside the checkpoints there are."""
        if self.done == self.saved:
            self.saver.wait()
            return
        weights = (parallel.local(p.detach()) for p in self.model.parameters())
        if self.world.any(not all(bool(each.isfinite().all()) for each in weights)):
            console.say("the weights are not finite; the last checkpoint has those before")
            self.saver.wait()
            return
        path = self._save(prune=False)
        self.saver.wait()
        console.say(f"the state after step {self.done} is kept in {path}")

    def _generators(self) -> dict[str, Tensor]:
        """The states of this rank's generators; loading into them does not restore them yet."""
        return {
            f"random/{self.world.rank}/{name}": state for name, state in generators.states(self.world.device).items()
        }

    def _resume(self) -> None:
        found = self.world.gather(checkpoint.latest(self.checkpoints) if self.world.main else None)[0]
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
        random = self._generators() if found.meta["ranks"] == self.world.size else {}
        checkpoint.load(found, self.tensors() | random, self.world)
        if random:
            generators.restore({name.rpartition("/")[2]: each for name, each in random.items()}, self.world.device)
        self.guards.losses.extend(found.meta["losses"])
        self.logged = found.meta["logs"]
        self.done = self.saved = found.step

    def _opening(self) -> str:
        trained = sum(getattr(p, "ds_numel", p.numel()) for p in self.model.parameters() if p.requires_grad)
        state = f"continuing after step {self.done}" if self.done else f"starting from {self.parts.origin}"
        mesh = "one process"
        if self.world.mesh is not None:
            mesh = "{} replicas x {} shards".format(*self.world.mesh.shape)
        return f"{self.folder}: {trained / 1e6:.2f} M trained parameters, {mesh}, {state}; {self.parts.data_line}"

    def _finish(self, console: Console) -> int:
        final = self.folder / "final"

        def write() -> None:
            summary.write(self.folder, self.config, self.meter.definition)
            export_run(self.folder, final, self.config, self.parts.start)

        self.watchdog.enter("export")
        self.world.first(write)
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
