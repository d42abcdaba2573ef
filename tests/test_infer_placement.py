"""A model spread over devices, or of another dtype, is the same model; what cannot be placed is one clear line."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from datasets_tools import grammar, tokenizer
from generation_tools import MARKERS

import infer
from tests.training_toy import TOY
from unify_agent import errors
from unify_agent.agent import placement
from unify_agent.agent.load import load_policy
from unify_agent.agent.placement import layer_map, place
from unify_agent.errors import UserError
from unify_agent.generation.appending import Latents
from unify_agent.generation.session import Session
from unify_agent.interleave.segments import Text
from unify_agent.interleave.transforms import Transform
from unify_agent.model.bagel import Bagel
from unify_agent.model.config import BAGEL_7B_MOT, BagelConfig
from unify_agent.model.folder import Description, ModelFolder
from unify_agent.model.initialise import initialise
from unify_agent.model.loading import Weights, on_meta
from unify_agent.model.saving import save_folder
from unify_agent.model.vae import FluxVae

CONFIG = replace(TOY, llm=replace(TOY.llm, vocab_size=512, num_hidden_layers=6))
CPU, GIB = torch.device("cpu"), 1 << 30


def written(where: Path, config: BagelConfig) -> Path:
    """A model folder of random weights."""
    (where / "tokenizer").mkdir()
    tokenizer().save(str(where / "tokenizer" / "tokenizer.json"))
    description = Description("paper", {"vae": Transform(64, 32, 16), "vit": Transform(56, 28, 14)}, "compact")
    state = initialise(Bagel(config), 0).state_dict()
    return save_folder(where / "model", state, config, FluxVae(config.vae), where / "tokenizer", description)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("placed"), CONFIG)


def states(model: Bagel) -> torch.Tensor:
    """What the model makes of a text, a picture and another text."""
    session = Session(model, None, MARKERS)
    picture = Latents(torch.linspace(-1, 1, 16 * 4 * 4).view(16, 4, 4))
    return session.append([0], [[Text((1, 2, 3)), picture, Text((4, 5))]])[0].hidden


def memory_for(layers: int) -> dict[str, int]:
    """Host memory that holds so many of CONFIG's layers beside what must stay."""
    model = on_meta(CONFIG)
    staying = sum(placement._bytes(module) for module in placement._elsewhere(model).values())
    one = placement._bytes(placement._layers(model)[0])
    return {"cpu": int((staying + layers * one) / (1 - placement.ROOM)) + 1024}


def test_layers_that_do_not_fit_are_read_from_the_files_and_change_nothing(folder):
    weights = Weights(ModelFolder(folder))
    whole = place(weights, torch.float32, home=CPU)
    spread = place(weights, torch.float32, home=CPU, spread=True, memory=memory_for(4))
    where = [{p.device.type for p in layer.parameters()} for layer in placement._layers(spread)]
    assert {"meta"} in where and {"cpu"} in where and all(len(devices) == 1 for devices in where)
    assert torch.equal(states(spread), states(whole))
    assert torch.equal(states(spread), states(whole))  # and again, after the layers have left memory


def test_with_room_for_all_nothing_is_hooked(folder):
    model = place(Weights(ModelFolder(folder)), torch.float32, home=CPU, spread=True)
    assert not any(hasattr(module, "_hf_hook") for module in model.modules())
    assert not model.training and not any(p.requires_grad for p in model.parameters())


def test_cards_fill_up_before_host_memory_and_before_the_disk_and_no_layer_is_split():
    model = on_meta(BAGEL_7B_MOT).bfloat16()
    found = layer_map(model, 0, memory={0: 16 * GIB, 1: 10 * GIB, "cpu": 6 * GIB})
    assert sorted(found) == list(range(28))
    order = [0, 1, "cpu", "disk"]
    ranks = [order.index(device) for device in found.values()]
    assert ranks == sorted(ranks) and set(ranks) == {0, 1, 2, 3}
    layer, size = 466_116_096 * 2, {0: 16 * GIB, 1: 10 * GIB, "cpu": 6 * GIB}
    assert all(list(found.values()).count(device) * layer <= size[device] for device in size)
    everything = layer_map(model, 0, memory={0: 80 * GIB, "cpu": 80 * GIB})
    assert set(everything.values()) == {0}


