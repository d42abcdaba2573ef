"""Shards of a build and the merge: one run's training data byte for byte, and all that is refused by name."""

import shutil

import pytest
from build_engine_tools import Toy, build, files_in, toy_spec
from build_servers import World
from build_tools import write_spec
from hypothesis import given
from hypothesis import strategies as st

from data.build import merging
from data.build.contracts import Entity, Failed
from data.build.journal import Journal, Outcome
from unify_agent.files import read_json, write_json

HABITS = {"Kiru": {"sloppy"}, "Kiru Max": {"again"}, "月兔灯": {"never"}, "Tower of Quell": {"moderated"}}


def test_shards_and_their_merge_are_one_run(tmp_path, monkeypatch, capsys):
    world = World(habits=HABITS)
    world.write(tmp_path)
    with world.chat() as chat, world.images() as images:
        specs = {}
        for name in ("whole", "split"):
            (tmp_path / name).mkdir()
            specs[name] = write_spec(
                tmp_path / name, tmp_path, chat.url, images.url, prompts={"per_entity": 1},
                verification={"trials": 2}, benchmark={"share": 0.5},
            )  # fmt: skip
        assert build(monkeypatch, None, specs["whole"]) == 0
        calls = chat.calls + len(images.asked)
        for shard in ("1/2", "2/2"):
            assert build(monkeypatch, None, specs["split"], "--shard", shard) == 0
        assert chat.calls + len(images.asked) == 2 * calls
        for _ in range(2):
            assert build(monkeypatch, None, specs["split"], "merge") == 0
        assert chat.calls + len(images.asked) == 2 * calls
    one, split = (tmp_path / name / "out" for name in specs)
    for folder in ("train", "benchmark"):
        assert files_in(one / folder) == files_in(split / folder) != {}
    count = read_json(one / "train" / "build.json")["samples"]
    assert count >= 2 and f"{count} done in all shards" in capsys.readouterr().out
    statistics = [read_json(each / "quality" / "statistics.json") for each in (one, split)]
    assert statistics[0]["states"] == statistics[1]["states"] and statistics[0]["tasks"] == statistics[1]["tasks"]


@given(st.sets(st.text(min_size=1, max_size=8), max_size=30), st.integers(1, 9))
def test_each_entity_is_in_one_shard_whatever_else_is_listed(names, of):
    entities = [Entity(name, {"en": name}, "toy") for name in sorted(names)]
    parts = [merging.part_of(entities, (number, of)) for number in range(1, of + 1)]
    assert sorted(each.id for part in parts for each in part) == sorted(names)
    for number, part in enumerate(parts, 1):
        assert all(merging.part_of([each], (number, of)) == [each] for each in part)
    assert merging.part_of(entities, None) == entities


@pytest.fixture
def split(tmp_path, monkeypatch):
    """A build in two shards that are done: its toy and its spec."""
    toy, spec = Toy(), toy_spec(tmp_path)
    toy.write(tmp_path, *(f"e{number}" for number in range(6)))
    for shard in ("1/2", "2/2"):
        assert build(monkeypatch, toy, spec, "--shard", shard) == 0
    return toy, spec, tmp_path / "out"


