"""Several processes: start-up, the replicate x shard mesh, sums over ranks, and parts of sharded tensors.

The model knows nothing of this, and how it is sharded over the mesh is said in `parallelize.py`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from unify_agent.errors import UserError
from unify_agent.training.config import ParallelConfig

T = TypeVar("T")
PATIENCE = timedelta(days=1)


@dataclass(frozen=True)
class World:
    """This process's place among all. `mesh` (replicate x shard) is None where nothing is sharded: in a single process,
    unless master weights differ from what is computed with or lie elsewhere, which is the sharding's work too."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh | None
    joined: bool = False
    """Whether `start` made the process group, so that `stop` ends it."""

    @property
    def main(self) -> bool:
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Elementwise sum over all ranks, in float64."""
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self.mesh is not None:
            dist.all_reduce(total)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Whether the flag is raised on any rank, so that all take the same decision."""
        return flag if self.mesh is None else self.sum([float(flag)])[0] > 0

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in the order of ranks; anything that pickles, so for rare and small things."""
        if self.mesh is None:
            return [value]
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, value)
        return everyone

    def first(self, work: Callable[[], object]) -> None:
        """Rank 0 does `work` while the others wait for it, a day if need be: the back end of a GPU gives up after ten
        minutes. A collective."""
        group = dist.new_group(backend="gloo", timeout=PATIENCE) if self.mesh is not None else None
        if self.main:
            work()
        if group is not None:
            dist.barrier(group)
            dist.destroy_process_group(group)


def mesh_shape(config: ParallelConfig, size: int) -> tuple[int, int]:
    """(replicate, shard) with replicate * shard = size. Raises UserError with the sizes that would do."""
    shard, replicate = config.shard, config.replicate
    if shard is None:
        shard = size // replicate if replicate else size
    if replicate is None:
        replicate = size // shard if shard else 0
    if shard < 1 or replicate < 1 or replicate * shard != size:
        fitting = ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)
        raise UserError(
            f"parallel.replicate={config.replicate} x parallel.shard={config.shard} does not make {size} ranks; "
            f"with {size} ranks parallel.shard may be {fitting}"
        )
    return replicate, shard


def mesh_of(config: ParallelConfig, size: int) -> tuple[int, int]:
    """`mesh_shape`, if the packs of a step can be dealt to so many ranks; raises UserError if they cannot."""
    shape = mesh_shape(config, size)
    if config.packs_per_step % size:
        raise UserError(
            f"parallel.packs_per_step={config.packs_per_step} is no multiple of {size} ranks: "
            f"every rank takes the same number of packs in a step (a run may continue with another number of them)"
        )
    return shape


def own_device() -> torch.device:
    """This rank's GPU, or the CPU."""
    cuda = torch.cuda.is_available()
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")


def set_threads(threads: int | None) -> None:
    """Torch's CPU threads: as asked, else OMP_NUM_THREADS, else the cores shared among this machine's ranks."""
    if threads is None and "OMP_NUM_THREADS" in os.environ:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(threads or max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def keep_memory() -> None:
    """Let glibc keep what is freed: by default every large tensor is a fresh mapping, whose pages are made and cleared
    again in each operation. Elsewhere this does nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        for option, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 * 2**20)):
            mallopt(option, value)


_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""glibc's numbers of what `mallopt` sets."""


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """One CPU thread inside the block, for many small kernels.

    AdamW over 5.7 M parameters in 80 tensors on two cores that others use too: 6 ms on one thread, 180 ms on two,
    since each small kernel waits for a thread that is not running.
    """
    if device.type != "cpu":
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def start(config: ParallelConfig) -> World:
    """Join the process group that torchrun describes in the environment; without one, a world of one.

    A group that exists already is used and left standing.

    Raises:
        UserError: the mesh or the packs of a step do not fit the number of ranks.
    """
    set_threads(config.threads)
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        keep_memory()
    shape = mesh_of(config, size)
    if size == 1 and config.strategy == "fsdp" and config.dtype == "fp32" and not config.offload:
        return World(0, 1, device, None)
    join = not dist.is_initialized()
    if join:
        # gloo beside nccl: what is offloaded is also reduced in host memory
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        alone: dict[str, Any] = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if size == 1 else {}
        dist.init_process_group(backend, **alone)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    return World(rank, size, device, mesh, join)


def stop(world: World) -> None:
    if world.joined:
        dist.destroy_process_group()


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, sharing its storage; any other tensor is returned as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def held(parameter: Tensor) -> Tensor:
    """What this rank keeps of a parameter, without gradient: under ZeRO-3 a flat part, else the (D)Tensor itself."""
    part = getattr(parameter, "ds_tensor", None)
    return parameter.detach() if part is None else part.detach()


def shard(tensor: Tensor) -> tuple[Tensor, slice]:
    """This rank's part of a parameter, sharing its storage, and which rows of the whole it is (`loading.Part`)."""
    start, stop = 0, tensor.shape[0]
    if isinstance(tensor, DTensor):
        for dim, placement in enumerate(tensor.placements):
            if placement.is_shard(0):  # as torch.chunk cuts
                size = -(-(stop - start) // tensor.device_mesh.size(dim))
                start = min(start + size * tensor.device_mesh.get_local_rank(dim), stop)
                stop = min(start + size, stop)
    return local(tensor), slice(start, stop)


def full(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor (a collective); any other tensor is returned as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
