"""Schedule, EMA, checkpoints, metrics and mesh, each alone."""

import json
import math
import shutil

import pytest
import torch
from torch import nn

from unify_agent.errors import UserError
from unify_agent.training import checkpoint, metrics, optimiser, parallel, plots, plugins
from unify_agent.training.config import EmaConfig, OptimConfig, ParallelConfig
from unify_agent.training.ema import Ema

ALONE = parallel.World(0, 1, torch.device("cpu"), None)


def test_the_rate_rises_linearly_from_zero_and_then_stays():
    config = OptimConfig(lr=2.0, warmup_steps=4)
    assert [optimiser.learning_rate(config, step, 100) for step in (0, 1, 2, 3, 4, 99)] == [0, 0.5, 1.0, 1.5, 2, 2]


def test_the_cosine_ends_at_its_minimum_on_the_last_step():
    config = OptimConfig(lr=1.0, min_lr=0.1, warmup_steps=0, schedule="cosine")
    rates = [optimiser.learning_rate(config, step, 11) for step in range(11)]
    assert rates[0] == 1.0 and rates[5] == pytest.approx(0.55) and rates[10] == pytest.approx(0.1)
    assert rates == sorted(rates, reverse=True)


def test_the_average_follows_bagels_rule_and_its_warm_up():
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    plain, warm = Ema(model, EmaConfig(decay=0.9)), Ema(model, EmaConfig(decay=0.9, warmup=True))
    nn.init.ones_(model.weight)
    plain.step(0)
    warm.step(0)
    assert plain.tensors["weight"].tolist() == [pytest.approx([0.1, 0.1])]
    assert warm.tensors["weight"].tolist() == [pytest.approx([0.9, 0.9])]
    assert [warm.decay(n) for n in (0, 10, 10_000)] == [0.1, 11 / 20, 0.9]


def test_the_average_leaves_frozen_weights_alone_and_is_applied_only_inside_the_block():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    average = Ema(model, EmaConfig(decay=0.5))
    before = model[0].weight.clone()
    assert set(average.tensors) == {"0.weight", "0.bias"}
    with torch.no_grad():
        model[0].weight.add_(1)
    average.step(0)
    with average.applied():
        torch.testing.assert_close(model[0].weight, before + 0.5)
    torch.testing.assert_close(model[0].weight, before + 1)


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"a/b": torch.full((3, 2), value), "step": torch.tensor(value)}


def test_a_checkpoint_reads_back_what_was_saved(tmp_path):
    checkpoint.save(tmp_path, 7, tensors(2.5), {"note": "x"}, ALONE, keep=1)
    found = checkpoint.latest(tmp_path)
    into = tensors(0.0)
    checkpoint.load(found, into, ALONE)
    assert found.step == 7 and found.meta["note"] == "x"
    assert into["a/b"].eq(2.5).all() and into["step"] == 2.5


def test_only_the_newest_complete_checkpoints_are_kept(tmp_path):
    for step in range(1, 6):
        checkpoint.save(tmp_path, step, tensors(float(step)), {}, ALONE, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_0000004", "step_0000005"]


def test_a_folder_without_its_marker_is_no_checkpoint(tmp_path):
    for step in (1, 2):
        checkpoint.save(tmp_path, step, tensors(float(step)), {}, ALONE, keep=3)
    (tmp_path / "step_0000002" / checkpoint.MARKER).unlink()
    (tmp_path / ".step_0000003.tmp").mkdir()
    assert checkpoint.latest(tmp_path).step == 1


def test_a_failed_save_keeps_the_last_good_checkpoint_and_says_so(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, tensors(1.0), {}, ALONE, keep=1)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.dcp, "save", full)
    with pytest.raises(UserError, match=r"No space left on device.*last good one is .*step_0000001"):
        checkpoint.save(tmp_path, 2, tensors(2.0), {}, ALONE, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_0000001"]
    into = tensors(0.0)
    checkpoint.load(checkpoint.latest(tmp_path), into, ALONE)
    assert into["step"] == 1


def test_a_damaged_checkpoint_is_one_clear_line(tmp_path):
    path = checkpoint.save(tmp_path, 1, tensors(1.0), {}, ALONE, keep=1)
    shutil.copy(path / checkpoint.MARKER, tmp_path / "marker")
    for file in path.glob("*.distcp"):
        file.unlink()
    with pytest.raises(UserError, match="step_0000001: this checkpoint cannot be read"):
        checkpoint.load(checkpoint.latest(tmp_path), tensors(0.0), ALONE)


def test_losses_are_reported_by_role_and_by_timestep():
    sums = metrics.Sums(("text", "call"))
    sums.add_ce(torch.tensor([1.0, 3.0, 8.0]), torch.tensor([0, 0, 1]))
    sums.add_mse(torch.tensor([2.0, 4.0, 6.0]), torch.tensor([0.0, 0.1, 1.0]))
    row = metrics.row(sums.over_ranks(ALONE), ("text", "call"))
    assert row["ce_role/text"] == 2.0 and row["ce_role/call"] == 8.0 and row["ce_mean"] == 4.0
    assert row["mse_t/0.00-0.25"] == 3.0 and row["mse_t/0.75-1.00"] == 6.0
    assert "mse_t/0.25-0.50" not in row
    assert (row["ce_tokens"], row["mse_tokens"]) == (3, 3)


def test_rows_of_steps_that_are_trained_again_are_dropped(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3)) + '{"step": 4, "lo')
    log = metrics.MetricsLog(tmp_path, 2, False, False, "", {})
    log.write({"step": 3, "loss": 1.0})
    log.close()
    assert metrics.read(file) == [{"step": 1}, {"step": 2}, {"step": 3, "loss": 1.0}]


def test_losses_are_plotted(tmp_path):
    rows = [
        {"step": n, "ce_mean": 3 / n, "mse": 1 / n, "grad_norm": 1, "lr": 1, "tokens_per_second": 9}
        for n in range(1, 9)
    ]
    plots.losses(rows, tmp_path / "losses.png")
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")


def test_smoothing_is_a_trailing_mean():
    assert plots.smooth(plots.np.array([1.0, 3.0, 5.0, 7.0]), 2).tolist() == [1, 2, 4, 6]


@pytest.mark.parametrize(
    ("shard", "replicate", "size", "mesh"),
    [
        (None, None, 4, (1, 4)),
        (2, None, 4, (2, 2)),
        (None, 4, 4, (4, 1)),
        (1, None, 2, (2, 1)),
        (None, None, 1, (1, 1)),
    ],
)
def test_what_is_omitted_of_the_mesh_is_inferred(shard, replicate, size, mesh):
    assert parallel.mesh_shape(ParallelConfig(shard=shard, replicate=replicate), size) == mesh


def test_a_mesh_that_does_not_multiply_to_the_ranks_is_refused_with_what_would():
    with pytest.raises(UserError, match=r"does not make 8 ranks.*1, 2, 4, 8"):
        parallel.mesh_shape(ParallelConfig(shard=3), 8)


def test_a_plugin_that_is_not_there_names_the_key():
    for name, says in [
        ("nowhere", "package.module:Class"),
        ("no.where:X", "no module no"),
        ("math:nope", "has no nope"),
    ]:
        with pytest.raises(UserError, match=f"key={name}.*{says}"):
            plugins.load(name, "key")
    assert plugins.load("math:pi", "key") == math.pi
    with pytest.raises(UserError, match=r"data.sources\[0\].options.*nope"):
        plugins.call(nn.Linear, (1, 2), {"nope": 3}, "data.sources[0].options")
