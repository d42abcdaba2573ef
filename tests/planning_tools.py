"""Models and settings small enough to plan, and to run for real, in a test. Run by torchrun, it writes what each rank
really holds: arguments are the folder to write to and the overrides."""

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

from tests.training_ranks import compose
from unify_agent import files
from unify_agent.interleave.batch import PackedBatch
from unify_agent.model.bagel import Bagel
from unify_agent.model.config import BAGEL_7B_MOT, TINY, LlmConfig, VitConfig
from unify_agent.model.loading import on_meta
from unify_agent.training import optimiser, parallel
from unify_agent.training.ema import Ema
from unify_agent.training.parallelize import parallelize
from unify_agent.training.planning import workload
from unify_agent.training.planning.plan import Plan, plan

SMALL = replace(
    TINY,
    llm=LlmConfig(
        vocab_size=515,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    ),
    vit=VitConfig(hidden_size=36, intermediate_size=100, num_hidden_layers=4, num_attention_heads=3, image_size=112),
)
"""Odd sizes, so that nothing divides evenly among ranks."""

WIDE = replace(
    BAGEL_7B_MOT,
    llm=replace(BAGEL_7B_MOT.llm, num_hidden_layers=3),
    vit=replace(BAGEL_7B_MOT.vit, num_hidden_layers=3),
)
"""BAGEL-7B-MoT with three decoder layers and two ViT layers."""

BASE = (
    "model.arch=tests.planning_tools:SMALL",
    "data=openmoji",
    "data.sources=[]",
    "data.vae_transform.min=32",
    "data.vit_transform.min=28",
    "planning.picture=64",
)
"""An assumed pack of 4,000 tokens."""
SHORT = (*BASE, "data.expected_tokens=1000", "data.max_tokens=1024", "data.max_tokens_per_sample=1000")


@cache
def planned(*overrides: str) -> Plan:
    """A plan of `overrides`, made once."""
    return plan(compose(list(overrides)))


def packed(*overrides: str) -> PackedBatch:
    """The pack that `overrides` plan for."""
    config = compose(list(overrides))
    return workload.assumed(config, workload.shape_of(config), "a test").typical[0]


def trained(shape=SMALL) -> Bagel:
    """A real model with small random weights."""
    model = on_meta(shape).to_empty(device="cpu")
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return model


def held_here(overrides: list[str]) -> dict[str, int]:
    """Bytes of this rank's weights, gradients, optimiser and average, from their tensors."""
    config = compose(overrides)
    world = parallel.start(config.parallel)
    model = parallelize(trained(), world, config.parallel)
    adam, ema = optimiser.build(model, config.optim), Ema(model, config.ema)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)

    def size(tensors) -> int:
        return sum(parallel.local(each).nbytes for each in tensors)

    return {
        "weights": size(model.parameters()),
        "gradients": size(p.grad for p in model.parameters() if p.grad is not None),
        "optimiser": size(each for state in adam.state.values() for each in state.values()),
        "ema": size(ema.tensors.values()),
    }


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for mesh in ("1x4", "2x2", "4x1"):
        replicate, shard = mesh.split("x")
        found = held_here([*sys.argv[2:], f"parallel.replicate={replicate}", f"parallel.shard={shard}"])
        files.write_json(Path(sys.argv[1]) / f"{mesh}_{dist.get_rank()}.json", found)
    dist.destroy_process_group()