def test_smaller_weights_need_fewer_cards():
    model = on_meta(BAGEL_7B_MOT).bfloat16()
    on_card = {
        quant: list(layer_map(model, 0, quant, memory={0: 20 * GIB, "cpu": 80 * GIB}).values()).count(0)
        for quant in (None, "8bit", "4bit")
    }
    assert on_card[None] < on_card["8bit"] <= on_card["4bit"] == 28


def test_what_must_stay_at_home_and_does_not_fit_is_one_line(folder):
    with pytest.raises(UserError, match=r"must be on device cpu, which has 0.00 GiB"):
        place(Weights(ModelFolder(folder)), torch.float32, home=CPU, spread=True, memory={"cpu": 1024})


def test_a_layer_on_another_card_gets_all_it_needs_and_gives_back_where_it_came_from(folder):
    """Both cards are the CPU here: what is shown is that nothing is lost on the way."""
    weights = Weights(ModelFolder(folder))
    visited = place(weights, torch.float32, home=CPU)
    for layer in placement._layers(visited):
        placement._visit(layer, CPU, CPU)
    assert torch.equal(states(visited), states(place(weights, torch.float32, home=CPU)))


def test_the_dtype_is_float32_on_a_cpu_and_bfloat16_when_asked_for(folder):
    policy, _ = load_policy(folder, device="cpu")
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    policy, _ = load_policy(folder, device="cpu", dtype="bf16", spread=True)
    assert {p.dtype for p in policy.model.parameters()} == {torch.bfloat16}
    assert policy.described()["dtype"] == "bfloat16"
    assert placement.default_dtype(torch.device("cuda")) == torch.bfloat16


def test_quantising_without_bitsandbytes_names_the_extra(folder, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'unify-agent\[quant\]'"):
        load_policy(folder, quant="8bit")


@pytest.mark.parametrize("quant", ["8bit", "4bit"])
def test_quantised_layers_stay_close(tmp_path, quant):
    pytest.importorskip("bitsandbytes")
    wide = replace(CONFIG.llm, hidden_size=64, intermediate_size=128, head_dim=32)  # blocks of 64 share a scale
    weights = Weights(ModelFolder(written(tmp_path, replace(CONFIG, llm=wide))))
    found = states(place(weights, torch.float32, home=CPU, quant=quant))
    expected = states(place(weights, torch.float32, home=CPU))
    assert not torch.equal(found, expected)
    assert (found - expected).norm() < (0.05 if quant == "8bit" else 0.5) * expected.norm()


@pytest.mark.parametrize("command", [("--dtype", "fp64"), ("--device-map", "cuda"), ("--quant", "2bit")])
def test_an_unknown_choice_is_refused_with_those_that_there_are(command, capsys):
    with pytest.raises(SystemExit) as caught:
        infer.main(["--prompt", "x", *command])
    assert caught.value.code == errors.USAGE
    assert "choose from" in capsys.readouterr().err


def test_a_tokenizer_or_pictures_too_large_for_the_tables_are_refused_before_weights_are_read(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(placement, "place", lambda *_, **__: pytest.fail("weights were read"))
    state, few = initialise(Bagel(CONFIG), 0).state_dict(), grammar().size - 1
    small = replace(CONFIG, llm=replace(CONFIG.llm, vocab_size=few))
    for name in ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight"):
        state[name] = state[name][:few]
    out = save_folder(tmp_path / "few", state, small, FluxVae(CONFIG.vae), folder, ModelFolder(folder).description)
    with pytest.raises(UserError, match=f"the model's table {few} rows"):
        load_policy(out)
    large = Description("paper", {"vae": Transform(256, 32, 16), "vit": Transform(56, 28, 14)}, "compact")
    state = initialise(Bagel(CONFIG), 0).state_dict()
    out = save_folder(tmp_path / "large", state, CONFIG, FluxVae(CONFIG.vae), folder, large)
    with pytest.raises(UserError, match="max_size is 256, but the position table holds pictures of at most 128"):
        load_policy(out, size=(64, 64))
