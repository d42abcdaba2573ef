"""Planned operations against torch's own counter, and visible pairs against the oracle."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.planning_tools import BASE, SHORT, SMALL, packed, trained
from unify_agent.interleave.visibility import dense_mask
from unify_agent.model.config import BAGEL_7B_MOT, TINY
from unify_agent.model.loading import on_meta
from unify_agent.training import lora
from unify_agent.training.config import LoraConfig, ParallelConfig
from unify_agent.training.parallel import World
from unify_agent.training.parallelize import parallelize
from unify_agent.training.planning.flops import encoder_flops, flops
from unify_agent.training.planning.parameters import parameters_of
from unify_agent.training.planning.workload import Load


def addmm_in_place(into, a, b, **_) -> int:
    """The counter knows `addmm`, and not that `addmm_` costs the same. Arguments are shapes."""
    return 2 * a[0] * a[1] * b[1]


def counted(batch, checkpointing="none", model=None) -> int:
    """Operations of a real training step's forward and backward pass; the counter knows no attention on a CPU."""
    world = World(0, 1, torch.device("cpu"), None)
    model = parallelize(model or trained(), world, ParallelConfig(checkpointing=checkpointing))
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: addmm_in_place}) as counter:
        out = model(batch, torch.zeros(len(batch.latent_at), 64))
        (out.ce + out.mse).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("more", [(), ("layout=released",), ("planning.references=0",), ("planning.trained_text=1",)])
def test_linear_operations_are_those_that_torch_counts(more):
    batch = packed(*SHORT, *more)
    expected = flops(SMALL, parameters_of(trained()), Load.of(batch), "none")
    assert expected.linear == pytest.approx(counted(batch), rel=1e-6)


@pytest.mark.parametrize("checkpointing", ["none", "selective"])
def test_adapters_spare_what_torch_does_not_count(checkpointing):
    pytest.importorskip("peft")
    model = lora.adapt(on_meta(SMALL), LoraConfig(rank=4)).to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    batch = packed(*SHORT)
    expected = flops(SMALL, parameters_of(model), Load.of(batch), checkpointing)
    found = counted(batch, checkpointing, model)
    assert expected.linear + expected.recomputed == pytest.approx(found, rel=1e-6 if checkpointing == "none" else 0.02)
    front = expected.parts["ViT"] + expected.parts["connector"]
    full = flops(SMALL, parameters_of(trained()), Load.of(batch), "none").parts
    assert front < (full["ViT"] + full["connector"]) / 2.5
    assert expected.parts["ViT attention"] == full["ViT attention"] / 3


@pytest.mark.parametrize("checkpointing", ["full", "selective"])
def test_what_checkpointing_computes_again_is_what_torch_counts_more(checkpointing):
    batch = packed(*SHORT)
    again = counted(batch, checkpointing) - counted(batch)
    parameters, load = parameters_of(trained()), Load.of(batch)
    assert flops(SMALL, parameters, load, "selective").recomputed == pytest.approx(again, rel=0.02)
    whole = flops(SMALL, parameters, load, "full")
    attention = whole.parts["attention"] + whole.parts["ViT attention"]
    assert whole.recomputed == pytest.approx(flops(SMALL, parameters, load, "selective").recomputed + attention / 3)


@pytest.mark.parametrize("layout", ["paper", "released"])
@pytest.mark.parametrize("references", [0, 1, 2])
def test_visible_pairs_are_the_oracles(layout, references):
    batch = packed(*BASE, f"layout={layout}", f"planning.references={references}", "data.noise_copies=2")
    load = Load.of(batch)
    assert load.pairs == int(dense_mask(batch.spans).sum())
    expected = flops(SMALL, parameters_of(trained()), load, "none").parts["attention"]
    llm = SMALL.llm
    assert expected == 3 * 2 * 2 * llm.num_hidden_layers * llm.num_attention_heads * llm.head_dim * load.pairs


def test_counts_of_a_pack_are_those_of_its_tensors():
    batch = packed(*BASE, "data.noise_copies=2", "model.attention=flex")
    load = Load.of(batch)
    assert load.slots == batch.length == 128 * -(-load.tokens // 128)
    assert load.latents + len(batch.text_at) + len(batch.vit_at) == load.slots
    assert load.noised == len(batch.mse_at) and load.ce == len(batch.ce_at) and load.samples == 2
    assert sum(load.vit_lengths) == len(batch.vit_at)


@pytest.mark.parametrize(("side", "tera"), [(512, 1.12), (768, 2.61), (1024, 4.88)])
def test_the_encoder_of_a_picture_costs_what_was_measured(side, tera):
    """facts/training.md, numbers."""
    assert encoder_flops(BAGEL_7B_MOT.vae, side, side) / 1e12 == pytest.approx(tera, abs=0.005)


def test_the_encoders_convolutions_are_those_that_torch_counts():
    from unify_agent.model.vae import FluxVae

    with torch.device("meta"):
        vae, picture = FluxVae(TINY.vae), torch.empty(1, 3, 64, 96)
    with FlopCounterMode(display=False) as counter:
        vae.encode_moments(picture)
    positions, wide = 64 * 96 // 64, TINY.vae.ch * TINY.vae.ch_mult[-1]
    attention = 4 * positions**2 * wide
    operations = counter.get_total_flops()
    assert encoder_flops(TINY.vae, 64, 96) in (operations, operations + attention)
