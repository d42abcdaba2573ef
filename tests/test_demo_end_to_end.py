"""`make demo` in one piece, with a world of invented shapes and a base that has learned nothing."""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

import openmoji_small as small
import pytest

from data.openmoji.trajectories import write_trajectories
from eval import stages
from eval.openmoji import command, demo, model
from unify_agent.files import write_json
from unify_agent.model.config import TINY, vae_to_json


@pytest.fixture
def short(tmp_path, monkeypatch):
    """The demo with everything made small; returns its folder and the commands that it ran."""
    out, ran = tmp_path / "demo", []
    world = small.build(out / "world", unseen=3)
    write_trajectories(world.folder, 12, workers=1)
    base = small.random_model(tmp_path / "base", world)
    shutil.copytree(tmp_path / "base" / "tokenizer", world.folder / "tokenizer", dirs_exist_ok=True)
    write_json(base / "vae.json", vae_to_json(TINY.vae))
    known = model.policy_of

    def brief(folder):
        policy, words, key = known(folder)
        policy.sampling = replace(policy.sampling, max_new=4)
        policy.settings = replace(policy.settings, steps=3)
        return policy, words, key

    def run(arguments, root):
        train = "train.py" in arguments
        ran.append("train.py" if train else str(arguments[1]))
        if train:
            own = ("parallel.", "data.workers")
            arguments = [each for each in arguments[arguments.index("train.py") :] if not str(each).startswith(own)]
            fresh = [
                "model.init=random",
                "model.arch=tiny",
                "model.path=null",
                f"model.vae={base}",
                f"model.tokenizer={base}",
            ]
            stages.command([*arguments, *fresh, "steps=2", "parallel.threads=1", "data.workers=0"], root)
        elif arguments[1] == "eval":
            parser = argparse.ArgumentParser()
            command.add_arguments(parser)
            command.main(parser.parse_args([str(each) for each in arguments[3:]]))

    monkeypatch.setattr(demo, "BASE", base)
    monkeypatch.setattr(demo, "ENTITIES", 3)
    monkeypatch.setattr(demo, "command", run)
    monkeypatch.setattr(model, "policy_of", brief)
    return out, ran


@pytest.mark.slow
def test_the_demo_goes_from_nothing_to_a_report_and_does_nothing_twice(short, capsys):
    out, ran = short
    demo.run(out)
    assert ran == ["data", "train.py", "eval"]
    summary = json.loads((out / "summary.json").read_text())
    measured = {"identity_top1", "tool_calls_valid", "query_exact", "recaption_complete", "scene_correct"}
    assert set(summary) == {"seconds", "peak_rss_gib"} | measured
    assert summary["identity_top1"]["full"]["n"] == summary["identity_top1"]["closed_book"]["n"] == 3
    assert 0 < summary["peak_rss_gib"] < 16 and summary["seconds"] > 0
    html = (out / "report.html").read_text(encoding="utf-8")
    assert "How it learned" in html and html.count("<article") == 3
    demo.run(out)
    assert ran == ["data", "train.py", "eval"]
    assert "done before" in capsys.readouterr().out
    assert json.loads((out / "summary.json").read_text()) == summary


def test_a_checkout_without_the_base_model_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "BASE", tmp_path / "gone")
    with pytest.raises(demo.UserError, match="the base model is not there"):
        demo.main(argparse.Namespace(out=Path(tmp_path / "out")))
    assert not (tmp_path / "out").exists()
