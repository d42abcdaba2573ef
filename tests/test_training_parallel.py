"""Four processes, checkpointing and compilation change how a step is computed and nothing of what it computes."""

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode

from tests.parallel_tools import CASES, KINDS, distance, document, latents, outcome, packs, toy, train
from tests.random_layouts import RULES
from tests.training_toy import TOY
from unify_agent.errors import UserError
from unify_agent.interleave.batch import pack
from unify_agent.model.decoder import Routing
from unify_agent.model.embeddings import rope_tables
from unify_agent.training import parallel
from unify_agent.training.config import ParallelConfig
from unify_agent.training.parallelize import blocks, callable_in_parts, compilations, compile_block, parallelize

ROOT = Path(__file__).resolve().parents[1]
ALONE = parallel.World(0, 1, torch.device("cpu"), None)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """How far each case on four ranks is from one process that accumulates the same packs."""
    folder = tmp_path_factory.mktemp("four")
    for count in (4, 8):
        torch.save(outcome(train(ALONE, ParallelConfig(packs_per_step=count), count)), folder / f"{count}.pt")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command += ["tests/parallel_tools.py", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads((folder / "found.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if "bf16" not in case])
def test_four_ranks_with_unlike_packs_have_the_gradients_of_one_process(found, case):
    """Of the four packs one has no picture, one no trained text; one process accumulates all of them."""
    assert set(KINDS[:4]) == {"text", "drawing", "all", "understanding"}
    for kind in ("gradient", "weight", "average"):
        assert found[case][kind] <= 1e-5, kind


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shards, bf16", "hybrid, bf16"])
def test_bfloat16_is_for_computing_and_nothing_else(found, name):
    """Weights are gathered in it; gradients are summed over shards and over replicas in float32."""
    case = found[name]
    assert case["float32"] and 1e-5 < case["gradient"] < 0.1
    sums = {"allreduce float32"} if "hybrid" in name else set()
    counts = {"allreduce float64"}  # and losses
    assert case["collectives"].keys() == {"allgather_base bfloat16", "reduce_scatter_base float32", *sums, *counts}


@pytest.mark.slow
def test_replicas_are_summed_once_a_step_and_shards_for_every_pack(found):
    for name, packs_a_rank in (("hybrid", 1), ("hybrid, two packs a rank", 2)):
        calls = found[name]["collectives"]
        assert calls["reduce_scatter_base float32"] == packs_a_rank * calls["allreduce float32"] > 0


@pytest.mark.slow
def test_a_rank_holds_its_shard(found):
    whole = sum(p.numel() for p in toy().parameters())
    assert found["shards"]["held"] == pytest.approx(whole / 4, rel=0.02)
    assert found["hybrid"]["held"] == pytest.approx(whole / 2, rel=0.02)


def test_blocks_embedding_and_head_are_units_and_each_gathers_the_next():
    config = ParallelConfig(dtype="bf16")
    world = parallel.start(config)
    try:
        model = parallelize(toy(), world, config)
        units = {name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)}
        towers = ("vit_model.vision_model.encoder.layers", "language_model.model.layers")
        layers = [f"{tower}.{n}" for tower in towers for n in range(len(model.get_submodule(tower)))]
        order = ["language_model.model.embed_tokens", *layers, "language_model.lm_head"]
        assert set(units) == {"", *order}
        states = [units[name]._get_fsdp_state() for name in order]
        for state, following in pairwise(states):
            assert state._states_to_forward_prefetch == [following]
            assert following._states_to_backward_prefetch == [state]
        with callable_in_parts(model):
            assert not any(state._states_to_forward_prefetch for state in states)
        assert states[0]._states_to_forward_prefetch == [states[1]]
    finally:
        parallel.stop(world)


def test_one_process_computes_in_bfloat16_as_many_do():
    config = ParallelConfig(dtype="bf16", packs_per_step=4)
    world = parallel.start(config)
    try:
        assert world.size == 1 and world.mesh is not None
        ours = train(world, config, 4)
        apart = distance(outcome(ours), outcome(train(ALONE, ParallelConfig(packs_per_step=4), 4)))
        assert all(p.dtype == p.grad.dtype == torch.float32 for p in ours.engine.parameters)
    finally:
        parallel.stop(world)
    assert 1e-5 < apart["gradient"] < 0.1 and apart["weight"] < 0.02


class Kernels(TorchDispatchMode):
    """Counts calls of attention and of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = self.products = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        name = str(op)
        self.attention += "attention" in name and "backward" not in name
        self.products += name.startswith(("aten.mm", "aten.addmm"))
        return op(*args, **(kwargs or {}))


def test_checkpointing_repeats_what_it_says_and_changes_no_gradient():
    counted, results = {}, {}
    for kind in ("none", "full", "selective"):
        with Kernels() as counted[kind]:
            results[kind] = outcome(train(ALONE, ParallelConfig(checkpointing=kind, packs_per_step=4), 4, steps=1))
    plain, full, selective = (counted[kind] for kind in ("none", "full", "selective"))
    assert full.attention == 2 * plain.attention and selective.attention == plain.attention
    assert full.products == selective.products > plain.products
    for kind in ("full", "selective"):
        assert max(distance(results[kind], results["none"]).values()) == 0


def test_twenty_mixed_packs_compile_each_kind_of_block_at_most_twice():
    """Traced and differentiated as in training; a code generator would only make it slower here."""
    torch._dynamo.reset()
    plain, ours = toy(), toy()
    ours = parallelize(ours, ALONE, ParallelConfig(checkpointing="selective"))
    for block in blocks(ours):
        compile_block(block, backend="aot_eager")
    kinds = {type(block): block for block in blocks(ours)}
    for number in range(20):
        kind = KINDS[number % len(KINDS)]
        batch = pack([document(kind, number, size=1 + number % 2)], RULES, seed=0)
        for model in (plain, ours):
            model.zero_grad()
            sums = model(batch, latents(batch))
            (sums.ce + sums.mse).backward()
        for (name, a), b in zip(ours.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, msg=name)
    assert len(kinds) == 2
    for block in kinds.values():
        assert 1 <= compilations(block) <= 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="code for a CPU is built with g++")
def test_no_mix_of_sizes_compiles_a_block_again(caplog):
    """Generated code too, which on a CPU depends on how many rows are summed; equal counts first, then fewer and more
    of each kind than 4,096 terms of a sum, and packs without one kind."""
    torch._dynamo.reset()
    before = counters["stats"]["unique_graphs"]
    model = toy()
    for block in blocks(model):
        compile_block(block)
    layer, vit = model.language_model.model.layers[0], next(blocks(model))
    plain = toy().language_model.model.layers[0]
    for und, gen in ((40, 40), (300, 20), (2100, 30), (30, 2100), (4200, 4300), (50, 0), (0, 50), (1, 9), (9, 1)):
        found = [_through(each, und, gen) for each in (layer, plain)]
        for ours, theirs in zip(*found, strict=True):
            assert (ours - theirs).norm() <= 1e-4 * theirs.norm() + 1e-6
        vit(torch.randn(max(und, 2), TOY.vit.hidden_size), [(1, max(und, 2))]).sum().backward()
    assert compilations(layer) == compilations(vit) == 2  # before and after attention
    assert counters["stats"]["unique_graphs"] == before + 4
    assert "failed to eagerly compile backwards" not in caplog.text


def _through(layer: nn.Module, und: int, gen: int) -> list[torch.Tensor]:
    """Results and gradients of a layer with so many tokens of each kind."""
    torch.manual_seed(0)
    layer.zero_grad()
    rows, width = torch.randperm(und + gen), TOY.llm.head_dim
    a, b = (torch.randn(n, TOY.llm.hidden_size, requires_grad=True) for n in (und, gen))
    rope = rope_tables(torch.arange(und + gen), width, 1e4)
    results = layer(0, a, b, Routing(rows[:und], rows[und:]), rope, lambda _, q, k, v: q + k + v)
    sum(each.square().sum() for each in results).backward()
    return [*results, a.grad, b.grad, *(p.grad for p in layer.parameters())]


def test_the_setting_compiles_every_block():
    model = parallelize(toy(), ALONE, ParallelConfig(compile=True))
    assert all("before" in vars(block) and "after" in vars(block) for block in blocks(model))


def test_offload_without_a_gpu_is_refused():
    config = ParallelConfig(offload=True)
    world = parallel.start(config)
    try:
        with pytest.raises(UserError, match=r"parallel\.offload=true.*no GPU here"):
            parallelize(nn.Linear(1, 1), world, config)
    finally:
        parallel.stop(world)


def test_accumulation_normalises_over_the_whole_step():
    """Packs of very different sizes: each on its own would weigh the tokens of short ones more."""
    together = outcome(train(ALONE, ParallelConfig(packs_per_step=4), 4, steps=1))
    stepper = train(ALONE, ParallelConfig(packs_per_step=1), 0, steps=0)
    joined = pack([document(kind, number) for number, kind in enumerate(KINDS[:4])], RULES, seed=0)
    stepper.step(0, [joined])
    assert len({len(each.ce_at) for each in packs(4)}) > 1
    assert max(distance(outcome(stepper), together).values()) <= 1e-5
