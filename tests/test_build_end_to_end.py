"""From ten names to a training step: one command against services that misbehave, and nothing in between."""

import json
import sys

import pytest
from build_servers import THINGS, World, shown_in
from build_tools import write_spec
from training_ranks import compose
from training_toy import write_start

from data.__main__ import main
from data.build.journal import read_journal
from unify_agent import errors
from unify_agent.datasets.trajectory import parse_trajectories
from unify_agent.training.metrics import read
from unify_agent.training.trainer import fit

HABITS = {
    "Kiru": {"sloppy"}, "Kiru Max": {"unlike"}, "Kirumaru": {"never"}, "Brass Owl of Zell": {"again"},
    "St. John's/Lantern": {"tags"}, "Österhöll Krapfen": {"refused"}, "月兔灯": {"silent"},
    "Tower of Quell": {"moderated"}, "Sarn the Weaver": {"stubborn"},
}  # fmt: skip
DONE = {"000", "001", "003", "004", "005", "007"}
DROPPED = {"002": "verification", "006": "trajectory", "008": "picture", "009": "recaption"}
FAULTS = {2: "429", 9: "empty", 21: "truncated", 34: "malformed", 47: "500", 60: "html", 75: "nochoice", 90: "drop"}


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["python -m data", *map(str, arguments)])
    return errors.run(main)


def entity_of(item):
    return item.rpartition("-p")[0]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The run folder of a build that was run twice, and how many calls each run made."""
    place = tmp_path_factory.mktemp("build")
    world = World(habits=HABITS)
    world.write(place)
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        with (
            world.chat(fault=lambda body, number: FAULTS.get(number)) as chat,
            world.images(plan=["ok", "429", "webpage", "ok", "cut", "url", "empty"]) as images,
        ):
            spec = write_spec(
                place, place, chat.url, images.url, prompts={"per_entity": 1}, verification={"trials": 3},
                benchmark={"share": 0.0}, services={"teacher": {"attempts": 6}, "image": {"attempts": 6}},
            )  # fmt: skip
            for _ in range(2):
                assert run(patch, "build", "--spec", spec) == 0
                calls.append((chat.calls, len(images.asked)))
    (journal,) = (place / "out").rglob("journal.jsonl")
    return journal.parent, calls


def records(out):
    found = {}
    for path in sorted((out / "train").glob("*/traj/*.json")):
        (record,) = parse_trajectories(path.read_text(encoding="utf-8"), path)
        found[record.ip_index] = path.parents[1], record
    return found


def test_every_name_is_done_or_dropped_for_its_reason(built):
    out, _ = built
    tasks = {each.entity: each for each in read_journal(out / "journal.jsonl") if each.kind == "task"}
    assert {entity for entity, each in tasks.items() if each.state == "done"} == DONE
    assert {entity: each.stage for entity, each in tasks.items() if each.state == "dropped"} == DROPPED
    assert set(map(entity_of, records(out))) == DONE


def test_the_same_command_again_asks_nothing(built):
    _, (first, second) = built
    assert first == second and first[0] > 50


def test_nothing_is_mixed_up_between_names_that_begin_alike(built):
    out, _ = built
    for item, (folder, record) in records(out).items():
        thing = THINGS[int(entity_of(item))]
        assert record.ip_name in thing.names and record.ip_name in record.image_prompt
        assert folder.name == thing.category and record.options["entity"] == entity_of(item)
        pictures = [folder / record.generated_image, *(folder / each.file for each in record.references)]
        assert len(pictures) == 3
        assert {shown_in(path.read_bytes())[0] for path in pictures} == {int(entity_of(item))}
        assert record.ip_name in record.recaption


def test_what_comes_out_passes_the_check(built, monkeypatch, capsys):
    out, _ = built
    assert run(monkeypatch, "check", out / "train", "--json", "--workers", "1") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["usable"] == report["samples"] == len(DONE) and report["unusable"] == {}


def test_every_picture_has_its_licence(built):
    out, _ = built
    rows = [json.loads(line) for line in (out / "train" / "licences.jsonl").read_text("utf-8").splitlines()]
    found = sorted(path.relative_to(out / "train").as_posix() for path in (out / "train").rglob("*.png"))
    assert sorted(row["file"] for row in rows) == found and len(found) == 3 * len(DONE)
    assert {row["licence"] for row in rows if row["role"] == "reference"} == {"CC BY 4.0"}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_training_starts_from_it_with_nothing_in_between(built, tmp_path):
    out, _ = built
    settings = [
        each for each in write_start(tmp_path / "start")
        if not each.startswith(("data.sources", "data.expected_tokens", "data.max_tokens"))
    ]  # fmt: skip
    settings += [
        f"data.sources=[{{kind: trajectories, path: '{out / 'train'}'}}]", "data.expected_tokens=6000",
        "data.max_tokens=8192", "data.max_tokens_per_sample=8192", "parallel.threads=1", "steps=1",
        f"output={tmp_path / 'run'}",
    ]  # fmt: skip
    assert fit(compose(settings)) == 0
    (row,) = read(tmp_path / "run" / "metrics.jsonl")
    assert row["samples"] >= 1 and row["ce"] > 0 and row["mse"] > 0 and not row["skipped"]
