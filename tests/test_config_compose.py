"""The command line becomes a typed configuration, or one clear line."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from unify_agent.errors import UserError
from unify_agent.training.compose import keys, load_config, recipe_names, to_yaml
from unify_agent.training.config import Config, DropoutConfig

ROOT = Path(__file__).resolve().parents[1]
RECIPES = recipe_names(ROOT / "recipes")


def load(*overrides: str) -> Config:
    return load_config(overrides, ROOT / "configs", ROOT / "recipes")


def error(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load(*overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_composes_and_is_really_loaded(name):
    config = load(f"+recipe={name}")
    assert config.recipe == name
    written = yaml.safe_load((ROOT / "recipes" / "recipe" / f"{name}.yaml").read_text())
    assert config.output == written["output"]
    assert config.steps == written["steps"]


def test_the_default_is_the_papers_table_6():
    config = load("model.path=x")
    assert config == load("model.path=x", "optim=paper", "data=bagel")
    assert (config.optim.lr, config.optim.warmup_steps, config.optim.clip) == (5e-5, 500, 5.0)
    assert (tuple(config.optim.betas), config.optim.eps) == ((0.9, 0.95), 1e-15)
    assert (config.loss.ce_weight, config.loss.mse_weight, config.loss.special_token_weight) == (1.0, 1.0, 3.0)
    assert (config.data.expected_tokens, config.data.max_tokens) == (40240, 41520)
    assert config.data.max_tokens_per_sample == 40240
    assert config.data.dropout == DropoutConfig(text=0.0, vit=0.0, vae=0.0)
    assert (config.data.vae_transform.min, config.data.vae_transform.max) == (512, 1024)
    assert (config.data.vit_transform.min, config.data.vit_transform.max) == (378, 980)
    assert (config.steps, config.optim.schedule, config.ema.decay) == (10000, "constant", 0.9999)


def test_the_paper_scale_recipe_is_table_6_to_the_letter():
    config, default = load("+recipe=sft_64xh20"), load("model.path=x")
    assert (config.optim, config.loss, config.steps) == (default.optim, default.loss, 10000)  # as tested above
    assert config.data.sources and replace(config.data, sources=[], workers=default.data.workers) == default.data
    parallel = config.parallel
    assert (parallel.strategy, parallel.replicate, parallel.shard) == ("fsdp", 8, 8)  # HYBRID_SHARD
    assert (parallel.packs_per_step, parallel.dtype) == (64, "bf16")
    assert (config.model.init, config.model.arch, config.layout) == ("pretrained", "bagel_7b_mot", "paper")
    assert config.lora.rank == 0 and config.loss.timestep_shift == 1.0
    assert (config.planning.card, config.planning.world) == ("h20", 64)


@pytest.mark.parametrize(("name", "world"), [("sft_8gpu", 8), ("sft_1gpu", 1)])
def test_the_smaller_recipes_train_the_same_packs(name, world):
    config, paper = load(f"+recipe={name}"), load("+recipe=sft_64xh20")
    assert (config.data, config.loss, config.model) == (paper.data, paper.loss, paper.model)
    assert config.parallel.replicate * config.parallel.shard == config.planning.world == world
    assert config.parallel.packs_per_step % world == 0


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("planning.world=0", "planning.world"),
        ("planning.node=0", "planning.node"),
        ("planning.network=0", "planning.network"),
        ("planning.mfu=[]", "planning.mfu"),
        ("planning.mfu=[1.5]", "planning.mfu"),
        ("planning.references=-1", "planning.references"),
        ("planning.picture=0", "planning.picture"),
        ("planning.trained_text=2", "planning.trained_text"),
    ],
)
def test_a_plan_of_impossible_machines_or_data_is_refused(override, says):
    assert says in error(override)


def test_an_override_wins_over_the_recipe():
    assert load("+recipe=openmoji_cpu", "steps=7").steps == 7


def test_a_recipe_may_be_named_with_or_without_the_plus():
    assert load("recipe=openmoji_cpu") == load("+recipe=openmoji_cpu")


def test_an_unknown_recipe_names_the_nearest_ones():
    assert "openmoji_cpu" in error("+recipe=openmoji_cp")
    assert "openmoji_vae" in error("+recipe=something_else")


def test_two_recipes_are_refused():
    assert "two recipes" in error("+recipe=openmoji_cpu", "+recipe=openmoji_vae")


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("optim.lrr=1", "optim.lr"),
        ("lr=1", "optim.lr"),
        ("+optim.lrr=1", "optim.lr"),
        ("++optim.lrr=1", "optim.lr"),
        ("modle.path=1", "model.path"),
        ("data.sources=[{knd: x}]", "data.sources.kind"),
        ("checkpoint.keep=1", "checkpoint.keep_last"),
    ],
)
def test_an_unknown_key_names_the_nearest_real_one(override, nearest):
    message = error(override)
    assert "unknown key" in message and nearest in message


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("optim.lr=fast", "optim.lr"),
        ("optim=nope", "paper"),
        ("steps=0", "steps=0"),
        ("steps=many", "steps"),
        ("optim.betas=[0.9]", "optim.betas"),
        ("export.weights=rew", "ema, model"),
        ("task=sftt", "sft, vae"),
        ("layout=papr", "paper, released"),
        ("model.attention=flx", "segments, flex"),
        ("parallel.dtype=fp16", "bf16"),
        ("parallel.checkpointing=some", "none, full, selective"),
        ("parallel=deepspeed_zero1", "deepspeed_zero2"),
        ("parallel.strategy=ddp", "fsdp, deepspeed_zero2, deepspeed_zero3"),
        ("plan=maybe", "false, true, json"),
        ("lora.rank=-1", "lora.rank=-1"),
        ("lora.dropout=1", "lora.dropout"),
        ("lora.base_dtype=int4", "fp32, bf16"),
        ("data.expected_tokens=50000", "data.expected_tokens"),
        ("data.dropout.vit=1.5", "data.dropout.vit"),
        ("garbage", "key=value"),
        ("a=[1", "key=value"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_key(override, says):
    assert says in error(override)


@pytest.mark.parametrize(("override", "means"), [("plan=true", "true"), ("plan=json", "json"), ("steps=1", "false")])
def test_a_plan_is_asked_for_as_a_table_or_as_json(override, means):
    assert load(override).plan == means


@pytest.mark.parametrize("more", ["parallel.shard=2", "parallel.compile=true", "parallel.offload=true", "lora.rank=4"])
def test_what_deepspeed_has_no_place_for_is_refused(more):
    assert load("parallel=deepspeed_zero3").parallel.strategy == "deepspeed_zero3"
    assert more.partition("=")[0] in error("parallel=deepspeed_zero3", more)


def test_an_unknown_key_in_a_recipe_names_the_recipe(tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "broken.yaml").write_text("# @package _global_\noptim:\n  learning_rate: 1\n")
    with pytest.raises(UserError, match=r"optim\.learning_rate.*broken"):
        load_config(["+recipe=broken"], ROOT / "configs", tmp_path)


def test_a_recipe_without_its_package_line_is_not_silently_ignored(tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "lost.yaml").write_text("steps: 1\n")
    with pytest.raises(UserError):
        load_config(["+recipe=lost"], ROOT / "configs", tmp_path)


def test_the_printed_configuration_composes_to_itself():
    config = load("+recipe=openmoji_cpu")
    again = OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.create(to_yaml(config)))
    assert OmegaConf.to_object(again) == config


def test_every_key_is_listed_once():
    known = list(keys())
    assert len(known) == len(set(known))
    assert "data.sources.weight" in known and "data.vae_transform.max" in known


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def test_train_without_arguments_says_what_to_do(tmp_path):
    result = run(cwd=tmp_path)
    assert result.returncode == 2
    assert "+recipe=" in result.stderr and "openmoji_cpu" in result.stderr


def test_train_reports_a_typo_in_one_line_and_leaves_nothing_behind(tmp_path):
    result = run("+recipe=openmoji_cpu", "optim.lrr=1", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "error: unknown key 'optim.lrr'; did you mean optim.lr or optim.min_lr?\n"
    assert result.stdout == "" and list(tmp_path.iterdir()) == []


def test_train_prints_its_configuration(tmp_path):
    result = run("+recipe=openmoji_cpu", "--cfg", "job", cwd=tmp_path)
    assert result.returncode == 0
    assert yaml.safe_load(result.stdout)["recipe"] == "openmoji_cpu"
    assert list(tmp_path.iterdir()) == []