def refused(monkeypatch, capsys, toy, spec, *arguments):
    capsys.readouterr()
    assert build(monkeypatch, toy, spec, *arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_the_work_of_two_shards_is_that_of_one_run(split, tmp_path, monkeypatch):
    toy, spec, out = split
    assert set(toy.made.values()) == {1} and len(toy.of("assemble")) == 12
    assert build(monkeypatch, toy, spec, "merge") == 0
    one = Toy()
    (tmp_path / "one").mkdir()
    one.write(tmp_path / "one", *(f"e{number}" for number in range(6)))
    assert build(monkeypatch, one, toy_spec(tmp_path / "one")) == 0
    assert files_in(out / "train") == files_in(tmp_path / "one" / "out" / "train")
    assert files_in(out / "pictures") == files_in(tmp_path / "one" / "out" / "pictures")


def test_what_the_list_no_longer_has_is_not_merged(split, tmp_path, monkeypatch):
    toy, spec, out = split
    assert build(monkeypatch, toy, spec, "merge") == 0
    toy.write(tmp_path, "e0", "e1=changed", "e2", "e3")
    for shard in ("1/2", "2/2"):
        assert build(monkeypatch, toy, spec, "--shard", shard) == 0
    assert build(monkeypatch, toy, spec, "merge") == 0
    found = files_in(out / "train")
    assert sorted(found) == [f"e{number}-p{k}" for number in range(4) for k in (1, 2)]
    assert found["e1-p1"].endswith(b"changed")


def test_a_shard_that_is_missing_or_of_another_split_is_named(split, monkeypatch, capsys):
    toy, spec, out = split
    shutil.rmtree(out / "shards" / "1-of-2")
    assert "shard 1/2 is missing; run it first" in refused(monkeypatch, capsys, toy, spec, "merge")
    assert build(monkeypatch, toy, spec, "merge", "--partial") == 0
    assert "2-of-2: a shard of 2, not of 3" in refused(monkeypatch, capsys, toy, spec, "--shard", "1/3")
    shutil.copytree(out / "shards" / "2-of-2", out / "shards" / "1-of-3")
    assert "not a shard of" in refused(monkeypatch, capsys, toy, spec, "merge")
    shutil.rmtree(out / "shards")
    assert "no shards to merge" in refused(monkeypatch, capsys, toy, spec, "merge")


def test_a_shard_that_is_not_done_is_named(split, tmp_path, monkeypatch, capsys):
    toy, spec, out = split
    toy.faults["draw", "e0-p1"] = Failed("picture", "no")
    spec = toy_spec(tmp_path, verification={"threshold": 7.0})
    assert "made from another spec than" in refused(monkeypatch, capsys, toy, spec, "merge")
    codes = [build(monkeypatch, toy, spec, "--shard", shard) for shard in ("1/2", "2/2")]
    assert sorted(codes) == [0, 3]
    number = codes.index(3) + 1
    told = refused(monkeypatch, capsys, toy, spec, "merge")
    assert f"shard {number}/2 is not done (unfinished, 1 items failed or wait)" in told and "--partial" in told
    assert build(monkeypatch, toy, spec, "merge", "--partial") == 0
    assert len(files_in(out / "train")) == 11


def test_a_shard_that_runs_or_was_killed_is_named(split, monkeypatch, capsys):
    toy, spec, out = split
    shard = out / "shards" / "2-of-2"
    write_json(shard / "status.json", read_json(shard / "status.json") | {"state": "running"})
    with Journal(shard / "journal.jsonl"):
        assert "shard 2/2 is still running; wait for it" in refused(monkeypatch, capsys, toy, spec, "merge")
        assert "still running" in refused(monkeypatch, capsys, toy, spec, "merge", "--partial")
    assert "shard 2/2 is not done (killed" in refused(monkeypatch, capsys, toy, spec, "merge")
    assert build(monkeypatch, toy, spec, "--shard", "2/2") == 0 == build(monkeypatch, toy, spec, "merge")


def test_an_item_in_two_shards_is_named(split, monkeypatch, capsys):
    toy, spec, out = split
    for shard in ("1-of-2", "2-of-2"):
        with Journal(out / "shards" / shard / "journal.jsonl") as journal:
            journal.append(Outcome("task", "x-p1", "done"))
    told = refused(monkeypatch, capsys, toy, spec, "merge")
    assert "2-of-2: task x-p1 is in 1-of-2, too" in told


def test_one_folder_holds_shards_or_a_whole_build(split, tmp_path, monkeypatch, capsys):
    toy, spec, _out = split
    assert "holds the shards of a build" in refused(monkeypatch, capsys, toy, spec)
    assert build(monkeypatch, toy, spec, "merge") == 0
    assert "holds the shards of a build" in refused(monkeypatch, capsys, toy, spec)
    assert build(monkeypatch, toy, spec, "--shard", "1/2") == 0
    spec = toy_spec(tmp_path, out="other")
    for pricing in (["--dry-run"], ["--dry-run", "--shard", "1/8"]):
        assert build(monkeypatch, toy, spec, *pricing) == 0
    assert build(monkeypatch, toy, spec) == 0
    assert "holds a build that is not split" in refused(monkeypatch, capsys, toy, spec, "--shard", "1/2")
