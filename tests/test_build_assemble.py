"""Stage 6: accepted tasks in the training layout, whole or not at all, with where everything came from."""

import argparse
import json
import os
import re

import pytest
from build_servers import World, shown_in
from build_tools import bench, make
from datasets_tools import context

from data import check
from data.build import assembly
from data.build.assembly import LICENCES, assemble, items_of, lay_out
from unify_agent.agent.record import png_metadata
from unify_agent.datasets.folder import TrajectorySource
from unify_agent.datasets.trajectory import parse_trajectories

NAMES = ("Kiru", "Kiru Max", "Kirumaru", "月兔灯")


def bytes_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with four assembled tasks, and the training layout of all.

    One took three trials; one had its recaption sent back; one knows no reference, and is taken as if accepted.
    """
    place = tmp_path_factory.mktemp("build")
    world = World(habits={"Kiru Max": {"unlike"}, "Kirumaru": {"direct"}, "月兔灯": {"sloppy"}})
    world.write(place)
    with bench(place, place, world) as at:
        made = {}
        for name in NAMES:
            task = at.task(name)
            made[name] = task, make(at, task)
        for task, each in made.values():
            assemble(task, each.trajectory, each.trials, at.services.folder / "items", at.spec, at.services)
        before = bytes_of(at.services.folder / "items")
        for task, each in made.values():
            assemble(task, each.trajectory, each.trials, at.services.folder / "items", at.spec, at.services)
        assert bytes_of(at.services.folder / "items") == before
        lay_out(at.services.folder, at.spec, ())
        yield at, made


def record_of(folder, category, item):
    path = folder / category / "traj" / f"{item}_trajectory.json"
    return parse_trajectories(path.read_text(encoding="utf-8"), path)[0]


def test_every_sample_of_the_layout_can_be_trained_on(built, capsys):
    at, _ = built
    train = at.services.folder / "train"
    parser = argparse.ArgumentParser()
    check.add_arguments(parser)
    assert check.main(parser.parse_args([str(train), "--json", "--workers", "1"])) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["samples"] == report["usable"] == 4 and not report["unusable"]
    source = TrajectorySource(context(), path=str(train))
    assert sorted(source.ids()) == ["animation/002-p0", "game/001-p0", "mascot/000-p0", "toy/007-p0"]


def test_a_record_says_who_made_it_and_how_every_trial_went(built):
    at, _ = built
    record = record_of(at.services.folder / "train", "game", "001-p0")
    told = record.options
    assert told["spec"] == at.spec.digest and told["entity"] == "001"
    assert told["teacher"]["model"] == "teacher" and told["judge"]["weights"]["identity"] == 0.4
    assert told["painter"] == {"model": "painter", "size": "64x96"}
    assert told["verifier"] == {"model": "verifier", "threshold": 6.0, "against": "seeds"}
    assert [trial["accepted"] for trial in told["trials"]] == [False, False, True]
    assert all(set(trial["scores"]) == {"identity", "scene", "soundness"} for trial in told["trials"])
    assert record.policy == "teacher" and record.stop == "grounded" and record.recaption
    picture = at.services.folder / "train" / "game" / record.generated_image
    assert shown_in(picture.read_bytes())[0] == 1 and png_metadata(picture)["trials"] == told["trials"]


def test_the_recaption_of_the_accepted_trial_is_the_one_in_the_record(built):
    at, _ = built
    record = record_of(at.services.folder / "train", "toy", "007-p0")
    assert record.recaption in record.full_response[-1].response_text
    assert "请把" not in record.full_response[-1].response_text
    assert "请把" in record.turns[-1].model_extra["discarded"][0]["response_text"]


def test_the_licence_of_every_picture_is_listed(built):
    at, _ = built
    train = at.services.folder / "train"
    rows = [json.loads(line) for line in (train / LICENCES).read_text(encoding="utf-8").splitlines()]
    pictures = sorted(path.relative_to(train).as_posix() for path in train.rglob("*.png"))
    assert sorted(row["file"] for row in rows) == pictures and len(rows) == 4 + 3 * 2
    for row in rows:
        assert set(row) == {"file", "role", "item", "title", "licence", "source", "url", "author"}
        if row["role"] == "reference":
            assert row["licence"] == "CC BY 4.0" and row["source"].startswith("https://")
        else:
            assert row["source"] == "drawn by painter"
    references = {row["item"]: row["source"] for row in rows if row["role"] == "reference"}
    assert references["000-p0"].startswith("https://0.example") and references["001-p0"].startswith("https://1.example")


def test_no_record_holds_a_place_of_this_machine(built):
    at, _ = built
    for path in (at.services.folder / "train").rglob("*.json*"):
        text = path.read_text(encoding="utf-8")
        assert str(at.folder) not in text and not re.search(r'"/(?:tmp|home|root|work)/', text), path


def test_files_are_not_stored_twice(built):
    at, _ = built
    item = next((at.services.folder / "items" / "000-p0").rglob("*_0.png"))
    assert os.stat(item).st_nlink == 2


def test_what_the_benchmark_holds_is_left_out(built):
    at, _ = built
    lay_out(at.services.folder, at.spec, {"001-p0"})
    train = at.services.folder / "train"
    assert not (train / "game").exists() and (train / "mascot").exists()
    assert "001-p0" not in (train / LICENCES).read_text()
    assert json.loads((train / "build.json").read_text()) == {
        "spec": at.spec.digest, "version": assembly.__version__, "samples": 3,
    }  # fmt: skip
    lay_out(at.services.folder, at.spec, ())
    assert (train / "game").exists()


def test_a_kill_leaves_the_old_layout_and_no_half_item(built, monkeypatch):
    at, _ = built
    folder = at.services.folder
    before = bytes_of(folder / "train")

    class Killed(BaseException):
        pass

    def die(*args):
        raise Killed

    for victim in ("link_tree", "licences_of", "write_json"):
        with monkeypatch.context() as patch:
            patch.setattr(assembly, victim, die)
            with pytest.raises(Killed):
                lay_out(folder, at.spec, {"000-p0"})
        assert bytes_of(folder / "train") == before
    (folder / "items" / ".000-p9.abc.tmp").mkdir()  # what a kill leaves
    assert items_of(folder) == ["000-p0", "001-p0", "002-p0", "007-p0"]
