"""A step that must not be taken stops the run: why, which samples, and what is kept."""

import json
import math
from dataclasses import replace

import pytest
import torch

from tests.training_ranks import compose
from tests.training_toy import write_start
from unify_agent.errors import STOPPED, UserError
from unify_agent.training import trainer
from unify_agent.training.assembly import assemble
from unify_agent.training.checkpoint import complete, shapes
from unify_agent.training.checkpoint import read as read_tensors
from unify_agent.training.config import Config
from unify_agent.training.guards import Fault, Guards, PackLoss
from unify_agent.training.metrics import read
from unify_agent.training.parallel import World

ALONE = World(0, 1, torch.device("cpu"), None)
PACKS = [PackLoss(["good:1"], 0.4, 0.1), PackLoss(["bad:1", "bad:2"], 0.9, 0.3)]


def guards(tmp_path, **settings) -> Guards:
    config = Config(output=str(tmp_path))
    config.guards = replace(config.guards, **settings)
    return Guards(config, 1000, ALONE)


def fault_file(tmp_path, step: int) -> dict:
    return json.loads((tmp_path / "faults" / f"step_{step:07d}.json").read_text())


def test_a_first_cross_entropy_near_guessing_stops_a_run_from_stored_weights(tmp_path):
    guess = math.log(1000)
    with pytest.raises(Fault, match=r"step 1: the first cross-entropy 6.8\d is near ln\(vocabulary\) = 6.91") as caught:
        guards(tmp_path).check_loss(1, 7.0, 0.99 * guess, PACKS)
    assert caught.value.code == STOPPED and "\n" not in str(caught.value)
    guards(tmp_path, first_ce=None).check_loss(1, 7.0, 0.99 * guess, PACKS)
    guards(tmp_path).check_loss(1, 7.0, 0.8 * guess, PACKS)
    guards(tmp_path).check_loss(2, 7.0, 0.99 * guess, PACKS)
    guards(tmp_path).check_loss(1, 7.0, None, PACKS)
    scratch = guards(tmp_path)
    scratch.config.model.init = "random"
    scratch.check_loss(1, 7.0, 0.99 * guess, PACKS)


def test_a_loss_far_above_the_usual_one_stops_the_run_and_names_the_pack(tmp_path):
    watched = guards(tmp_path, spike=3.0, spike_steps=10)

    def taken(step: int, loss: float) -> None:
        watched.check_loss(step, loss, None, PACKS)
        watched.check_norm(step, loss, 1.0, PACKS)

    taken(1, 1.0)
    taken(2, 29.0)  # one step cannot tell what is usual
    for step in range(3, 14):
        taken(step, 1.0)
    taken(14, 2.9)
    with pytest.raises(Fault, match=r"3.1 is 3.1 times the median 1 of the last 10 steps.*pack at fault: bad:1, bad:2"):
        watched.check_loss(15, 3.1, None, PACKS)
    assert [each["at_fault"] for each in fault_file(tmp_path, 15)["packs"]] == [False, True]
    guards(tmp_path, spike=None).check_loss(15, 1e9, None, PACKS)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan)])
def test_what_is_not_finite_always_stops_the_run(tmp_path, loss, norm):
    packs = [replace(PACKS[0], mse=math.nan), PACKS[1]] if not math.isfinite(loss) else PACKS
    guilty = packs[0] if not math.isfinite(loss) else packs[1]
    watched = guards(tmp_path, spike=None, first_ce=None)

    def taken() -> None:
        watched.check_loss(7, loss, None, packs)
        watched.check_norm(7, loss, norm, packs)

    with pytest.raises(Fault, match=rf"not finite; no weight was changed; .*at fault: {guilty.ids[0]}"):
        taken()
    written = fault_file(tmp_path, 7)
    assert written["step"] == 7 and "not finite" in written["reason"]
    assert [each["ids"] for each in written["packs"] if each["at_fault"]] == [guilty.ids]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return [*write_start(tmp_path_factory.mktemp("start")), "steps=8", "checkpoint.every=5", "checkpoint.keep_last=1"]


def test_a_stopped_run_keeps_the_state_before_and_goes_on_without_the_sample(base, tmp_path, monkeypatch, capsys):
    def poisoned(config, world):
        """From the second step on, whatever pack holds sample s5 has latents that are not finite."""
        parts = assemble(config, world)
        encode = parts.encode

        def latents(batch):
            late = bool(read(tmp_path / "metrics.jsonl"))
            return encode(batch) * (math.nan if late and "toy:s5" in batch.sample_ids else 1.0)

        parts.encode = latents
        return parts

    monkeypatch.setattr(trainer, "assemble", poisoned)
    config = compose([*base, f"output={tmp_path}"])
    with pytest.raises(Fault, match=r"step \d: .*toy:s5.*data.leave_out"):
        trainer.fit(config)
    found = [each.step for each in complete(tmp_path / "checkpoints")]
    kept = found[-1]
    assert kept == len(read(tmp_path / "metrics.jsonl")) >= 1
    assert kept < 5 or 5 in found  # the state that is kept takes no checkpoint's place
    assert f"the state after step {kept} is kept" in capsys.readouterr().out
    with pytest.raises(Fault, match=rf"step {kept + 1}: "):
        trainer.fit(config)
    assert (tmp_path / "summary.md").exists()
    config.data.leave_out = ["toy:s5"]
    assert trainer.fit(config) == 0
    rows = read(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert sum(row.get("skipped/left out", 0) for row in rows) >= 1
    assert "skipped toy:s5: left out" in capsys.readouterr().out
    assert "left out" in (tmp_path / "summary.md").read_text()


def test_a_spike_changes_no_weight_takes_no_checkpoints_place_and_is_one_in_the_next_life_too(
    base, tmp_path, monkeypatch
):
    def loud(config, world):
        """From the sixth step on the latents are thirty times too large."""
        parts = assemble(config, world)
        encode, log = parts.encode, tmp_path / "run" / "metrics.jsonl"
        parts.encode = lambda batch: encode(batch) * (30.0 if len(read(log)) >= 5 else 1.0)
        return parts

    settings = [*base, "checkpoint.every=3", "guards.spike=3", "guards.spike_steps=5", "optim.schedule=constant"]
    assert trainer.fit(compose([*settings, f"output={tmp_path / 'calm'}", "steps=5"])) == 0
    monkeypatch.setattr(trainer, "assemble", loud)
    for _ in range(2):
        with pytest.raises(Fault, match=r"step 6: loss .* times the median .* of the last 5 steps"):
            trainer.fit(compose([*settings, f"output={tmp_path / 'run'}"]))
        found = complete(tmp_path / "run" / "checkpoints")
        assert [each.step for each in found] == [3, 5]
    calm = complete(tmp_path / "calm" / "checkpoints")[-1]
    names = [name for name in shapes(calm) if not name.startswith("random/")]
    expected, kept = read_tensors(calm, names), read_tensors(found[-1], names)
    assert calm.step == 5 and all(torch.equal(kept[name], expected[name]) for name in names)


def test_an_unknown_sample_to_leave_out_is_refused(base, tmp_path):
    with pytest.raises(UserError, match=r"data.leave_out: there is no sample toy:s55.*'toy:s5'"):
        trainer.fit(compose([*base, f"output={tmp_path}", "data.leave_out=['toy:s55']"]))
