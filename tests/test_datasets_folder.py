"""Trajectory folders: every variant of the release is read, and what cannot be used is said."""

import json
from pathlib import Path

import numpy as np
import pytest
from datasets_tools import add_sample, context, grammar, picture, record

from unify_agent.datasets import folder, index
from unify_agent.datasets.folder import TrajectorySource, is_file_name
from unify_agent.datasets.sources import SourceContext, count_reasons
from unify_agent.errors import UserError
from unify_agent.interleave.layout import PRESETS
from unify_agent.interleave.segments import Picture, Text, Unusable
from unify_agent.interleave.visibility import document_spans, visible_pairs


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, references in enumerate((0, 1, 2, 3)):
        add_sample(tmp_path / "root" / "birds", f"owl{number}", references)
    add_sample(tmp_path / "root" / "鸟 類", "夜鷹 7", 2)
    return tmp_path / "root"


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_measured_is_what_is_built(root: Path, preset: str) -> None:
    source = TrajectorySource(context(preset, copies=2), root)
    assert not source.unusable and len(source.by_sample()) == 5
    for number in range(len(source)):
        document = source.document(number, rng())
        assert document.id == source.ids()[number]
        assert document.slots == source.slots(number)
        assert visible_pairs(document_spans(document)) == source.pairs(number)


def test_the_first_two_pictures_by_name_are_references(root: Path) -> None:
    source = TrajectorySource(context(), root)
    counts = {}
    for number, name in enumerate(source.ids()):
        document = source.document(number, rng())
        counts[name] = sum(isinstance(s, Picture) and s.use == "vit" for s in document.segments)
    assert counts == {"birds/owl0": 0, "birds/owl1": 1, "birds/owl2": 2, "birds/owl3": 2, "鸟 類/夜鷹 7": 2}


def test_a_category_and_a_single_file_are_sources_too(root: Path) -> None:
    category = root / "birds"
    assert TrajectorySource(context(), category).ids() == ["owl0", "owl1", "owl2", "owl3"]
    (category / "all.json").write_text(json.dumps([record("owl1"), record("owl2")]))
    listed = TrajectorySource(context(), category / "all.json")
    assert listed.ids() == ["owl1", "owl2"] and listed.name == "all"
    assert listed.document(1, rng()).slots == listed.slots(1)
    (category / "one.json").write_text(json.dumps(record("owl0", 0)))
    assert TrajectorySource(context(), category / "one.json").ids() == ["owl0"]


def test_a_trajectory_file_may_hold_a_list(root: Path) -> None:
    (root / "birds/traj/owl0_trajectory.json").write_text(json.dumps([record("owl0", 0), record("owlx")]))
    source = TrajectorySource(context(), root)
    assert "birds/owl0" in source.ids()
    assert [(each.id, each.reason) for each in source.unusable] == [("birds/owlx", "no target picture")]


def test_the_reduced_log_is_read_and_the_rich_one_where_there_is_no_other(root: Path) -> None:
    turns = record("owl0", 0)["full_response"]
    only_turns = record("owl0", 0, full_response=[], turns=turns)
    (root / "birds/traj/owl0_trajectory.json").write_text(json.dumps(only_turns))
    assert "birds/owl0" in TrajectorySource(context(), root).ids()


def test_nothing_is_dropped_without_a_reason(tmp_path: Path) -> None:
    birds = tmp_path / "birds"
    add_sample(birds, "good")
    add_sample(birds, "untargeted", target=False)
    add_sample(birds, "broken", content="x")
    add_sample(birds, "turnless", content=record("turnless", full_response=[]))
    add_sample(birds, "failed", content=record("failed", error="search is down"))
    add_sample(birds, "escaping", content=record("../../etc"))
    add_sample(birds, "untyped", content=record("untyped", image_prompt=7))
    add_sample(birds, "again", content=record("good"))
    add_sample(birds, "torn")
    (birds / "traj/torn_trajectory.json").write_text('{"ip_index": "torn", ')
    add_sample(birds, "latin")
    (birds / "traj/latin_trajectory.json").write_bytes('{"ip_index": "é"}'.encode("latin-1"))
    add_sample(birds, "unfinished")
    unfinished = record("unfinished")
    unfinished["full_response"][1]["response_text"] = "<recaption>cut"
    (birds / "traj/unfinished_trajectory.json").write_text(json.dumps(unfinished))
    add_sample(birds, "textual")
    (birds / "images/textual_0.png").write_text("no picture")
    source = TrajectorySource(context(), tmp_path)
    assert source.ids() == ["birds/good"]
    assert count_reasons(source.unusable) == {
        "trajectory file is not JSON": 2,
        "record does not fit the schema": 2,
        "another record has the same id": 1,
        "the record reports an error": 1,
        "ip_index is no file name": 1,
        "no complete recaption in the last turn": 1,
        "not a picture": 1,
        "no turns": 1,
        "no target picture": 1,
    }


def test_a_picture_that_breaks_off_is_found_when_it_is_read(root: Path) -> None:
    path = root / "birds/images/owl0_0.png"
    path.write_bytes(path.read_bytes()[:-2000])
    source = TrajectorySource(context(), root)
    with pytest.raises(Unusable, match="picture does not decode"):
        source.document(source.ids().index("birds/owl0"), rng())


