"""Run by torchrun in test_training_distributed: several runs in one process group, one after another.

Arguments: a JSON list of lists of overrides; a run whose first entry is one of `MODES` takes two steps of its own, of
which rank 0 writes what there is to see to the output folder.
"""

import json
import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from unify_agent import files
from unify_agent.interleave.batch import pack
from unify_agent.training import parallel
from unify_agent.training.assembly import assemble
from unify_agent.training.compose import load_config
from unify_agent.training.config import Config
from unify_agent.training.guards import Fault
from unify_agent.training.trainer import Trainer, fit
from unify_agent.training.watchdog import Watchdog

ROOT = Path(__file__).resolve().parents[1]


def compose(overrides: list[str]) -> Config:
    return load_config(overrides, ROOT / "configs", ROOT / "recipes")


def uneven(config: Config) -> None:
    """Pack 0 holds text, pack 1 a reference and a drawing without any trained text."""
    world = parallel.start(config.parallel)
    parts = assemble(config, world)
    source = parts.loader.mixture.sources[0]
    rules = parts.loader.builder.rules
    documents = [source.document(index, None) for index in (0, 2)]
    documents[1] = type(documents[1])("pictures", documents[1].segments[:2] + documents[1].segments[3:])
    packs = [pack([each], rules, seed=0) for each in documents]
    trainer = Trainer(config, world, parts, Watchdog(Path(config.output), world, 300))
    row = [trainer.stepper.step(number, packs[world.rank :: world.size]) for number in range(2)][-1]
    weights = sum(float(parallel.full(p.detach()).double().abs().sum()) for p in trainer.model.parameters())
    if world.main:
        files.write_json(Path(config.output) / "row.json", row | {"weights": weights})
    parallel.stop(world)


def infinite(config: Config) -> None:
    """The second step's gradient is not finite though its loss is; no rank's weights may have changed by it."""
    world = parallel.start(config.parallel)
    trainer = Trainer(config, world, assemble(config, world), Watchdog(Path(config.output), world, 300))
    for number in range(2):
        before = {name: value.clone() for name, value in trainer.tensors().items()}
        trainer.zero.factor *= (1, math.inf)[number]
        says = ""
        try:
            trainer.stepper.step(number, next(trainer.parts.loader.steps(number, number + 1)).packs)
        except Fault as fault:
            says = str(fault)
        changed = [name for name, value in trainer.tensors().items() if not torch.equal(value, before[name])]
        if world.main:
            files.write_json(Path(config.output) / f"step_{number}.json", {"says": says, "changed": len(changed)})
        assert bool(changed) == (number == 0)
    parallel.stop(world)


MODES = {"uneven": uneven, "infinite": infinite}

if __name__ == "__main__":
    dist.init_process_group("gloo")
    for overrides in json.loads(sys.argv[1]):
        if overrides[0] in MODES:
            MODES[overrides[0]](compose(overrides[1:]))
        else:
            fit(compose(overrides))
    dist.destroy_process_group()
