"""Planned bytes against real tensors, and against a step of one of 64 ranks executed without storage."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.planning_tools import SHORT, SMALL, packed, planned, trained
from tests.training_ranks import compose
from unify_agent.errors import UserError
from unify_agent.training.planning import probe
from unify_agent.training.planning.dryrun import comparable, dry_run
from unify_agent.training.planning.memory import PARTS
from unify_agent.training.planning.parameters import held, parameters_of
from unify_agent.training.planning.plan import computing, mesh_of, plan
from unify_agent.training.planning.plan import planned as planned_with

ROOT = Path(__file__).resolve().parents[1]
BF16 = ("parallel.dtype=bf16", "model.attention=flex")
HYBRID = (*BF16, "parallel.replicate=8", "parallel.shard=8", "parallel.packs_per_step=64")


@pytest.mark.slow
def test_four_ranks_hold_exactly_the_planned_bytes(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    overrides = [*SHORT, "parallel.packs_per_step=4"]
    result = subprocess.run(
        [*command, "-m", "tests.planning_tools", str(tmp_path), *overrides],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    parameters = parameters_of(trained())
    for shard in (1, 2, 4):
        for rank in range(4):
            found = json.loads((tmp_path / f"{4 // shard}x{shard}_{rank}.json").read_text())
            assert found == vars(held(parameters, shard, rank % shard)), (shard, rank)


def kept_for_real(layers: int, batch) -> int:
    """Bytes of the tensors that a real forward pass saves for its backward pass."""
    model = trained(replace(SMALL, llm=replace(SMALL.llm, num_hidden_layers=layers)))
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = model(batch, torch.zeros(len(batch.latent_at), 64))
    assert out.ce.requires_grad
    return sum(saved.values())


def test_a_layer_keeps_what_the_real_forward_pass_saves():
    batch = packed(*SHORT, "planning.references=1")
    real = kept_for_real(3, batch) - kept_for_real(2, batch)
    build = partial(computing, compose([*SHORT]))
    assert probe.activations(build, SMALL, batch, None).decoder == pytest.approx(real, rel=0.02)


@pytest.mark.parametrize("attention", ["flex", "segments"])
def test_a_checkpointed_layer_keeps_its_input_and_a_selective_one_what_attention_returned_too(attention):
    def layer(mode: str) -> int:
        config = compose([*SHORT, BF16[0], f"parallel.checkpointing={mode}"])
        attend = probe.attention(attention, torch.bfloat16, batch)
        return probe.activations(partial(computing, config), SMALL, batch, attend).decoder

    batch, llm = packed(*SHORT), SMALL.llm
    full, selective = layer("full"), layer("selective")
    assert full == batch.length * llm.hidden_size * 2
    assert selective - full == batch.length * llm.num_attention_heads * (llm.head_dim * 2 + 4)


def test_parts_add_up_and_the_worst_moment_counts():
    made = planned(*SHORT, *HYBRID)
    for parts in made.memory.moments.values():
        assert tuple(parts) == PARTS and all(size >= 0 for size in parts.values())
    assert made.memory.total == max(sum(parts.values()) for parts in made.memory.moments.values())
    assert made.memory.parts["weights"] == made.held.weights


def test_less_is_planned_for_more_shards_and_offload_and_more_for_accumulation():
    plain = planned(*SHORT, *HYBRID)

    def again(*overrides: str) -> dict[str, int]:
        config = compose([*SHORT, *HYBRID, *overrides])
        made = planned_with(config, plain.shape, plain.card, mesh_of(config), plain.work, plain.readings)
        return made.memory.parts

    sharded = again("parallel.replicate=1", "parallel.shard=64")
    assert sharded["weights"] < plain.memory.parts["weights"] / 6
    away = again("parallel.offload=true")
    assert away["weights"] == away["gradients"] == away["optimiser"] == away["ema"] == 0
    assert again("parallel.packs_per_step=128")["gradients"] == 2 * plain.memory.parts["gradients"]


SEVEN_B = ("+recipe=sft_64xh20", "model.path=null")


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        (*SEVEN_B, "model.arch=tests.planning_tools:WIDE", "parallel.checkpointing=full"),
        (*SEVEN_B, "model.arch=tests.planning_tools:WIDE", "parallel.checkpointing=none"),
        SEVEN_B,
    ],
    ids=["three layers, full", "three layers, none", "BAGEL-7B, selective"],
)
def test_a_step_of_one_of_64_ranks_needs_and_sends_what_is_planned(overrides):
    made = plan(compose(list(overrides)))
    found = dry_run(made)
    assert comparable(made) == pytest.approx(found.peak, rel=0.05)
    assert comparable(made) > 0.99 * found.peak
    assert found.sent["allgather_base"] == pytest.approx(made.network.gathered, rel=0.01)
    assert found.sent["reduce_scatter_base"] == pytest.approx(made.network.scattered, rel=0.01)
    assert found.sent["allreduce"] == pytest.approx(made.network.summed, rel=0.01)
    units = made.shape.llm.num_hidden_layers + made.shape.vit.layers_built
    assert found.collectives["reduce_scatter_base"] == found.collectives["allreduce"] == units + 3
    assert found.collectives["allgather_base"] == 2 * (units + 1) + 2


@pytest.mark.parametrize(
    ("more", "says"),
    [(("parallel.offload=true", *BF16), "without offload"), ((), "one rank in fp32")],
)
def test_what_cannot_be_executed_says_so(more, says):
    with pytest.raises(UserError, match=says):
        dry_run(planned(*SHORT, *more))
