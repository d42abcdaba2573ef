"""Whether machines and files are fit for a run: each rank's note, and what rank 0 makes of them all."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from unify_agent.errors import UserError
from unify_agent.model.loading import DTYPES
from unify_agent.training import checkpoint, parallel
from unify_agent.training.assembly import assemble
from unify_agent.training.config import Config
from unify_agent.training.parallel import World
from unify_agent.training.planning.parameters import Parameter, held, parameters_of, saved
from unify_agent.training.planning.plan import model_of

GIB = 2**30
FREE = 0.9
"""Share of a card's memory that should be free before a run."""
NAMED = 4
"""More machines than this are counted, not named."""
SLOW = {
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"): "every collective is first compared over all ranks",
    ("NCCL_IB_DISABLE", "1"): "traffic between nodes goes over TCP instead of InfiniBand or RoCE",
    ("NCCL_NET", "SOCKET"): "traffic between nodes goes over TCP instead of InfiniBand or RoCE",
    ("NCCL_P2P_DISABLE", "1"): "cards of a node talk through host memory instead of NVLink",
    ("CUDA_LAUNCH_BLOCKING", "1"): "the host waits for every kernel",
}
"""Settings of the environment that are for finding faults, and what they cost."""


@dataclass
class Note:
    """What one rank found. `card`: its GPU's name, "" without one.

    `leads`: it is the first of its node, so it also looked for the run's paths (`seen`) and for the file that rank 0
    had written to the run folder (`shares`), and how many bytes of memory its processes may have (`memory`).
    """

    rank: int
    host: str
    leads: bool
    card: str = ""
    seen: list[str] = field(default_factory=list)
    shares: bool = False
    memory: int = 0
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass
class Report:
    """What there is to say, in order."""

    facts: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def say(self) -> None:
        for fact in self.facts:
            print(f"preflight: {fact}", flush=True)
        for kind, texts in (("warning", self.warnings), ("error", self.errors)):
            for text in texts:
                print(f"{kind}: {text}", file=sys.stderr, flush=True)


def look(config: Config, rank: int, token: Path, environment: Mapping[str, str] = os.environ) -> Note:
    """What this rank sees of its machine. `token`: the file of rank 0 in the run folder."""
    local, ranks = int(environment.get("LOCAL_RANK", "0")), int(environment.get("LOCAL_WORLD_SIZE", "1"))
    note = Note(rank, socket.gethostname(), leads=local == 0)
    cards = torch.cuda.device_count()
    if local < cards:
        note.card = torch.cuda.get_device_name(local)
        free, total = torch.cuda.mem_get_info(local)
        if free < FREE * total:
            note.warnings.append(f"only {free / GIB:.1f} of {total / GIB:.1f} GiB of GPU {local} are free")
    if note.leads:
        if 0 < cards < ranks:
            note.errors.append(f"{ranks} ranks, but only {cards} GPUs are visible")
        note.seen = [path for path in _paths(config) if Path(path).exists()]
        note.shares = token.exists()
        note.memory = host_memory()
        for (name, value), cost in SLOW.items():
            if environment.get(name, "").upper() == value:
                note.warnings.append(f"{name}={environment[name]}: {cost}")
    return note


