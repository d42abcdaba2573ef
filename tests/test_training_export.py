"""What a finished run leaves behind: a folder that loads, says where it comes from, and can be trained further."""

import json
import sys
from dataclasses import replace

import pytest
import torch

from tests.training_ranks import compose
from tests.training_toy import TOY, write_start
from unify_agent import __main__ as app
from unify_agent import errors
from unify_agent.errors import UserError
from unify_agent.interleave.visibility import Span
from unify_agent.model.attention import SegmentsAttention
from unify_agent.model.bagel import Bagel
from unify_agent.model.config import TINY
from unify_agent.model.initialise import initialise
from unify_agent.model.vae import load_vae
from unify_agent.model.weights import Description, ModelFolder, load_model, save_folder
from unify_agent.training import checkpoint, parallel
from unify_agent.training.assembly import assemble
from unify_agent.training.export import architecture_hash, export_run
from unify_agent.training.metrics import read
from unify_agent.training.trainer import Trainer, fit
from unify_agent.training.watchdog import Watchdog


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


def command(monkeypatch, *arguments: object) -> int:
    """`python -m unify_agent export ...`"""
    monkeypatch.setattr(sys, "argv", ["unify_agent", "export", *map(str, arguments)])
    return errors.run(app.main)


def outputs(model: Bagel) -> torch.Tensor:
    """Logits and velocities of a few text tokens and latent patches."""
    und, gen = torch.arange(4), torch.arange(4, 8)
    with torch.no_grad():
        latents = model.embed_latents(torch.linspace(-1, 1, 256).view(4, 64), torch.full((4,), 0.5), torch.arange(4))
        hidden = torch.cat([model.embed_text(torch.tensor([1, 2, 3, 4])), latents])
        attend = SegmentsAttention([Span(0, 4, "causal", 0), Span(4, 8, "noise", 0)], 8)
        hidden = model.language_model.model(hidden, und, gen, torch.arange(8), attend)
        return torch.cat([model.logits(hidden[und]).flatten(), model.velocity(hidden[gen]).flatten()])


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


def test_the_command_writes_what_the_run_itself_wrote(finished, tmp_path, monkeypatch, capsys):
    assert command(monkeypatch, finished, tmp_path / "out", "--ema") == 0
    assert f"ema weights in fp32: {tmp_path / 'out'}" in capsys.readouterr().out
    for file in (finished / "final").iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes(), file.name


def test_other_weights_another_dtype_and_shards_reload_bitwise(finished, tmp_path, monkeypatch):
    out = tmp_path / "out"
    assert command(monkeypatch, finished, out, "--weights", "model", "--dtype", "bf16", "--shard-gib", 1e-4) == 0
    index = json.loads((out / "ema.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2 and files[0] == f"ema-00001-of-{len(files):05d}.safetensors"
    assert all((out / file).stat().st_size < 1.2e-4 * 2**30 for file in files)
    assert sorted(each.name for each in out.glob("ema*")) == sorted([*files, "ema.safetensors.index.json"])

    found = checkpoint.latest(finished / "checkpoints")
    trained = load_model(finished / "final")
    stored = checkpoint.read(found, [f"model/{name}" for name in trained.state_dict()])
    trained.load_state_dict({name.removeprefix("model/"): value for name, value in stored.items()})
    reloaded = load_model(out, torch.bfloat16)
    assert index["metadata"]["total_size"] == sum(p.numel() * 2 for p in reloaded.parameters())
    assert torch.equal(outputs(reloaded), outputs(trained.bfloat16()))
    made = json.loads((out / "unify_agent.json").read_text())["provenance"]
    assert (made["weights"], made["steps"]) == ("model", 6)


def test_a_model_of_the_tiny_preset_comes_back_with_the_same_outputs(finished, tmp_path):
    model = initialise(Bagel(TINY), 3)
    torch.nn.init.normal_(model.llm2vae.weight)
    start = replace(TINY, vae=TOY.vae)
    vae = load_vae(finished / "final" / "ae.safetensors", start.vae)
    out = save_folder(
        tmp_path / "out", model.state_dict(), start, vae, finished / "final", Description(), shard_gib=0.01
    )
    assert len(list(out.glob("ema-*.safetensors"))) > 1
    assert torch.equal(outputs(load_model(out)), outputs(model))


def test_the_card_says_what_the_model_is_and_where_it_comes_from(finished):
    card = (finished / "final" / "README.md").read_text()
    made = json.loads((finished / "final" / "unify_agent.json").read_text())["provenance"]
    for said in ("| layout preset | `released` |", "long side up to 64", "`ema.safetensors` as it is", made["data"],
                 "a vocabulary table of 272 rows", "not FLUX's", "Apache-2.0"):  # fmt: skip
        assert said in card, said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere", "out"], "nowhere: no such run folder"),
        (["empty", "out"], "config.yaml: no such file; a run folder has one"),
        (["untrained", "out"], "no complete checkpoint"),
        (["RUN", "taken"], "taken: exists and is no model folder"),
        (["RUN", "out", "--shard-gib", "0"], "--shard-gib 0.0: must be above 0"),
    ],
)
def test_an_export_that_cannot_be_is_one_line_and_writes_nothing(
    finished, tmp_path, monkeypatch, capsys, arguments, says
):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "untrained", "taken"):
        (tmp_path / name).mkdir()
    (tmp_path / "untrained" / "config.yaml").write_bytes((finished / "config.yaml").read_bytes())
    assert command(monkeypatch, *(finished if each == "RUN" else each for each in arguments)) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ") and told.count("\n") == 1 and says in told
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_needs_more_rows_grows_the_table_and_the_export_says_so(base, finished, tmp_path):
    """272 rows hold the toy's 268 tokens; a model of 264 rows does not."""
    state = load_model(finished / "final").state_dict()
    for name in ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight"):
        state[name] = state[name][:264]
    folder = ModelFolder(finished / "final")
    small = replace(folder.config, llm=replace(folder.config.llm, vocab_size=264))
    path = save_folder(tmp_path / "small", state, small, folder.vae(), folder.path, folder.description)
    config = compose(
        [*base, "model.init=pretrained", "model.arch=null", f"model.path={path}", f"output={tmp_path / 'run'}"]
    )
    world = parallel.start(config.parallel)
    watchdog = Watchdog(tmp_path / "run", world, 300)
    trainer = Trainer(config, world, assemble(config, world), watchdog)
    assert "grown from 264 to 320 rows" in trainer.parts.origin
    trainer._save()
    trainer.saver.wait()
    out = export_run(tmp_path / "run", tmp_path / "out", config, trainer.parts.start)
    assert json.loads((out / "llm_config.json").read_text())["vocab_size"] == 320
    table = load_model(out).get_parameter("language_model.lm_head.weight")
    assert torch.equal(table[:264], state["language_model.lm_head.weight"])


def test_a_folder_of_another_architecture_than_the_one_named_is_refused(base, finished, tmp_path):
    settings = [*base, "model.init=pretrained", f"model.path={finished / 'final'}", f"output={tmp_path / 'run'}"]
    with pytest.raises(UserError, match=r"not of model.arch=tiny: .* is \(272, 32\), there \(2048, 160\)"):
        fit(compose([*settings, "model.arch=tiny"]))
