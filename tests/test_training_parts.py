"""Schedule, EMA, checkpoints, metrics and mesh, each alone."""

import math
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

from unify_agent.errors import STOPPED, UserError
from unify_agent.training import checkpoint, generators, metrics, optimiser, parallel, plots, plugins
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


@pytest.fixture(params=[True, False], ids=["background", "waiting"])
def saver(request, tmp_path):
    """Keeps the newest checkpoint only."""
    saver = checkpoint.Saver(tmp_path, ALONE, keep=1, background=request.param)
    yield saver
    saver.close()


def save(saver: checkpoint.Saver, step: int) -> None:
    """Save and wait."""
    saver.save(step, tensors(float(step)), {})
    saver.wait()


def test_a_checkpoint_reads_back_what_was_saved(saver, tmp_path):
    saver.save(7, tensors(2.5), {"note": "x"})
    saver.wait()
    found = checkpoint.latest(tmp_path)
    into = tensors(0.0)
    checkpoint.load(found, into, ALONE)
    assert found.step == 7 and found.meta["note"] == "x"
    assert into["a/b"].eq(2.5).all() and into["step"] == 2.5


def test_a_save_waits_for_the_one_under_way(tmp_path, monkeypatch):
    begun, write = [], checkpoint.dcp.save

    def one_at_a_time(*arguments, **settings):
        begun.append(settings["checkpoint_id"].name)
        found = write(*arguments, **settings)
        assert len(begun) == len(checkpoint.complete(tmp_path)) + 1
        return found

    monkeypatch.setattr(checkpoint.dcp, "save", one_at_a_time)
    saver = checkpoint.Saver(tmp_path, ALONE, keep=3)
    for step in (1, 2, 3):
        saver.save(step, tensors(float(step)), {})
    saver.wait()
    assert begun == [f".step_000000{step}.tmp" for step in (1, 2, 3)]
    saver.close()


def test_the_next_save_tells_that_the_one_before_failed(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    saver = checkpoint.Saver(tmp_path, ALONE, keep=1)
    monkeypatch.setattr(checkpoint.dcp, "save", full)
    saver.save(1, tensors(1.0), {})
    with pytest.raises(UserError, match=r"step_0000001: checkpoint cannot be written \(No space left"):
        saver.save(2, tensors(2.0), {})
    assert list(tmp_path.iterdir()) == []
    saver.close()


def test_a_save_holds_what_there_was_when_it_was_called(tmp_path, monkeypatch):
    go, write = threading.Event(), checkpoint.dcp.save
    monkeypatch.setattr(checkpoint.dcp, "save", lambda *a, **k: (go.wait(60), write(*a, **k))[1])
    saver = checkpoint.Saver(tmp_path, ALONE, keep=1)
    held = tensors(1.0)
    saver.save(1, held, {})
    assert checkpoint.latest(tmp_path) is None  # under way, while training goes on
    held["a/b"].fill_(9.0)
    go.set()
    saver.wait()
    into = tensors(0.0)
    checkpoint.load(checkpoint.latest(tmp_path), into, ALONE)
    assert into["a/b"].eq(1.0).all()
    saver.close()


def test_only_the_newest_complete_checkpoints_are_kept(saver, tmp_path):
    saver.keep = 2
    for step in range(1, 6):
        saver.save(step, tensors(float(step)), {})
    saver.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_0000004", "step_0000005"]
    saver.save(6, tensors(6.0), {}, prune=False)
    saver.wait()
    assert [each.step for each in checkpoint.complete(tmp_path)] == [4, 5, 6]


def test_a_checkpoint_that_is_being_deleted_has_lost_its_marker_first(saver, tmp_path, monkeypatch):
    save(saver, 1)
    there = []
    monkeypatch.setattr(
        checkpoint.shutil, "rmtree", lambda path, **_: there.append((path.name, (path / checkpoint.MARKER).exists()))
    )
    save(saver, 2)
    assert ("step_0000001", False) in there
    assert [each.step for each in checkpoint.complete(tmp_path)] == [2]


def test_a_folder_without_its_marker_is_no_checkpoint(saver, tmp_path):
    saver.keep = 3
    for step in (1, 2):
        saver.save(step, tensors(float(step)), {})
    saver.wait()
    (tmp_path / "step_0000002" / checkpoint.MARKER).unlink()
    (tmp_path / ".step_0000003.tmp").mkdir()
    assert checkpoint.latest(tmp_path).step == 1
    save(saver, 4)  # clears away what was left half-written and half-deleted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_0000001", "step_0000004"]


def test_a_failed_save_keeps_the_last_good_checkpoint_and_says_so(saver, tmp_path, monkeypatch):
    save(saver, 1)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.dcp, "save", full)
    with pytest.raises(UserError, match=r"No space left on device.*last good one is .*step_0000001") as caught:
        save(saver, 2)
    assert caught.value.code == STOPPED and not saver.failed
    assert [path.name for path in tmp_path.iterdir()] == ["step_0000001"]
    into = tensors(0.0)
    checkpoint.load(checkpoint.latest(tmp_path), into, ALONE)
    assert into["step"] == 1


def test_a_failed_marker_leaves_no_checkpoint_behind(saver, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint.files, "write_json", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(UserError, match=r"disk full.*no earlier one"):
        save(saver, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").touch()
    saver = checkpoint.Saver(tmp_path / "file" / "checkpoints", ALONE, keep=1)
    with pytest.raises(UserError, match=r"step_0000001: checkpoint cannot be written \(Not a directory\)"):
        saver.save(1, tensors(1.0), {})
    saver.close()


def test_a_damaged_checkpoint_is_one_clear_line(saver, tmp_path):
    path = saver.save(1, tensors(1.0), {})
    saver.wait()
    for file in path.glob("*.distcp"):
        file.unlink()
    with pytest.raises(UserError, match="step_0000001: this checkpoint cannot be read"):
        checkpoint.load(checkpoint.latest(tmp_path), tensors(0.0), ALONE)


def test_the_generators_go_on_where_they_were():
    before = generators.states(ALONE.device)
    drawn = [torch.rand(2).tolist(), np.random.rand(2).tolist(), random.gauss(0, 1), random.random()]
    for _ in range(2):
        torch.rand(5), np.random.randn(3), random.gauss(0, 1)
    generators.restore(before, ALONE.device)
    assert [torch.rand(2).tolist(), np.random.rand(2).tolist(), random.gauss(0, 1), random.random()] == drawn


def test_losses_are_reported_by_role_and_by_timestep():
    sums = metrics.Sums(("text", "call"))
    sums.add_ce(torch.tensor([1.0, 3.0, 8.0]), torch.tensor([0, 0, 1]))
    sums.add_mse(torch.tensor([2.0, 4.0, 6.0]), torch.tensor([0.0, 0.1, 1.0]))
    row = metrics.row(sums.over_ranks(ALONE), ("text", "call"))
    assert row["ce_role/text"] == 2.0 and row["ce_role/call"] == 8.0 and row["ce_mean"] == 4.0
    assert row["mse_t/0.00-0.25"] == 3.0 and row["mse_t/0.75-1.00"] == 6.0
    assert "mse_t/0.25-0.50" not in row
    assert (row["ce_tokens"], row["mse_tokens"]) == (3, 3)


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