def host_memory(root: Path = Path("/")) -> int:
    """Bytes: the machine's, or what a control group leaves of it (version 2)."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError, StopIteration):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        group = next(line for line in lines if line.startswith("0::")).removeprefix("0::/")
        top = root / "sys/fs/cgroup"
        for folder in (top / group, *(top / group).parents):
            with suppress(OSError, ValueError):  # "max" is no limit
                total = min(total, int((folder / "memory.max").read_text()))
            if folder == top:
                break
    return total


def _paths(config: Config) -> list[str]:
    model = config.model
    named = [model.path, model.vae, model.tokenizer, *(source.path for source in config.data.sources)]
    return [path for path in named if path is not None]


def judged(config: Config, notes: Sequence[Note]) -> Report:
    """Rank 0's report on all ranks' notes, and on the run itself."""
    report = Report()
    cards: dict[str, list[str]] = {}
    for note in notes:
        cards.setdefault(note.card or "no GPU", []).append(note.host)
    report.facts.append(f"{len(notes)} ranks on {_some(note.host for note in notes)}; {', '.join(cards)}")
    if len(cards) > 1:
        (report.errors if "no GPU" in cards else report.warnings).append(
            "not all ranks have the same card: "
            + "; ".join(f"{card} on {_some(hosts)}" for card, hosts in cards.items())
        )
    report.errors += _by_text((text, note.host) for note in notes for text in note.errors)
    report.warnings += _by_text((text, note.host) for note in notes for text in note.warnings)
    leaders = [note for note in notes if note.leads]
    report.errors += _by_text(
        (f"{path} is not there, but on {notes[0].host} it is; all nodes must see it", note.host)
        for note in leaders
        for path in notes[0].seen
        if path not in note.seen
    )
    report.errors += _by_text(
        (f"output={config.output} is another folder than on {notes[0].host}; all nodes must share it", note.host)
        for note in leaders
        if not note.shares
    )
    try:
        _run(config, notes, report)
    except UserError as error:
        report.errors.append(str(error))
    return report


def _run(config: Config, notes: Sequence[Note], report: Report) -> None:
    """What rank 0 can tell of the run by itself. Raises UserError for what the run would refuse."""
    size = len(notes)
    replicate, shard = parallel.mesh_of(config.parallel, size)
    packs = config.parallel.packs_per_step
    report.facts.append(f"{replicate} replicas x {shard} shards; {packs // size} packs a step on each rank")
    parts = assemble(config, World(0, size, parallel.own_device(), None))
    report.facts.append(f"from {parts.origin}; {parts.data_line}")
    filled = sum(1 for pack in parts.loader.plan(0).packs if pack)
    if filled < packs:
        report.warnings.append(f"an epoch fills {filled} packs, a step takes {packs}: the others stay empty")
    parameters = parameters_of(model_of(config, parts.start.shape))
    _memory(config, parameters, shard, notes, report)
    _disk(config, parameters, report)


def _memory(
    config: Config, parameters: Sequence[Parameter], shard: int, notes: Sequence[Note], report: Report
) -> None:
    """Whether what is offloaded, and the copies that checkpoints are written from, have room beside each other."""
    own = held(parameters, shard)
    each = own.weights + own.gradients + own.optimiser + own.ema if config.parallel.offload else 0
    each += saved(parameters, shard, config.lora.rank > 0) if config.checkpoint.asynchronous else 0
    ranks = Counter(note.host for note in notes)
    report.errors += _by_text(
        (
            f"the ranks of a node keep {_size(each * ranks[note.host])} in host memory, {_size(note.memory)} is all "
            f"there is; checkpoint.asynchronous=false needs no copy of what is saved",
            note.host,
        )
        for note in notes
        if note.leads and each * ranks[note.host] > note.memory > 0
    )


def _disk(config: Config, parameters: Sequence[Parameter], report: Report) -> None:
    """Whether all checkpoints that will exist at a time, and the exported model, have room."""
    size = saved(parameters, 1, config.lora.rank > 0)
    output = Path(config.output)
    there = len(checkpoint.complete(output / "checkpoints"))
    missing = max(0, config.checkpoint.keep_last + 1 - there)
    model = sum(each.numel for each in parameters if "lora_" not in each.name) * DTYPES[config.export.dtype].itemsize
    needed, free = missing * size + model, shutil.disk_usage(output).free
    text = (
        f"a checkpoint takes {_size(size)}; {missing} more and the exported model take {_size(needed)}, "
        f"{_size(free)} are free in {output}"
    )
    (report.facts if needed <= free else report.errors).append(text)


def _size(size: int) -> str:
    return f"{size / GIB:,.1f} GiB" if size >= GIB else f"{size / 2**20:,.1f} MiB"


def _by_text(said: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each text with the hosts that it is true of."""
    hosts: dict[str, list[str]] = {}
    for text, host in said:
        hosts.setdefault(text, []).append(host)
    return [f"{_some(where)}: {text}" for text, where in hosts.items()]


def _some(hosts: Iterable[str]) -> str:
    unique = list(dict.fromkeys(hosts))
    return ", ".join(unique) if len(unique) <= NAMED else f"{unique[0]} ... {unique[-1]} ({len(unique)} nodes)"
