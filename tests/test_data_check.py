"""Bad input of every sort: `data check` counts it with a reason, the loader skips the same, and nothing crashes."""

import json
import struct
import sys
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from datasets_tools import add_sample, context, picture, record, rules
from PIL import Image

from data import samples
from data.__main__ import main
from data.check import check, examine
from data.pack import pack
from unify_agent import errors
from unify_agent.datasets.indexed import IndexedSource
from unify_agent.datasets.kinds import kinds, trajectories
from unify_agent.datasets.loader import Loader
from unify_agent.datasets.sources import Mixture
from unify_agent.interleave.packing import TOO_LONG, Limits

ODD = "夜鷹 7, a'b\"c [x](y) #%&;$~`!"


def gigantic() -> bytes:
    """A PNG that claims 60,000 x 60,000 pixels and holds none."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def answer(name: str, text: str, **changes: object) -> dict:
    """A record whose last turn says `text`."""
    made = record(name, **changes)
    made["full_response"][-1]["response_text"] = text
    return made


def bad(root: Path) -> dict[str, str]:
    """Samples that cannot be used; returns the reason of each."""
    birds = root / "birds"
    contents = {
        "recaptionless": (answer("recaptionless", "<think>so</think>"), "no complete recaption in the last turn"),
        "cut": (answer("cut", "<recaption>cut"), "no complete recaption in the last turn"),
        "blank": (answer("blank", "<recaption> \n</recaption>"), "recaption is empty"),
        "nested": (answer("nested", "<think><tool_call></think><recaption>x</recaption>"), "tags are not well-formed"),
        "marker": (answer("marker", "<|im_end|><recaption>x</recaption>"), "tags are not well-formed"),
        "observing": (answer("observing", "<observation><recaption>x</recaption>"), "tags are not well-formed"),
        "wanting": (answer("wanting", "<recaption>x of image_2</recaption>"), "a reference is missing"),
        "listed": (record("listed", 0) | {"references": [{"file": "image_1.png"}]}, "a reference is missing"),
        "half": (answer("half", "<recaption>\ud800</recaption>"), "text is not valid Unicode"),
        "halfname": (record("\ud800", 0), "text is not valid Unicode"),
        "failed": (record("failed", error="search is down"), "the record reports an error"),
        "turnless": (record("turnless", full_response=[]), "no turns"),
    }  # fmt: skip
    reasons = {}
    for name, (content, reason) in contents.items():
        add_sample(birds, name, 1, content=content)
        reasons[name] = reason
    for folder in ("wanting", "listed"):
        for each in (birds / "intermediate" / folder).iterdir():
            each.unlink()
    unclosed = record("unclosed")
    unclosed["full_response"][-1]["input"] = "<observation>\n<tool_call>now\n\nwrite"
    add_sample(birds, "unclosed", content=unclosed)
    reasons["unclosed"] = "tags are not well-formed"
    add_sample(birds, "targetless", target=False)
    reasons["targetless"] = "no target picture"
    for name, data, reason in (
        ("truncated", None, "picture does not decode"),
        ("gigantic", gigantic(), "picture too large"),
        ("textual", b"no picture", "not a picture"),
        ("hollow", b"", "not a picture"),
    ):
        add_sample(birds, name, 1)
        path = birds / f"images/{name}_0.png"
        path.write_bytes(path.read_bytes()[:-2500] if data is None else data)
        reasons[name] = reason
    for name, text in (("torn", '{"ip_index": "torn", '), ("deep", "[" * 200_000), ("none", "[]"), ("null", "null")):
        (birds / f"traj/{name}_trajectory.json").write_text(text)
        reasons[name] = {"none": "trajectory file holds no record", "null": "record does not fit the schema"}.get(
            name, "trajectory file is not JSON"
        )
    return reasons


def odd(root: Path) -> dict[str, str]:
    """Samples that are usable; returns the note on each."""
    birds, notes = root / "birds", {}

    def put(name: str, note: str, made: Image.Image, suffix: str = "png", **options: object) -> None:
        add_sample(birds, name, 1, target=False)
        made.save(birds / f"images/{name}_0.{suffix}", **options)
        notes[name] = note

    exif = Image.Exif()
    exif[0x0112] = 6
    put("cmyk", "picture in CMYK: converted to RGB", picture(0).convert("CMYK"), "jpg")
    put("palette", "picture with a palette: converted to RGB", picture(0).convert("P"))
    put("transparent", "transparent picture: laid on white", picture(0).convert("RGBA"))
    put("turned", "picture with EXIF rotation: taken as it is stored", picture(0), "jpg", exif=exif)
    put("deep16", "picture with more than 8 bits: cut to 8", Image.fromarray(np.zeros((40, 48), np.uint16)))
    moving = {"save_all": True, "append_images": [picture(1)]}
    put("moving", "picture with several frames: the first is taken", picture(0), **moving)
    put("tiny", "small picture: enlarged more than 4 times", picture(0, (5, 40)))
    silent = record("silent")
    silent["full_response"][0]["response_text"] = "I do not know"
    add_sample(birds, "silent", content=silent)
    notes["silent"] = "a turn before the last calls no tool"
    add_sample(birds, ODD)
    broken = record(ODD)
    broken["full_response"][0]["response_text"] = "<tool_call>\n{\n</tool_call>"
    (birds / f"traj/{ODD}_trajectory.json").write_text(json.dumps(broken))
    notes[ODD] = "a tool call does not parse"
    return notes


def key(id: str) -> str:
    """The sample's name in an id, which is its file's where nothing better is known."""
    name = id.rpartition("/")[2].removesuffix("_trajectory.json")
    return name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    add_sample(tmp_path / "root/birds", "good", 2)
    return tmp_path / "root"


@pytest.fixture(params=["folder", "parquet"])
def opened(request: pytest.FixtureRequest, root: Path, tmp_path: Path):
    """Opens what lies in `root`, as a folder or packed."""

    def made() -> IndexedSource:
        if request.param == "folder":
            return trajectories(context(), root)
        pack(root, tmp_path / "packed")
        return trajectories(context(), tmp_path / "packed")

    return made


def test_every_bad_sample_is_counted_and_the_loader_skips_the_same(root: Path, opened) -> None:
    reasons = bad(root)
    source = opened()
    report = check(source, 300, workers=1)
    assert {key(each.id): each.reason for each in report.unusable} == reasons
    assert report.samples == len(reasons) + 1
    loader = Loader(Mixture([source], limit=300), Limits(350, 400, 300), rules(), seed=0, workers=0)
    steps = list(loader.steps(0, loader.plan(0).steps))
    skipped = [each for data in steps for each in data.skipped] + loader.skipped
    assert Counter(each.reason for each in skipped) == Counter(reasons.values())
    trained = [name for data in steps for batch in data.packs for name in batch.sample_ids]
    assert trained == [f"{source.name}:birds/good"]


def test_odd_pictures_and_turns_are_usable_and_noted(root: Path, opened) -> None:
    notes = odd(root)
    source = opened()
    report = check(source, 300, workers=1)
    assert not report.unusable
    found = {key(each): note for note, ids in report.notes.items() for each in ids}
    assert found == notes
    for index in range(len(source)):
        assert source.document(index, np.random.default_rng(0)).slots == source.slots(index)


def test_a_folder_that_allows_malformed_tags_takes_them(root: Path) -> None:
    add_sample(root / "birds", "nested", content=answer("nested", "<think><recaption>x</recaption>"))
    assert len(trajectories(context(), root)) == 1
    assert len(trajectories(context(), root, strict=False)) == 2


def test_files_that_vanish_after_indexing_are_counted(root: Path, opened) -> None:
    for number in range(3):
        add_sample(root / "birds", f"owl{number}", 1)
    source = opened()
    for path in [*root.rglob("owl0_trajectory.json"), *root.rglob("owl1_0.png"), *source.root.glob("traj*.parquet")]:
        path.unlink()
    report = check(source, 300, workers=1)
    reasons = Counter(each.reason for each in report.unusable)
    assert reasons in ({"trajectory file vanished": 1, "no target picture": 1}, {"parquet file vanished": 4})
    loader = Loader(Mixture([source], limit=300), Limits(350, 400, 300), rules(), seed=0, workers=0)
    skipped = [each.reason for data in loader.steps(0, loader.plan(0).steps) for each in data.skipped]
    assert Counter(skipped) == reasons


def test_a_sample_over_the_budget_is_not_usable(root: Path) -> None:
    report = check(trajectories(context(), root), 20, workers=1)
    assert [each.reason for each in report.unusable] == [TOO_LONG]


def test_several_processes_find_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad(root)
    odd(root)
    source = trajectories(context(), root)
    alone = check(source, 300, workers=1).to_json()
    monkeypatch.setattr(samples, "PARALLEL_FROM", 1)
    assert check(source, 300, workers=2).to_json() == alone


def test_tables_are_checked_too(tmp_path: Path) -> None:
    picture(0).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:-2500])
    rows = [{"id": "a", "image": "a.png", "text": "x"}, {"id": "b", "image": "b.png", "text": "x"}, {"id": "c"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = check(kinds()["text_to_image"](context(), tmp_path), 300, workers=1)
    found = {each.id: each.reason for each in report.unusable}
    assert found == {"b": "picture does not decode", "c": "row does not fit the schema"}


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["data", *map(str, words)])
    return errors.run(main)


def test_the_command_says_by_its_exit_code_whether_all_is_usable(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert run(monkeypatch, "check", root) == 0
    assert "1 samples, 1 usable, 0 not" in capsys.readouterr().out
    add_sample(root / "birds", "cut", content=answer("cut", "<recaption>cut"))
    assert run(monkeypatch, "check", root) == 3
    out = capsys.readouterr().out
    assert "no complete recaption in the last turn" in out and "birds/cut" in out
    assert run(monkeypatch, "check", root, "--json") == 3
    told = json.loads(capsys.readouterr().out)
    assert told["usable"] == 1 and told["unusable"]["no complete recaption in the last turn"][0]["id"] == "birds/cut"


def test_a_source_is_checked_with_the_options_of_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "pictures").mkdir()
    picture(0).save(tmp_path / "pictures/a.png")
    path = tmp_path / "rows.jsonl"
    path.write_text('{"image": "a.png", "text": "an owl"}')
    words = ["check", path, "--kind", "text_to_image", "--option"]
    assert run(monkeypatch, *words, f"pictures={tmp_path / 'pictures'}") == 0
    assert run(monkeypatch, *words, "picture=x") == 2
    assert "has no option 'picture', did you mean 'pictures'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("check", "/nowhere"), "/nowhere: no such file or folder"),
        (("check", "{root}", "--kind", "edit"), "--kind edit: no such kind of source, did you mean 'editing'"),
        (("check", "{root}", "--model", "/nowhere"), "/nowhere"),
        (("check", "{root}", "--workers", "0"), "--workers 0: at least 1"),
        (("explain", "{root}", "birds/goood"), "no sample 'birds/goood', did you mean 'birds/good'"),
        (("stats", "{root}", "--max-tokens", "0"), "must be 1 to data.max_tokens"),
        (("unpack", "{root}", "/tmp/x"), "not packed data"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(
    words: tuple, message: str, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert run(monkeypatch, *(word.replace("{root}", str(root)) for word in words)) == 2
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("error")]
    assert message in line


def test_examining_never_writes_and_never_resizes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "resize", lambda *_: pytest.fail("resized"))
    assert examine(trajectories(context(), root), 0).unusable is None
