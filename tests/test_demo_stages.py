"""`make demo`: stages that run once, go on where they were stopped, and are measured."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eval import stages
from eval.openmoji import demo
from eval.stages import Stages
from unify_agent.errors import UserError

ROOT = Path(__file__).resolve().parents[1]


def run_all(out, first="a", work=None, log=None):
    log = [] if log is None else log
    made = Stages(out, 2, lambda line: None)

    def make(name):
        def build():
            log.append(name)
            (out / name).mkdir(exist_ok=True)

        return build

    made.run("one", "first", [first], out / "one", work or make("one"))
    made.run("two", "second", ["b"], out / "two", make("two"))
    return log


def test_a_finished_stage_is_not_done_again(tmp_path):
    assert run_all(tmp_path) == ["one", "two"]
    assert run_all(tmp_path) == []


def test_other_inputs_begin_a_stage_and_all_later_ones_anew(tmp_path):
    run_all(tmp_path)
    (tmp_path / "two" / "old").write_text("x")
    assert run_all(tmp_path, first="changed") == ["one", "two"]
    assert not (tmp_path / "two" / "old").exists()


def test_a_stage_whose_folder_is_gone_is_done_again(tmp_path):
    run_all(tmp_path)
    shutil.rmtree(tmp_path / "two")
    assert run_all(tmp_path) == ["two"]


def test_an_interrupted_stage_goes_on_in_its_folder_and_its_time_is_kept(tmp_path):
    def stop():
        (tmp_path / "one").mkdir()
        (tmp_path / "one" / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(tmp_path, work=stop)
    before = json.loads((tmp_path / "stages.json").read_text())["one"]
    assert before["done"] is False and before["peak_gib"] > 0
    assert run_all(tmp_path) == ["one", "two"]
    after = json.loads((tmp_path / "stages.json").read_text())["one"]
    assert after["done"] and after["seconds"] >= before["seconds"]
    assert (tmp_path / "one" / "half").exists()


def test_memory_counts_this_process_and_its_children():
    assert 0.01 < stages.tree_gib(os.getpid()) < 64


def test_a_command_that_fails_is_named_and_its_code_is_kept(tmp_path):
    with pytest.raises(UserError, match="this command failed: python -c") as error:
        stages.command(["-c", "raise SystemExit(7)"], tmp_path)
    assert error.value.code == 7


def test_an_interrupted_command_interrupts_the_demo(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        stages.command(["-c", "raise SystemExit(130)"], tmp_path)


def test_a_changed_source_file_changes_the_inputs(tmp_path):
    (tmp_path / "a.py").write_text("1")
    before = stages.sources(tmp_path, "*.py")
    (tmp_path / "a.py").write_text("2")
    assert before != stages.sources(tmp_path, "*.py")


def test_the_fine_tuning_command_composes_to_a_run(tmp_path):
    from unify_agent.training.compose import load_config

    world = tmp_path / "a world"
    arguments = [str(each) for each in demo.train_command(tmp_path / "training", world)]
    config = load_config(arguments[arguments.index("train.py") + 1 :], ROOT / "configs", ROOT / "recipes")
    assert config.output == str(tmp_path / "training")
    assert [source.path for source in config.data.sources] == [str(world / "trajectories")]
    assert config.model.path == str(demo.BASE)


def test_the_summary_has_its_keys_each_with_n():
    figure = {"value": 0.7, "low": 0.6, "high": 0.8, "n": 24}
    keys = ("identity_top1", "tool_calls_valid", "query_exact", "recaption_complete", "scene_correct")
    results = {"variants": {name: dict.fromkeys(keys, figure) for name in ("full", "closed_book")}}
    made = demo.summary(results, 321.04, 2.341)
    assert (made["seconds"], made["peak_rss_gib"]) == (321.0, 2.34)
    assert made["identity_top1"] == {"full": figure, "closed_book": figure}
    assert all(made[key]["n"] == 24 for key in keys[1:])


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_says_in_one_line_that_python_is_too_old(tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    done = subprocess.run(
        ["make", f"PYTHON={fake}", f"VENV={tmp_path / 'venv'}", "demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert errors == [f"error: {fake} is not Python 3.11 or newer; name one that is: make PYTHON=python3.11 demo"]


def test_commands_say_what_is_wrong_in_one_line(tmp_path):
    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "eval", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )

    empty = call("openmoji", "--model", str(tmp_path), "--world", str(tmp_path), "--out", str(tmp_path / "out"))
    assert empty.returncode == 2 and "no world here" in empty.stderr and len(empty.stderr.splitlines()) == 1
    wrong = call("openmoji", "--model", "m", "--world", "w", "--out", "o", "--variants", "ful")
    assert wrong.returncode == 2 and "did you mean 'full'" in wrong.stderr


def test_an_interrupt_waits_until_the_child_has_put_its_work_away(tmp_path):
    child = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: (pathlib.Path('kept').write_text('x'), sys.exit(130)))\n"
        "pathlib.Path('ready').write_text('x')\n"
        "signal.pause()\n"
    )
    (tmp_path / "child.py").write_text(child)
    parent = (
        f"from pathlib import Path\nfrom eval.stages import command\ncommand(['child.py'], Path({str(tmp_path)!r}))\n"
    )
    started = subprocess.Popen([sys.executable, "-c", parent], cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE)
    while not (tmp_path / "ready").exists() and started.poll() is None:
        pass
    os.killpg(started.pid, signal.SIGINT)
    assert b"KeyboardInterrupt" in started.communicate()[1]
    assert (tmp_path / "kept").exists()
