"""Packing trajectories into parquet and back: not a byte is lost, and the samples are the same."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets_tools import add_sample, context, picture, record
from hypothesis import given, settings
from hypothesis import strategies as st

from data import pack as packing
from data.pack import pack
from data.unpack import unpack
from unify_agent.datasets.folder import TrajectorySource
from unify_agent.datasets.kinds import trajectories
from unify_agent.datasets.parquet import PackedTrajectorySource, shards
from unify_agent.datasets.records import split_records
from unify_agent.errors import UserError
from unify_agent.interleave.segments import Document, Picture, Text, Unusable

SHARD = 16_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for number in range(4):
        add_sample(root / "birds", f"owl{number}", number)
    add_sample(root / "鸟 類", "夜鷹 7", 2)
    birds = root / "birds"
    (birds / "intermediate/owl2/tmp").mkdir()
    picture(7).save(birds / "intermediate/owl2/tmp/candidate_1.png")
    picture(8).save(birds / "images/owl2_1.png")
    (root / "summary.jsonl").write_text("{}\n")
    (root / "empty").mkdir()
    several = json.dumps([record("owl3"), record("owlx")], indent=3)
    (birds / "traj/several_trajectory.json").write_bytes(f"\ufeff \n{several}\n\n".encode())
    (birds / "traj/torn_trajectory.json").write_text('{"ip_index": "torn", ')
    (birds / "traj/none_trajectory.json").write_text("[]")
    add_sample(birds, "textual", 0)
    (birds / "images/textual_0.png").write_text("no picture")
    add_sample(birds, "escaping", content=record("../../etc"))
    add_sample(birds, "targetless", 1, target=False)
    return root


def contents(root: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


def same(one: Document, other: Document) -> bool:
    def parts(document: Document) -> list:
        return [
            (s.ids, s.loss, s.role, s.spans) if isinstance(s, Text) else s.pixels.tolist()
            for s in document.segments
        ]

    kinds = [[s.use for s in d.segments if isinstance(s, Picture)] for d in (one, other)]
    return one.id == other.id and parts(one) == parts(other) and kinds[0] == kinds[1]


def test_what_is_unpacked_is_what_was_packed(root: Path, tmp_path: Path) -> None:
    counts = pack(root, tmp_path / "packed", SHARD)
    assert counts["records"] == 10 and counts["unreadable trajectory files"] == 2 and counts["shards"] > 3
    unpack(tmp_path / "packed", tmp_path / "again")
    assert contents(tmp_path / "again") == contents(root)


def test_packed_samples_are_those_of_the_folder(root: Path, tmp_path: Path) -> None:
    pack(root, tmp_path / "packed", SHARD)
    folder = TrajectorySource(context(), root, request_share=0.5)
    packed = trajectories(context(), tmp_path / "packed", request_share=0.5)
    assert isinstance(packed, PackedTrajectorySource)
    assert packed.ids() == folder.ids() and packed.fingerprint == folder.fingerprint
    assert [(u.id, u.reason) for u in packed.unusable] == [(u.id, u.reason) for u in folder.unusable]
    for index in range(len(folder)):
        assert packed.slots(index) == folder.slots(index) and packed.pairs(index) == folder.pairs(index)
        one, other = (s.document(index, np.random.default_rng(index)) for s in (folder, packed))
        assert same(one, other) and packed.outline(index).slots == packed.slots(index)


def test_datasets_reads_the_shards_and_sees_pictures(root: Path, tmp_path: Path) -> None:
    from datasets import Dataset

    pack(root, tmp_path / "packed", SHARD)
    files = [str(tmp_path / "packed" / name) for name in shards(tmp_path / "packed")["trajectories"]]
    read = Dataset.from_parquet(files, cache_dir=str(tmp_path / "cache"))
    owl = read[list(read["id"]).index("birds/owl2")]
    assert owl["target"].size == (48, 40) and len(owl["references"]) == 2
    assert json.loads(owl["record"])["ip_index"] == "owl2"


def test_an_interrupted_packing_goes_on_and_ends_the_same(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(root, tmp_path / "whole", SHARD)
    original, written = packing._write, []

    def failing(path: Path, *args: object) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path)
        original(path, *args)

    monkeypatch.setattr(packing, "_write", failing)
    with pytest.raises(KeyboardInterrupt):
        pack(root, tmp_path / "packed", SHARD)
    with pytest.raises(UserError, match=r"of \d+ shards are missing .* run the same"):
        trajectories(context(), tmp_path / "packed")
    monkeypatch.undo()
    times = {path: path.stat().st_mtime_ns for path in written}
    pack(root, tmp_path / "packed", SHARD)
    assert {path: path.stat().st_mtime_ns for path in written} == times
    assert contents(tmp_path / "packed") == contents(tmp_path / "whole")


def test_an_interrupted_unpacking_goes_on_and_overwrites_nothing(root: Path, tmp_path: Path) -> None:
    pack(root, tmp_path / "packed", SHARD)
    unpack(tmp_path / "packed", tmp_path / "again")
    (tmp_path / "again/summary.jsonl").unlink()
    unpack(tmp_path / "packed", tmp_path / "again")
    assert contents(tmp_path / "again") == contents(root)
    (tmp_path / "again/summary.jsonl").write_text("mine")
    with pytest.raises(UserError, match="another content"):
        unpack(tmp_path / "packed", tmp_path / "again")


def test_a_changed_folder_is_not_mixed_with_what_was_packed(root: Path, tmp_path: Path) -> None:
    pack(root, tmp_path / "packed", SHARD)
    add_sample(root / "birds", "late")
    with pytest.raises(UserError, match="before it changed"):
        pack(root, tmp_path / "packed", SHARD)


def test_packing_into_the_wrong_place_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lies inside"):
        pack(root, root / "packed")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("x")
    with pytest.raises(UserError, match="holds no shards"):
        pack(root, tmp_path / "other")
    with pytest.raises(UserError, match="no trajectories here"):
        pack(tmp_path / "other", tmp_path / "packed")
    with pytest.raises(UserError, match="not packed data"):
        unpack(tmp_path / "other", tmp_path / "again")


def test_a_damaged_or_vanished_shard_is_a_reason(root: Path, tmp_path: Path) -> None:
    pack(root, tmp_path / "packed", SHARD)
    packed = trajectories(context(), tmp_path / "packed")
    file, _ = packed.samples[0]
    path = tmp_path / "packed" / file
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(Unusable, match="not a parquet file"):
        packed.document(0, np.random.default_rng(0))
    path.unlink()
    with pytest.raises(Unusable, match="parquet file vanished"):
        packed.document(0, np.random.default_rng(0))


def test_a_shard_that_is_spoilt_before_indexing_is_a_reason_and_the_others_are_read(root: Path, tmp_path: Path) -> None:
    pack(root, tmp_path / "packed", SHARD)
    whole = trajectories(context(), tmp_path / "packed")
    first = shards(tmp_path / "packed")["trajectories"][0]
    lost = sum(file == first for file, _ in whole.samples)
    (tmp_path / "packed" / first).write_bytes(b"PAR1 spoilt PAR1")
    spoilt = trajectories(context(), tmp_path / "packed")
    assert len(spoilt) == len(whole) - lost and lost
    assert [each.reason for each in spoilt.unusable if each.id == first] == ["not a parquet file"]
    pq.write_table(pa.table({"id": ["x"]}), tmp_path / "foreign.parquet")
    (foreign,) = trajectories(context(), tmp_path / "foreign.parquet").unusable
    assert foreign.reason == "not packed trajectories" and "no column record" in foreign.detail


blanks = st.text(st.sampled_from(" \n\t\r"), max_size=3)
values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(
    inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=6)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.lists(values, min_size=1, max_size=4), blanks, blanks, st.booleans(), st.booleans())
def test_records_split_from_a_file_join_to_it(
    content: list, left: str, right: str, mark: bool, ascii: bool
) -> None:
    one = json.dumps(content[0], ensure_ascii=ascii)
    several = "[" + left + f"{right},{left}".join(json.dumps(each, indent=2) for each in content) + right + "]"
    for text in (several, one if not isinstance(content[0], list) else "{}"):
        whole = ("\ufeff" if mark else "") + left + text + right
        pieces = split_records(whole)
        assert "".join("".join(piece) for piece in pieces) == whole
    assert [json.loads(piece[1]) for piece in split_records(several)] == content
