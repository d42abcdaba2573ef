"""The length index measures what changed, notices every change, and is made once for all ranks."""

import json
import os
from pathlib import Path

import pytest

from unify_agent.datasets import index
from unify_agent.datasets.index import Entry, Measured, build_index
from unify_agent.errors import UserError

LONG_AGO = 1_600_000_000


class Lengths:
    """One sample a file; its length is the file's number, and a picture beside it is looked at."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.measured: list[str] = []

    def __call__(self, name: str) -> Measured:
        self.measured.append(name)
        slots = json.loads((self.root / name).read_text())
        return Measured([Entry(name, 0, slots, slots**2)], [name, f"{name}.png"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    for number in range(4):
        for suffix in ("", ".png"):
            write(folder / f"{number}.json{suffix}", str(10 + number))
    return folder


def write(path: Path, text: str, when: int = LONG_AGO) -> None:
    path.write_text(text)
    os.utime(path, (when, when))


def build(root: Path) -> tuple[dict[str, int], list[str]]:
    """Lengths by file, and which files were measured."""
    measure = Lengths(root)
    names = sorted(path.name for path in root.glob("*.json"))
    found = build_index(root, names, measure, cache=root.parent / "cache" / "lengths.json")
    return {name: entries[0].slots for name, entries in found.items()}, measure.measured


def test_a_second_look_measures_nothing(root: Path) -> None:
    first, measured = build(root)
    assert measured == list(first) and first["2.json"] == 12
    assert build(root) == (first, [])


def test_what_came_went_or_changed_is_measured_and_nothing_else(root: Path) -> None:
    build(root)
    write(root / "1.json", "55", LONG_AGO + 1)
    write(root / "2.json.png", "a larger picture")
    write(root / "9.json", "99")
    (root / "0.json").unlink()
    lengths, measured = build(root)
    assert lengths == {"1.json": 55, "2.json": 12, "3.json": 13, "9.json": 99}
    assert measured == ["1.json", "2.json", "9.json"]
    (root / "3.json.png").unlink()
    assert build(root) == (lengths, ["3.json"])


def test_records_with_a_new_time_and_the_same_content_stay(root: Path) -> None:
    lengths, _ = build(root)
    os.utime(root / "1.json", (LONG_AGO + 50, LONG_AGO + 50))
    assert build(root) == (lengths, [])


def test_a_change_in_the_second_of_measuring_is_noticed_though_size_and_time_are_the_same(root: Path) -> None:
    future = 4_000_000_000
    write(root / "1.json", "11", future)
    build(root)
    write(root / "1.json", "77", future)
    lengths, measured = build(root)
    assert lengths["1.json"] == 77 and measured == ["1.json"]


def test_a_large_file_is_known_by_size_and_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "HASHED_BYTES", 1)
    lengths, _ = build(root)
    assert build(root) == (lengths, [])
    os.utime(root / "1.json", (LONG_AGO + 50, LONG_AGO + 50))
    assert build(root) == (lengths, ["1.json"])


def test_of_two_ranks_one_measures_and_the_other_reads(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other: list[list[str]] = []

    def locked(handle: int, operation: int) -> None:
        """What waiting for the lock means: meanwhile another process has built the index."""
        monkeypatch.setattr(index.fcntl, "flock", lambda handle, operation: None)
        other.append(build(root)[1])

    monkeypatch.setattr(index.fcntl, "flock", locked)
    lengths, measured = build(root)
    assert len(other[0]) == len(lengths) == 4 and measured == []


def test_a_file_system_without_locks_is_no_obstacle(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(index.fcntl, "flock", refuse)
    assert len(build(root)[0]) == 4


def test_many_files_report_their_progress(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(index, "REPORT_SECONDS", 0.0)
    build(root)
    assert capsys.readouterr().err.splitlines()[-1] == "measuring lengths: 4 of 4 files"


def test_a_place_that_takes_no_index_is_one_clear_line(root: Path) -> None:
    (root.parent / "cache").write_text("a file")
    with pytest.raises(UserError, match="cache: no length index can be kept here"):
        build(root)