def test_files_that_vanish_after_indexing_are_unusable(root: Path) -> None:
    source = TrajectorySource(context(), root)
    (root / "birds/traj/owl0_trajectory.json").unlink()
    (root / "birds/images/owl1_0.png").unlink()
    (root / "birds/traj/owl2_trajectory.json").write_text("[]")
    for number, reason in enumerate(
        ("trajectory file vanished", "no target picture", "trajectory file holds no record")
    ):
        with pytest.raises(Unusable) as caught:
            source.document(number, rng())
        assert caught.value.reason == reason


@pytest.mark.parametrize("made", ["nothing", "empty", "foreign"])
def test_a_folder_without_trajectories_is_an_error_that_names_it(tmp_path: Path, made: str) -> None:
    root = tmp_path / "root"
    if made != "nothing":
        root.mkdir()
    if made == "foreign":
        (root / "notes").mkdir()
        (root / "notes" / "a.json").write_text("{}")
    with pytest.raises(UserError, match="root: no"):
        TrajectorySource(context(), root)


def test_ids_that_the_model_generated_are_used_as_they_are(root: Path) -> None:
    ids = [*grammar().encode("two "), *grammar().encode("parts")]
    for fingerprint in (grammar().fingerprint, "another tokenizer"):
        content = record("owl0", 0)
        content["full_response"][0] |= {"response_ids": ids, "tokenizer": fingerprint}
        (root / "birds/traj/owl0_trajectory.json").write_text(json.dumps(content))
        source = TrajectorySource(context(), root)
        first = next(s for s in source.document(0, rng()).segments if isinstance(s, Text) and s.loss)
        assert (first.ids == tuple(ids)) == (fingerprint == grammar().fingerprint)


def test_a_share_of_pictures_is_drawn_from_the_request(root: Path) -> None:
    source = TrajectorySource(context(), root, request_share=0.5)
    seen = {source.document(0, np.random.default_rng(seed)).segments[-1].sees[0] for seed in range(20)}
    assert seen == {"request", "recaption"}
    never = TrajectorySource(context(), root)
    assert all(
        never.document(0, np.random.default_rng(s)).segments[-1].sees[0] == "recaption" for s in range(5)
    )


def test_the_index_measures_again_only_what_changed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = context(cache=tmp_path / "cache")
    first = TrajectorySource(cached, root)
    opened: list[str] = []
    original = TrajectorySource._measure
    monkeypatch.setattr(
        TrajectorySource, "_measure", lambda self, file: opened.append(file) or original(self, file)
    )
    again = TrajectorySource(cached, root)
    assert not opened and again.fingerprint == first.fingerprint
    picture(5, (64, 64)).save(root / "birds/images/owl1_0.png")
    picture(6).save(root / "birds/intermediate/owl0/image_1.png")
    add_sample(root / "birds", "owl9")
    changed = TrajectorySource(cached, root)
    assert sorted(Path(file).name for file in opened) == [
        "owl0_trajectory.json", "owl1_trajectory.json", "owl9_trajectory.json",
    ]  # fmt: skip
    fresh = TrajectorySource(context(), root)
    assert changed.fingerprint == fresh.fingerprint != first.fingerprint
    assert [changed.slots(i) for i in range(len(changed))] == [fresh.slots(i) for i in range(len(fresh))]


def test_a_spoilt_index_is_built_again(root: Path, tmp_path: Path) -> None:
    cached = context(cache=tmp_path / "cache")
    expected = TrajectorySource(cached, root).fingerprint
    (file,) = (tmp_path / "cache").iterdir()
    for content in ("", "[]", '{"version": 0}'):
        file.write_text(content)
        assert TrajectorySource(cached, root).fingerprint == expected


def test_the_index_is_not_shared_between_tokenizers_presets_or_transforms(root: Path, tmp_path: Path) -> None:
    contexts: list[SourceContext] = [
        context(cache=tmp_path / "cache"),
        context("released", cache=tmp_path / "cache"),
        context(copies=2, cache=tmp_path / "cache"),
    ]
    for each in contexts:
        TrajectorySource(each, root)
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_several_processes_measure_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = TrajectorySource(context(), root)
    monkeypatch.setattr(index, "PARALLEL_FROM", 1)
    monkeypatch.setattr(index.os, "cpu_count", lambda: 2)
    assert TrajectorySource(context(), root).fingerprint == alone.fingerprint


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0b", "x" * 300])
def test_what_could_leave_its_folder_is_no_file_name(name: str) -> None:
    assert not is_file_name(name)
    assert is_file_name("Brass Owl 7, 夜鷹 (v1.2)")


def test_the_suffixes_of_the_release_are_read(tmp_path: Path) -> None:
    for number, suffix in enumerate(folder.SUFFIXES):
        add_sample(tmp_path / "c", f"s{number}", 0, target=False)
        kind = {".jfif": "jpeg", ".jpg": "jpeg"}.get(suffix, suffix[1:])
        picture(number).save(tmp_path / "c" / "images" / f"s{number}_0{suffix}", format=kind)
    assert len(TrajectorySource(context(), tmp_path)) == len(folder.SUFFIXES)
