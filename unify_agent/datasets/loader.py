"""Packs for one rank, step by step, built in the background.

Which samples a pack holds is the plan's business and follows from (data, seed, epoch); a worker is told the
draws of one pack. So workers have no state, their number changes only the speed, and any step can be first.

Workers do all the work: files, decoding, resizing, spans, noise. Pixels leave them as uint8, a quarter of the bytes;
the model's device turns them into numbers.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from unify_agent.datasets.schedule import Change, Schedule
from unify_agent.datasets.sources import Draw, Mixture, Skipped
from unify_agent.datasets.workers import settle
from unify_agent.errors import UserError, nearest
from unify_agent.files import digest
from unify_agent.interleave.batch import PackedBatch, PackRules, pack
from unify_agent.interleave.layout import Preset, drop_conditions
from unify_agent.interleave.packing import Limits, Plan
from unify_agent.interleave.randomness import generator
from unify_agent.interleave.segments import Unusable

STEPS_AHEAD = 2
"""How many steps are built before they are asked for."""

ALIGNMENT = 64
"""Arrays of a pack begin at multiples of this many bytes."""


@dataclass(frozen=True)
class Dropout:
    """Probability that a context item is hidden from a drawing (BAGEL: .1, .3, .3; none by default)."""

    text: float = 0.0
    vit: float = 0.0
    vae: float = 0.0


@dataclass
class StepData:
    """One optimiser step of one rank: `packs` is its accumulation window."""

    packs: list[PackedBatch]
    epoch: int
    step: int
    """Step within the epoch."""
    skipped: list[Skipped] = field(default_factory=list)
    """Samples of these packs that turned out unusable when they were built."""
    fill: float = 0.0
    """Slots used by samples over the hard limit of this rank's packs."""
    wait: float = 0.0
    """Seconds that the caller waited for it."""


class LoaderState(TypedDict):
    """All that a run needs to continue at exactly the next sample; JSON."""

    index: str
    """Identifies ids and lengths of all sources."""
    plan: str
    """Identifies seed, layout, dropout and limits other than packs per step."""
    sources: dict[str, int]
    """Samples of each source."""
    done: int
    """Steps done."""
    epoch: int
    step: int
    """The next step's epoch, and its number within it."""
    packs_per_step: list[Change]


@dataclass(frozen=True)
class _Task:
    epoch: int
    step: int
    draws: tuple[Draw, ...]


