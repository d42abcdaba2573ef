"""Adapters: what they train, what a checkpoint holds of them, and an export in the public layout."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.training_ranks import compose
from tests.training_toy import TOY, write_start
from unify_agent.errors import UserError
from unify_agent.model.loading import on_meta
from unify_agent.model.weights import load_model
from unify_agent.training import checkpoint, parallel
from unify_agent.training.assembly import assemble
from unify_agent.training.ema import Ema
from unify_agent.training.metrics import read
from unify_agent.training.samples import Samples
from unify_agent.training.trainer import fit

pytest.importorskip("peft")
TABLES = {"language_model.model.embed_tokens.weight", "language_model.lm_head.weight"}
SAMPLES = ["logging.samples.every=2", "logging.samples.prompts=[a disc, a square]", "logging.samples.steps=4"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A base that was trained a little, and adapters on it, in one go and continued after two of four steps."""
    folder = tmp_path_factory.mktemp("lora")
    base = [*write_start(folder / "start"), "optim.schedule=constant", "ema.decay=0.5", "checkpoint.every=2"]
    fit(compose([*base, f"output={folder / 'base'}", "steps=25", "optim.lr=1e-2"]))
    tuned = [*base, "model.init=pretrained", f"model.path={folder / 'base' / 'final'}", "lora.rank=2", "lora.alpha=4"]
    tuned += ["optim.lr=3e-2", "optim.warmup_steps=0"]
    fit(compose([*tuned, f"output={folder / 'whole'}", "steps=4", "export.weights=model"]))
    tuned += SAMPLES
    fit(compose([*tuned, f"output={folder / 'parts'}", "steps=2"]))
    fit(compose([*tuned, f"output={folder / 'parts'}", "steps=4"]))
    fit(compose([*tuned, f"output={folder / 'half'}", "steps=2", "lora.base_dtype=bf16", "parallel.dtype=bf16"]))
    return folder


def test_a_checkpoint_holds_adapters_of_both_experts_and_the_tables_alone(runs):
    held = checkpoint.shapes(checkpoint.latest(runs / "whole" / "checkpoints"))
    names = {name.removeprefix("model/") for name in held if name.startswith("model/")}
    assert {name for name in names if ".lora_" not in name} == TABLES
    layers = TOY.llm.num_hidden_layers
    assert len(names - TABLES) == layers * 2 * 7 * 2  # two experts, seven linear layers, two matrices
    assert sum("_moe_gen" in name for name in names) == layers * 7 * 2
    assert {tuple(held[f"model/{name}"])[".lora_B." in name] for name in names - TABLES} == {2}


def test_the_export_is_the_base_with_the_adapters_added(runs):
    base, ours = load_model(runs / "base" / "final"), load_model(runs / "whole" / "final")
    found = checkpoint.latest(runs / "whole" / "checkpoints")
    changed = set()
    for name, value in base.state_dict().items():
        stem = f"model/{name.removesuffix('.weight')}"
        if f"{stem}.lora_A.default.weight" in checkpoint.shapes(found):
            pair = [f"{stem}.lora_{part}.default.weight" for part in "AB"]
            a, b = checkpoint.read(found, pair).values()
            torch.testing.assert_close(ours.state_dict()[name], value + 2.0 * b @ a)
        if not torch.equal(ours.state_dict()[name], value):
            changed.add(name)
    assert changed >= TABLES and all(name in TABLES or "_proj" in name for name in changed)
    assert any("_moe_gen" in name for name in changed) and any("mlp.down_proj" in name for name in changed)
    assert set(ours.state_dict()) == set(on_meta(TOY).state_dict())


def test_a_continued_run_is_the_run_that_was_never_stopped(runs):
    whole, parts = (read(runs / name / "metrics.jsonl") for name in ("whole", "parts"))
    assert [row["loss"] for row in parts] == [row["loss"] for row in whole]
    assert [row["grad_norm"] for row in parts] == [row["grad_norm"] for row in whole]


def test_a_frozen_base_in_half_precision_trains_and_exports(runs):
    half, whole = (read(runs / name / "metrics.jsonl") for name in ("half", "whole"))
    assert half[1]["loss"] == pytest.approx(whole[1]["loss"], rel=0.02)
    provenance = json.dumps(half[1])
    assert "NaN" not in provenance
    assert load_model(runs / "half" / "final").state_dict().keys() == on_meta(TOY).state_dict().keys()


def drawn(run: Path, step: int) -> np.ndarray:
    paths = sorted((run / "samples" / f"step_{step:07d}").glob("*.png"))
    assert len(paths) == 2
    return np.stack([np.asarray(Image.open(path)) for path in paths]).astype(int)


def test_pictures_drawn_while_training_are_those_of_the_exported_model(runs):
    """The averaged adapters draw as the export does, which has them added to the base's weights; and drawing changes
    nothing of the training (`parts` draws, `whole` does not)."""
    settings = [*write_start(runs / "start"), f"model.path={runs / 'parts' / 'final'}", "model.init=pretrained"]
    config = compose([*settings, *SAMPLES, f"output={runs / 'again'}"])
    world = parallel.World(0, 1, torch.device("cpu"), None)
    model = load_model(runs / "parts" / "final")
    Samples(config, assemble(config, world), model, Ema(model, config.ema), world).draw(4)
    ours, theirs = drawn(runs / "parts", 4), drawn(runs / "again", 4)
    assert abs(ours - theirs).max() <= 1
    assert abs(drawn(runs / "parts", 2) - ours).max() > 1
    assert drawn(runs / "half", 2).std() > 0


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["model.init=random", "lora.rank=2"], "model.init=random"),
        (["lora.rank=2", "lora.base_dtype=bf16"], "lora.base_dtype=bf16: is only computed with parallel.dtype=bf16"),
    ],
)
def test_what_adapters_cannot_do_is_one_line(more, says):
    with pytest.raises(UserError, match=says):
        compose(more)
