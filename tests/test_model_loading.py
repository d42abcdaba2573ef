"""Weights come in strictly, tensor by tensor: no more memory than the model, a shard under FSDP, larger tables."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets_tools import tokenizer
from golden_model import golden, golden_config, golden_model
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from unify_agent import files
from unify_agent.errors import UserError
from unify_agent.interleave.grammar import MARKERS, Grammar
from unify_agent.model.config import BAGEL_7B_MOT, TINY, BagelConfig, LlmConfig, llm_to_json, vit_to_json
from unify_agent.model.folder import Description, ModelFolder, describe
from unify_agent.model.loading import VOCABULARY, Weights, grown, load_model, on_meta, shapes
from unify_agent.model.saving import save_folder
from unify_agent.model.vae import FluxVae

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
BIG = replace(
    TINY,
    llm=LlmConfig(
        vocab_size=80_000,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
    ),
)
"""270 M parameters: more than 1 GB in float32."""


def synthetic(folder: Path, config: BagelConfig, bits: int, content: bool = False) -> Path:
    """A folder of made-up weights: of zeros that take no room on the disk, or (`content`) each element its number."""
    folder.mkdir()
    kind, numpy_kind = {32: ("F32", np.float32), 16: ("BF16", None)}[bits]
    header, at = {}, 0
    for name, shape in shapes(config).items():
        size = math.prod(shape) * bits // 8
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "ema.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
        for number, each in enumerate(header.values() if content else ()):
            file.write(np.arange(math.prod(each["shape"]), dtype=numpy_kind) + number)
    (folder / "ae.safetensors").touch()
    files.write_json(folder / "llm_config.json", llm_to_json(config.llm))
    files.write_json(folder / "vit_config.json", vit_to_json(config.vit))
    files.write_json(folder / "unify_agent.json", describe(config, Description()))
    return folder


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(("bits", "dtypes"), [(32, ["fp32", "bf16"]), (16, ["fp32"])])
def test_loading_a_gigabyte_takes_its_weights_in_memory_and_no_more(tmp_path, bits, dtypes):
    folder = synthetic(tmp_path / "big", BIG, bits)
    command = [sys.executable, "tests/loading_memory.py", str(folder), *dtypes]
    try:
        done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    for dtype, told in zip(dtypes, json.loads(done.stdout), strict=True):
        assert told["weights"] > (1e9 if dtype == "fp32" else 0.5e9)
        assert 0.9 * told["weights"] < told["peak"] < 1.2 * told["weights"], (bits, dtype)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_rank_holds_its_shard_of_the_weights_and_nothing_else(tmp_path):
    uneven = replace(BIG.llm, vocab_size=10_001, hidden_size=516, num_attention_heads=6, num_hidden_layers=5)
    config = replace(BIG, llm=replace(uneven, head_dim=86))
    folder = synthetic(tmp_path / "model", config, 32, content=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["tests/loading_ranks.py", str(folder), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    shutil.rmtree(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert told["equal"] == told["tensors"] == len(shapes(config))
        assert told["total"] > 2e8
        assert told["held"] < 0.51 * told["total"]
        assert told["peak"] < 0.6 * told["total"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")
    vae = FluxVae(golden_config().vae)
    vae.load_original(golden("tiny_ae"), "tiny_ae")
    state = golden_model().state_dict()
    return save_folder(folder / "out", state, golden_config(), vae, folder / "tokenizer", Description("paper"))


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def changed(folder: Path, **tensors: torch.Tensor | None) -> Path:
    """The folder with tensors replaced, or (None) removed."""
    state = load_file(folder / "ema.safetensors") | {
        name: value for name, value in tensors.items() if value is not None
    }
    for name in (name for name, value in tensors.items() if value is None):
        del state[name]
    save_file(state, folder / "ema.safetensors")
    return folder


@given(st.integers(1, 200_000))
def test_a_vocabulary_table_never_shrinks_and_grows_only_when_it_must(tokens):
    rows = grown(BAGEL_7B_MOT, tokens).llm.vocab_size
    assert rows >= max(tokens, 152_064)
    assert rows == 152_064 if tokens <= 152_064 else rows % 64 == 0 and rows < tokens + 64


def test_new_tags_take_the_next_spare_rows_in_the_order_of_the_release():
    made = tokenizer()
    made.add_special_tokens([*MARKERS, "<tool_call>", "</tool_call>"])  # those that Qwen2.5 knows
    size = made.get_vocab_size()
    known = Grammar(made)
    new = ["<observation>", "</observation>", "<think>", "</think>", "<recaption>", "</recaption>"]
    assert [known.tag_ids[tag] for tag in new] == list(range(size, size + 6))
    assert known.size == size + 6 < golden_config().llm.vocab_size
    assert grown(golden_config(), known.size) == golden_config()


def test_grown_rows_start_as_the_mean_and_the_others_stay(saved, tmp_path):
    folder = ModelFolder(saved)
    config = grown(folder.config, 515)
    assert config.llm.vocab_size == 576
    weights = Weights(folder, config)
    model = on_meta(config).to_empty(device="cpu")
    weights.fill(model)
    for name in VOCABULARY:
        ours, theirs = model.get_parameter(name), golden_model().get_parameter(name)
        assert torch.equal(ours[:512], theirs)
        torch.testing.assert_close(ours[512:], theirs.mean(0).expand(64, -1), rtol=1e-6, atol=1e-7)
    out = save_folder(tmp_path / "out", model.state_dict(), config, folder.vae(), saved, Description("paper"))
    assert json.loads((out / "llm_config.json").read_text())["vocab_size"] == 576
    assert torch.equal(load_model(out).get_parameter(VOCABULARY[0]), model.get_parameter(VOCABULARY[0]))


def test_a_table_smaller_than_its_own_configuration_says_is_not_taken_for_growth(copy):
    table = load_file(copy / "ema.safetensors")[VOCABULARY[1]][:500].clone()
    with pytest.raises(UserError, match=r"lm_head.weight is \(500, 64\), the configuration says \(512, 64\)"):
        load_model(changed(copy, **{VOCABULARY[1]: table}))


def test_fixed_tables_may_be_absent_and_are_named_as_such_when_they_contradict(copy):
    tables = ("latent_pos_embed.pos_embed", "vit_pos_embed.pos_embed")
    expected = golden_model()
    changed(copy, **dict.fromkeys(tables))
    model = load_model(copy)
    for name in tables:
        torch.testing.assert_close(model.get_parameter(name), expected.get_parameter(name), rtol=0, atol=1e-6)
    with pytest.raises(UserError, match=r"1 misshapen.*\n.*fixed table; max_latent_size is 32"):
        load_model(changed(copy, **{tables[0]: torch.zeros(100, 64)}))


def test_of_many_wrong_tensors_the_first_have_a_line_and_all_are_counted(copy):
    names = [name for name in load_file(copy / "ema.safetensors") if "layers.1." in name and "language" in name]
    with pytest.raises(UserError) as caught:
        load_model(changed(copy, **dict.fromkeys(names)))
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{copy}: tensors: {len(names)} missing"
    assert len(lines) == 22 and lines[-1] == f"... and {len(names) - 20} more missing"


def test_weights_that_are_no_floats_are_refused(copy):
    with pytest.raises(UserError, match=r"llm2vae.bias holds I8; only F32, BF16, F16, F64 are read"):
        load_model(changed(copy, **{"llm2vae.bias": torch.zeros(64, dtype=torch.int8)}))


def test_a_configuration_of_another_model_is_refused_before_anything_is_read(copy):
    raw = json.loads((copy / "llm_config.json").read_text())
    (copy / "llm_config.json").write_text(json.dumps(raw | {"intermediate_size": 256}))
    with pytest.raises(UserError, match=r"tensors: 12 misshapen"):
        Weights(ModelFolder(copy))


def test_a_public_table_that_is_no_square_is_named(copy):
    (copy / "unify_agent.json").unlink()
    changed(copy, **{"latent_pos_embed.pos_embed": torch.zeros(1000, 64)})
    with pytest.raises(UserError, match="has 1000 rows, which is no square"):
        ModelFolder(copy)


@pytest.mark.parametrize("value", ["64", 0, 1.5, None])
def test_a_size_that_is_no_size_is_named(copy, value):
    raw = json.loads((copy / "unify_agent.json").read_text())
    raw["sizes"]["max_latent_size"] = value
    (copy / "unify_agent.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match=r"max_latent_size is .*, a number above 0"):
        ModelFolder(copy)


def test_a_hub_id_is_fetched_once_and_offline_is_a_clear_line(saved, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    asked = []

    def fetch(repository, **options):
        asked.append((repository, options["allow_patterns"]))
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert ModelFolder("csfufu/Unify-Agent").config == golden_config()
    assert asked == [("csfufu/Unify-Agent", ["*.json", "*.safetensors", "*.txt"])]

    for error, says in [
        (
            LocalEntryNotFoundError("no snapshot"),
            "the hub cannot be reached from here; fetch it where there is a network",
        ),
        (OfflineModeIsEnabled("offline"), "hf download csfufu/Unify-Agent --local-dir DIR"),
        (HFValidationError("bad id\nmore"), r"neither a folder nor a model that the hub gives out \(bad id\)"),
        (ConnectionResetError("reset"), "neither a folder nor a model"),
    ]:

        def refuse(*_, error=error, **__):
            raise error

        monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
        with pytest.raises(UserError, match=says) as caught:
            ModelFolder("csfufu/Unify-Agent")
        assert str(caught.value).startswith("csfufu/Unify-Agent: ") and "\n" not in str(caught.value)