@dataclass(frozen=True)
class _Parcel:
    """A pack as bytes: the numbers of all its arrays in a row, and a pickle of the rest. Handles of hundreds of shared
    tensors would exhaust /dev/shm in a container, or the limit of open files."""

    head: bytes
    body: bytes
    sizes: list[int]

    @classmethod
    def of(cls, batch: PackedBatch) -> _Parcel:
        arrays = {name: _map(value, Tensor, Tensor.numpy) for name, value in vars(batch).items()}
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(arrays, protocol=5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
        gaps = [bytes(-view.nbytes % ALIGNMENT) for view in views]
        body = b"".join(part for pair in zip(views, gaps, strict=True) for part in pair)
        return cls(head, body, [view.nbytes for view in views])

    def opened(self) -> PackedBatch:
        memory, at, buffers = memoryview(bytearray(self.body)), 0, []
        for size in self.sizes:
            buffers.append(memory[at : at + size])
            at += size + -size % ALIGNMENT
        arrays = pickle.loads(self.head, buffers=buffers)
        return PackedBatch(**{name: _map(value, np.ndarray, torch.from_numpy) for name, value in arrays.items()})


@dataclass(frozen=True)
class _Built:
    """A pack on its way from a worker."""

    task: _Task
    content: _Parcel | PackedBatch | UserError
    skipped: list[Skipped]

    def batch(self) -> PackedBatch:
        if isinstance(self.content, UserError):
            raise self.content
        return self.content.opened() if isinstance(self.content, _Parcel) else self.content

    def pin_memory(self) -> _Built:
        """What the DataLoader's own thread calls when the device is a GPU."""
        return self if isinstance(self.content, UserError) else replace(self, content=self.batch().pin())


class Builder(Dataset):
    """Builds a pack from its draws; this is all that a worker holds."""

    def __init__(
        self,
        mixture: Mixture,
        rules: PackRules,
        *,
        seed: int,
        preset: Preset = "paper",
        dropout: Dropout | None = None,
        pad_to: int = 1,
        leave_out: Collection[str] = (),
    ) -> None:
        self.mixture, self.rules, self.seed, self.preset, self.pad_to = mixture, rules, seed, preset, pad_to
        self.dropout, self.leave_out = dropout or Dropout(), frozenset(leave_out)
        known = {f"{source.name}:{id_}" for source in mixture.sources for id_ in source.ids()} if leave_out else set()
        for name in self.leave_out - known:
            raise UserError(f"data.leave_out: there is no sample {name}{nearest(name, list(known))}")

    def build(self, draws: Sequence[Draw]) -> tuple[PackedBatch, list[Skipped]]:
        """The pack of these draws, and those that could not be built; they are replaced by nothing."""
        documents, epochs, skipped = [], [], []
        for draw in draws:
            name = self.mixture.name(draw)
            source = self.mixture.sources[draw.source]
            try:
                if name in self.leave_out:
                    raise Unusable("left out", "named in data.leave_out")
                document = source.document(draw.index, generator(self.seed, draw.epoch, name, "source"))
                promised = int(self.mixture.slots[draw.source][draw.index])
                if document.slots > promised:
                    raise Unusable("longer than when it was indexed", f"{document.slots} > {promised}")
            except Unusable as error:
                skipped.append(Skipped(name, error.reason, str(error)))
                continue
            if any((self.dropout.text, self.dropout.vit, self.dropout.vae)):
                document = drop_conditions(
                    document,
                    generator(self.seed, draw.epoch, name, "dropout"),
                    self.preset,
                    text=self.dropout.text,
                    vit=self.dropout.vit,
                    vae=self.dropout.vae,
                )
            documents.append(replace(document, id=name))
            epochs.append(draw.epoch)
        return pack(documents, self.rules, seed=self.seed, epoch=epochs, pad_to=self.pad_to), skipped

    def __getitem__(self, task: _Task) -> _Built:
        try:
            batch, skipped = self.build(task.draws)
        except UserError as error:
            return _Built(task, error, [])
        return _Built(task, _Parcel.of(batch), skipped)


def _map(value: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """A field of a batch with what is of `kind` converted, in a list or alone."""
    if isinstance(value, kind):
        return convert(value)
    if isinstance(value, list) and value and isinstance(value[0], kind):
        return [convert(each) for each in value]
    return value


class Loader:
    """The packs of one rank. `steps(start, stop)` can begin anywhere.

    `fingerprint` identifies data, limits and seed, but not ranks and packs per step. `skipped` lists what is unusable
    as far as is known before anything is built. `pin`: packs lie in page-locked memory (CUDA only). `leave_out`: ids
    that are skipped where the plan has them.
    """

    def __init__(
        self,
        mixture: Mixture,
        limits: Limits,
        rules: PackRules,
        *,
        seed: int,
        rank: int = 0,
        world: int = 1,
        workers: int = 1,
        preset: Preset = "paper",
        dropout: Dropout | None = None,
        pad_to: int = 1,
        pin: bool = False,
        leave_out: Collection[str] = (),
    ) -> None:
        if limits.packs_per_step % world:
            raise UserError(
                f"parallel.packs_per_step={limits.packs_per_step} does not divide among {world} ranks; "
                f"set it to a multiple of {world}"
            )
        self.mixture, self.limits, self.seed = mixture, limits, seed
        self.rank, self.world, self.workers, self.pin = rank, world, workers, pin
        self.builder = Builder(
            mixture, rules, seed=seed, preset=preset, dropout=dropout, pad_to=pad_to, leave_out=leave_out
        )
        self.skipped = list(mixture.skipped)
        rules_of_plan = (replace(limits, packs_per_step=1), seed, preset, self.builder.dropout)
        self.plan_fingerprint = digest(repr(rules_of_plan))[:16]
        self.fingerprint = digest(mixture.fingerprint, self.plan_fingerprint)[:16]
        self.schedule = Schedule(mixture, limits, seed)

    def plan(self, epoch: int = 0) -> Plan:
        """The plan of an epoch as it stood when the epoch began."""
        stretch, _ = self.schedule.at(0)
        while stretch.epoch < epoch:
            stretch, _ = self.schedule.at(stretch.first + stretch.steps)
        return stretch.plan

    def place(self, step: int) -> tuple[int, int]:
        """(epoch, step within it) of a step counted from the beginning of training."""
        stretch, local = self.schedule.at(step)
        return stretch.epoch, stretch.before + local

    def state(self, done: int) -> LoaderState:
        """What a checkpoint after `done` steps keeps."""
        epoch, step = self.place(done)
        return LoaderState(
            index=self.mixture.fingerprint,
            plan=self.plan_fingerprint,
            sources={source.name: len(source) for source in self.mixture.sources},
            done=done,
            epoch=epoch,
            step=step,
            packs_per_step=self.schedule.changes,
        )

    def resume(self, state: LoaderState) -> None:
        """Continue the run that left this state: ranks, workers and packs per step may be others, data may not.

        With other packs per step, what is left of the epoch is planned anew. Raises `UserError` when data or rules
        are not those of the run: samples that came, went or changed length would make other packs.
        """
        here = self.state(0)
        if state.get("index") != here["index"]:
            then, now = state.get("sources", {}), here["sources"]
            names = [name for name in dict.fromkeys([*then, *now]) if then.get(name) != now.get(name)]
            told = [f"source {name} had {then.get(name, 0)} samples, now {now.get(name, 0)}" for name in names]
            raise UserError(
                f"its data changed since ({'; '.join(told) or 'ids, lengths or weights of samples are others'}); "
                f"put them back, or choose another output and start from this run's weights"
            )
        if state["plan"] != here["plan"]:
            raise UserError(
                "it was trained on another plan (seed, layout, dropout or token limits changed since); set the old "
                "values again or choose another output"
            )
        done, packs = state["done"], self.limits.packs_per_step
        # A change at the very step where the run stopped has had no effect yet.
        changes = [(first, number) for first, number in state["packs_per_step"] if first < done]
        if not changes or changes[-1][1] != packs:
            changes.append((done, packs))
        self.schedule = Schedule(self.mixture, self.limits, self.seed, changes)

    def steps(self, start: int = 0, stop: int | None = None) -> Generator[StepData, None, None]:
        """This rank's data of the training steps `start` to `stop` (endless without it).

        `start` lies at or after the last change of packs per step. Closing the iterator stops the workers.
        """
        accumulation = self.limits.packs_per_step // self.world
        # The loader is made here, not in `__init__`, so that every call has workers of its own.
        source: DataLoader = DataLoader(
            self.builder,
            batch_size=None,
            sampler=_Tasks(self, start, stop),
            num_workers=self.workers,
            prefetch_factor=-(-STEPS_AHEAD * accumulation // self.workers) if self.workers else None,
            collate_fn=_same,
            pin_memory=self.pin,
            worker_init_fn=partial(settle, os.getpid()),
            generator=torch.Generator(),  # its own, so that loading leaves the global one alone
        )
        built = iter(source)
        try:
            while True:
                began = time.perf_counter()
                parts = []
                for _ in range(accumulation):
                    part = next(built, None)
                    if part is None:
                        return
                    parts.append(part)
                data = StepData([], parts[0].task.epoch, parts[0].task.step)
                for part in parts:
                    data.packs.append(part.batch())
                    data.skipped += part.skipped
                used = sum(
                    span.stop - span.start
                    for batch in data.packs
                    for span in batch.spans
                    if span.document < len(batch.sample_ids)
                )
                data.fill = used / (accumulation * self.limits.max_tokens)
                data.wait = time.perf_counter() - began
                yield data
        finally:
            del built

    def tasks(self, start: int, stop: int | None) -> Iterator[_Task]:
        """What this rank's workers are told, in order."""
        done = start
        while stop is None or done < stop:
            stretch, local = self.schedule.at(done)
            for slot in range(self.rank, self.limits.packs_per_step, self.world):
                yield _Task(stretch.epoch, stretch.before + local, stretch.pack(local, slot))
            done += 1


class _Tasks:
    """The sampler: a fresh run over the tasks for every iterator."""

    def __init__(self, loader: Loader, start: int, stop: int | None) -> None:
        self.loader, self.start, self.stop = loader, start, stop

    def __iter__(self) -> Iterator[_Task]:
        return self.loader.tasks(self.start, self.stop)


def _same(value: object) -> object:
    return value
