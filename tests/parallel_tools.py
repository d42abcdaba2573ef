"""Mixed packs, a toy model and a step of training on them, in one process or in many.

Run by torchrun in test_training_parallel: takes the same steps under every case, and rank 0 writes how far its
gradients and weights are from those of the single process.
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.random_layouts import RULES
from tests.training_toy import TOY
from unify_agent.interleave.batch import PackedBatch, pack
from unify_agent.interleave.segments import Document, Drawing, Picture, Segment, Text
from unify_agent.model.bagel import Bagel
from unify_agent.model.initialise import initialise
from unify_agent.training import optimiser, parallel
from unify_agent.training.config import Config, EmaConfig, OptimConfig, ParallelConfig
from unify_agent.training.ema import Ema
from unify_agent.training.engine import TorchEngine
from unify_agent.training.parallelize import parallelize
from unify_agent.training.step import Stepper

KINDS = ("text", "drawing", "all", "understanding", "all", "text", "drawing", "all")
CASES = {
    "shards": {"shard": 4},
    "hybrid": {"shard": 2},
    "hybrid, two packs a rank": {"shard": 2, "packs_per_step": 8},
    "shards, full": {"shard": 4, "checkpointing": "full"},
    "hybrid, selective": {"shard": 2, "checkpointing": "selective"},
    "shards, bf16": {"shard": 4, "dtype": "bf16"},
    "hybrid, bf16": {"shard": 2, "dtype": "bf16"},
}
"""Settings of `parallel` that train on four ranks."""


def document(kind: str, number: int, size: int = 1) -> Document:
    """`text` alone; `drawing` has no trained text; `understanding` nothing to draw; `all` has everything."""
    rng = np.random.default_rng(number)
    words = tuple(rng.integers(10, 250, 4 + 3 * (number % 3) * size).tolist())
    segments: list[Segment] = [Text(words, loss=kind != "drawing")]
    if kind in ("understanding", "all"):
        segments += [
            Picture(rng.integers(0, 256, (28, 28 * (1 + number % 2) * size, 3), np.uint8), "vit", 14),
            Picture(rng.integers(0, 256, (32, 16 * size, 3), np.uint8), "vae", 16),
        ]
    if kind in ("drawing", "all"):
        segments.append(Drawing(rng.integers(0, 256, (32, 32 * size, 3), np.uint8), 16))
    return Document(f"{kind}{number}", tuple(segments))


def packs(count: int) -> list[PackedBatch]:
    return [pack([document(kind, number)], RULES, seed=0) for number, kind in enumerate(KINDS[:count])]


def toy() -> Bagel:
    """Fresh weights, the velocities' too, so that gradients reach every layer."""
    model = initialise(Bagel(TOY), 0)
    torch.manual_seed(1)
    nn.init.normal_(model.llm2vae.weight, std=0.1)
    return model.train()


def latents(batch: PackedBatch) -> Tensor:
    """Of a patch, by its place in its picture."""
    return torch.sin(batch.latent_position_ids[:, None] + torch.arange(64.0))


def train(world: parallel.World, config: ParallelConfig, count: int, steps: int = 2) -> Stepper:
    """`steps` steps on `count` packs that are dealt to the ranks."""
    whole = Config(parallel=config, optim=OptimConfig(lr=1e-3, eps=1e-4, warmup_steps=0, clip=1e9))
    model = parallelize(toy(), world, config)
    engine = TorchEngine(model, optimiser.build(model, whole.optim), whole.optim)
    stepper = Stepper(model, engine, Ema(model, EmaConfig(decay=0.5)), latents, whole, world)
    for number in range(steps):
        stepper.step(number, packs(count)[world.rank :: world.size])
    return stepper


def outcome(stepper: Stepper) -> dict[str, Tensor]:
    """Whole gradients of the last step, weights after it and their averages (a collective)."""
    found = {f"weight/{name}": p.detach() for name, p in stepper.model.named_parameters()}
    found |= {f"gradient/{name}": p.grad for name, p in stepper.model.named_parameters() if p.grad is not None}
    found |= {f"average/{name}": value for name, value in stepper.ema.tensors.items()}
    return {name: parallel.full(value).clone() for name, value in found.items()}


def distance(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, float]:
    """Largest relative L2 distance of a tensor, by kind. A tensor much smaller than the rest (what softmax does not
    depend on has a gradient of rounding errors alone) is measured against a thousandth of the rest."""
    assert ours.keys() == theirs.keys()
    squares: dict[str, float] = {}
    for name, value in theirs.items():
        kind = name.partition("/")[0]
        squares[kind] = squares.get(kind, 0.0) + float(value.norm()) ** 2
    worst = dict.fromkeys(squares, 0.0)
    for name, value in ours.items():
        kind = name.partition("/")[0]
        scale = max(float(theirs[name].norm()), 1e-3 * squares[kind] ** 0.5)
        worst[kind] = max(worst[kind], float((value - theirs[name]).norm()) / scale)
    return worst


class Collectives(TorchDispatchMode):
    """Counts calls of collectives by their name and dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "c10d":
            dtypes = {str(each.dtype).removeprefix("torch.") for each in tree_leaves(args) if isinstance(each, Tensor)}
            self.calls.update(f"{op.name().removeprefix('c10d::').strip('_')} {dtype}" for dtype in dtypes)
        return op(*args, **(kwargs or {}))


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0])
    found = {}
    for name, case in CASES.items():
        config = ParallelConfig(**{"packs_per_step": 4, **case})
        world = parallel.start(config)
        with Collectives() as collectives:
            stepper = train(world, config, config.packs_per_step)
        reference = torch.load(folder / f"{config.packs_per_step}.pt")
        found[name] = distance(outcome(stepper), reference)
        found[name]["collectives"] = collectives.calls
        found[name]["float32"] = all(p.dtype == p.grad.dtype == torch.float32 for p in stepper.engine.parameters)
        found[name]["held"] = sum(parallel.local(p).numel() for p in stepper.model.parameters())
        if world.main:
            (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1:])
    dist.destroy_process_group()
