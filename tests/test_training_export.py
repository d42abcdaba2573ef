"""What a finished run leaves behind: a folder that loads, says where it comes from, and can be trained further."""

import json

import pytest
import torch

from tests.training_ranks import compose
from tests.training_toy import write_start
from unify_agent.errors import UserError
from unify_agent.model.weights import ModelFolder, load_model
from unify_agent.training import checkpoint
from unify_agent.training.export import architecture_hash
from unify_agent.training.metrics import read
from unify_agent.training.trainer import fit


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return [
        *write_start(tmp_path_factory.mktemp("start")),
        "steps=6",
        "ema.decay=0.1",
        "optim.lr=1e-2",
        "layout=released",
    ]


@pytest.fixture(scope="module")
def finished(base, tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "finished"
    assert fit(compose([*base, f"output={output}", "export.prompts=compact"])) == 0
    return output


def averages(run) -> dict[str, torch.Tensor]:
    """The moving average in the run's last checkpoint."""
    found = checkpoint.latest(run / "checkpoints")
    weights = load_model(run / "final").state_dict()
    frozen = ("latent_pos_embed.pos_embed", "vit_pos_embed.pos_embed")
    into = {f"ema/{name}": torch.empty_like(value) for name, value in weights.items() if name not in frozen}
    checkpoint.dcp.load(into, checkpoint_id=found.path, no_dist=True)
    return {name.removeprefix("ema/"): value for name, value in into.items()}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_export_holds_the_moving_average(finished):
    weights = load_model(finished / "final").state_dict()
    for name, value in averages(finished).items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=0)


def test_the_export_says_how_it_was_trained(finished):
    folder = ModelFolder(finished / "final")
    made = json.loads((finished / "final" / "unify_agent.json").read_text())["provenance"]
    assert (folder.layout, folder.prompts) == ("released", "compact")
    assert (folder.transforms["vae"].max_size, folder.transforms["vit"].stride) == (64, 14)
    assert (made["steps"], made["seed"], made["weights"]) == (6, 0, "ema")
    assert made["architecture"] == architecture_hash(folder.config)
    assert made["tokenizer"] == folder.grammar().fingerprint
    assert made["metrics"]["tokens"] == sum(row["tokens"] for row in read(finished / "metrics.jsonl"))
    assert (finished / "losses.png").stat().st_size > 10_000


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_raw_weights_and_half_precision_are_exported_when_asked_for(base, finished, tmp_path):
    output = tmp_path / "raw"
    assert fit(compose([*base, f"output={output}", "export.weights=model", "export.dtype=bf16"])) == 0
    raw, average = load_model(output / "final").state_dict(), load_model(finished / "final").state_dict()
    assert (output / "final/ema.safetensors").stat().st_size < 0.6 * (finished / "final/ema.safetensors").stat().st_size
    name = "language_model.lm_head.weight"
    assert not torch.equal(raw[name], average[name])
    torch.testing.assert_close(raw[name], average[name], rtol=0.05, atol=0.05)


def test_fine_tuning_starts_from_the_exported_weights(base, finished, tmp_path):
    """The first step has learning rate 0 and sees the same data: its loss is the exported model's."""
    settings = [*base, "model.init=pretrained", f"model.path={finished / 'final'}", f"output={tmp_path / 'tuned'}"]
    assert fit(compose([*settings, "steps=1"])) == 0
    first, start = read(tmp_path / "tuned" / "metrics.jsonl")[0], read(finished / "metrics.jsonl")[0]
    assert first["ce"] < 0.9 * start["ce"] and first["lr"] == 0.0
    after = load_model(tmp_path / "tuned" / "final").state_dict()
    for name, value in load_model(finished / "final").state_dict().items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=0)


def test_fine_tuning_weights_that_know_nothing_is_refused(base, tmp_path):
    random = tmp_path / "random"
    assert fit(compose([*base, f"output={random}", "steps=1"])) == 0
    settings = [*base, "model.init=pretrained", f"model.path={random / 'final'}", f"output={tmp_path / 'tuned'}"]
    with pytest.raises(UserError, match=r"near ln\(vocabulary\)"):
        fit(compose(settings))


def test_a_folder_without_weights_is_one_clear_line(base, finished, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in (finished / "final").iterdir():
        if file.name != "ema.safetensors":
            (broken / file.name).write_bytes(file.read_bytes())
    with pytest.raises(UserError, match="no weights") as caught:
        fit(compose([*base, "model.init=pretrained", f"model.path={broken}", f"output={tmp_path / 'run'}"]))
    assert "\n" not in str(caught.value)
