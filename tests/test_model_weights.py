"""A model folder comes back as it went out, and says in one line each what is wrong with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from golden_model import GOLDEN, golden, golden_batch, golden_config, golden_model
from safetensors.torch import load_file, save_file

from unify_agent.errors import UserError
from unify_agent.interleave.transforms import Transform
from unify_agent.model.config import BAGEL_7B_MOT, TINY, llm_from_json, llm_to_json, vit_from_json, vit_to_json
from unify_agent.model.vae import FluxVae
from unify_agent.model.weights import Description, ModelFolder, load_model, save_folder

DESCRIPTION = Description(
    "paper", {"vae": Transform(64, 64, 16), "vit": Transform(56, 56, 14)}, "openmoji", {"steps": 3}
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")
    vae = FluxVae(golden_config().vae)
    vae.load_original(golden("tiny_ae"), "tiny_ae")
    return save_folder(
        folder / "out", golden_model().state_dict(), golden_config(), vae, folder / "tokenizer", DESCRIPTION
    )


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def test_weights_come_back_bit_by_bit(saved):
    ours = load_model(saved).state_dict()
    assert all(torch.equal(ours[name], value) for name, value in golden_model().state_dict().items())
    vae = ModelFolder(saved).vae()
    assert all(torch.equal(vae.original_state_dict()[n], v) for n, v in golden("tiny_ae").items())


def test_the_description_comes_back(saved):
    folder = ModelFolder(saved)
    assert folder.config == golden_config()
    assert folder.description == DESCRIPTION
    assert (saved / "tokenizer.json").read_text() == "{}"


def test_a_loaded_model_computes_and_trains(saved):
    batch, latents = golden_batch()
    sums = load_model(saved)(batch, latents)
    sums.ce.backward()
    assert torch.equal(sums.hidden, golden_model()(batch, latents).hidden)


def test_bfloat16_comes_back_bit_by_bit(saved, tmp_path):
    state = {name: value.bfloat16() for name, value in golden_model().state_dict().items()}
    out = save_folder(
        tmp_path / "half", state, golden_config(), ModelFolder(saved).vae(), saved, DESCRIPTION, torch.bfloat16
    )
    loaded = load_model(out, torch.bfloat16).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
    assert all(value.dtype == torch.bfloat16 for value in load_file(out / "ema.safetensors").values())


def test_shards_with_an_index_are_read(copy):
    state = load_file(copy / "ema.safetensors")
    names = sorted(state)
    parts = {"a.safetensors": names[: len(names) // 2], "b.safetensors": names[len(names) // 2 :]}
    for file, mine in parts.items():
        save_file({name: state[name] for name in mine}, copy / file)
    placed = {name: file for file, mine in parts.items() for name in mine}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (copy / "ema.safetensors").unlink()
    loaded = load_model(copy).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
    (copy / "b.safetensors").unlink()
    with pytest.raises(UserError, match=r"b\.safetensors"):
        load_model(copy)


def test_a_public_release_tells_its_sizes_by_its_tables(copy):
    raw = json.loads((copy / "unify_agent.json").read_text())
    (copy / "unify_agent.json").write_text(json.dumps({"vae": raw["vae"]}))
    folder = ModelFolder(copy)
    assert folder.config == golden_config()
    assert folder.layout == "released"


def test_every_wrong_tensor_has_its_line(copy):
    state = load_file(copy / "ema.safetensors")
    state["language_model.lm_heed.weight"] = state.pop("language_model.lm_head.weight")
    state["llm2vae.bias"] = state["llm2vae.bias"][:3].clone()
    save_file(state, copy / "ema.safetensors")
    with pytest.raises(UserError) as caught:
        load_model(copy)
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert lines[0].endswith("tensors: 1 missing, 1 unexpected, 1 misshapen")
    assert "language_model.lm_head.weight is missing" in lines[1]
    assert any("lm_heed" in line for line in lines)
    assert any("llm2vae.bias is (3,), the configuration says (64,)" in line for line in lines)


@pytest.mark.parametrize("name", ["ema.safetensors", "ae.safetensors"])
def test_a_file_cut_short_is_named(copy, name):
    data = (copy / name).read_bytes()
    (copy / name).write_bytes(data[: len(data) // 2])
    folder = ModelFolder(copy)
    with pytest.raises(UserError, match=name):
        load_model(folder) if name == "ema.safetensors" else folder.vae()


@pytest.mark.parametrize("name", ["ema.safetensors", "ae.safetensors", "vit_config.json"])
def test_a_file_that_is_absent_is_named(copy, name):
    (copy / name).unlink()
    with pytest.raises(UserError, match=name):
        load_model(copy)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("llm_config.json", {"hidden_sise": 3}, "did you mean 'hidden_size'"),
        ("llm_config.json", {"hidden_act": "gelu"}, "hidden_act"),
        ("llm_config.json", {"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ("vit_config.json", {"image_size": 140}, "both tables share their ids"),
        ("unify_agent.json", {"layout": "papper"}, "did you mean 'paper'"),
        ("unify_agent.json", {"transforms": {"vae": {}}}, "transforms"),
        ("unify_agent.json", {"sizes": {"max_latent": 3}}, "max_latent_size"),
        ("unify_agent.json", {"color": 1}, "unknown key 'color'"),
    ],
)
def test_what_a_json_file_gets_wrong_is_named(copy, file, change, message):
    raw = json.loads((copy / file).read_text())
    (copy / file).write_text(json.dumps(raw | change))
    with pytest.raises(UserError, match=message):
        ModelFolder(copy)


def test_nothing_is_written_when_a_tensor_is_missing(saved, tmp_path):
    state = dict(golden_model().state_dict())
    del state["llm2vae.bias"]
    with pytest.raises(UserError, match=r"llm2vae\.bias"):
        save_folder(tmp_path / "out", state, golden_config(), ModelFolder(saved).vae(), saved, DESCRIPTION)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("config", [TINY, BAGEL_7B_MOT, golden_config()])
def test_configurations_survive_json(config):
    assert llm_from_json(json.loads(json.dumps(llm_to_json(config.llm)))) == config.llm
    assert vit_from_json(json.loads(json.dumps(vit_to_json(config.vit)))) == config.vit


def test_the_large_preset_has_the_size_of_bagel():
    from unify_agent.model.bagel import Bagel

    with torch.device("meta"):
        model = Bagel(BAGEL_7B_MOT)
    assert sum(p.numel() for p in model.language_model.model.layers[0].parameters()) == 466_116_096
    assert abs(sum(p.numel() for p in model.parameters()) / 1e9 - 14.607) < 0.001


def test_the_stored_configuration_is_read_from_its_own_json():
    raw = json.loads((GOLDEN / "tiny_config.json").read_text())
    assert llm_from_json(raw["llm_config"]).head_dim == 16
    assert vit_from_json(raw["vit_config"]).layers_built == raw["vit_layers_actually_built"]
