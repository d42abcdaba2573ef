"""Fresh weights: what BAGEL's start says, and the copying circuit that a fresh decoder brings along."""

from dataclasses import replace

import pytest
import torch

from unify_agent.model.attention import DenseAttention
from unify_agent.model.bagel import Bagel
from unify_agent.model.config import TINY
from unify_agent.model.initialise import initialise

CIRCUIT = ("language_model.model.layers.0.", "language_model.model.layers.1.")


def test_fresh_weights_are_reproducible_and_start_as_bagel_does():
    a, b = (initialise(Bagel(TINY), 3).state_dict() for _ in range(2))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["vae2llm.weight"], initialise(Bagel(TINY), 4).state_dict()["vae2llm.weight"])
    assert not a["llm2vae.weight"].any()
    for name, value in a.items():
        if "_moe_gen" in name and not name.startswith(CIRCUIT):
            assert torch.equal(value, a[name.replace("_moe_gen", "")])
        if "norm" in name and "_moe_gen" in name:
            assert bool((value == 1).all())
        assert bool(torch.isfinite(value).all())


def test_the_output_table_starts_equal_to_the_input_table_and_is_its_own():
    model = initialise(Bagel(TINY), 0)
    read, written = model.language_model.model.embed_tokens.weight, model.language_model.lm_head.weight
    assert torch.equal(read, written)
    assert read.data_ptr() != written.data_ptr()


@torch.no_grad()
def surprise(model: Bagel, ids: torch.Tensor, start: int) -> float:
    """Mean cross entropy of the tokens after `start`."""
    at, none = torch.arange(len(ids)), torch.zeros(0, dtype=torch.long)
    mask = torch.tril(torch.ones(len(ids), len(ids), dtype=torch.bool))
    hidden = model.language_model.model(model.embed_text(ids), at, none, at, DenseAttention(mask))
    return float(torch.nn.functional.cross_entropy(model.logits(hidden)[start:-1], ids[start + 1 :]))


@pytest.mark.parametrize("kv_heads", [5, 4, 2])
def test_a_fresh_decoder_expects_what_it_has_read_before(kv_heads):
    heads = 5 if kv_heads == 5 else 4
    llm = replace(TINY.llm, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=32)
    draw = torch.Generator().manual_seed(1)
    gains = []
    for seed in range(3):
        model = initialise(Bagel(replace(TINY, llm=llm)), seed)
        once, other = (torch.randint(0, 2000, (50,), generator=draw) for _ in range(2))
        gains.append(surprise(model, torch.cat([once, other]), 50) - surprise(model, torch.cat([once, once]), 50))
    assert min(gains) > 0.2


def test_a_decoder_of_one_kv_head_starts_without_the_circuit():
    llm = replace(TINY.llm, num_key_value_heads=1)
    state = initialise(Bagel(replace(TINY, llm=llm)), 0).state_dict()
    for name, value in state.items():
        if "_moe_gen" in name:
            assert torch.equal(value, state[name.replace("_moe_gen", "")])
