"""Tables of pairs, conversations, texts and edits: every form is read, and what cannot be used is said."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets_tools import add_sample, context, grammar, picture, rules

from data.pack import pack
from unify_agent.datasets.indexed import IndexedSource
from unify_agent.datasets.kinds import kinds
from unify_agent.datasets.loader import Dropout, Loader
from unify_agent.datasets.sources import Mixture, count_reasons
from unify_agent.errors import UserError
from unify_agent.interleave.grammar import TAGS
from unify_agent.interleave.layout import PRESETS
from unify_agent.interleave.packing import Limits
from unify_agent.interleave.segments import Drawing, Picture, Text, Unusable
from unify_agent.training import plugins
from unify_agent.training.assembly import _source
from unify_agent.training.config import SourceConfig

KINDS = kinds()
ROWS: dict[str, list[dict]] = {
    "text_to_image": [
        {"image": "a.png", "text": "an owl"}, {"image": "b.png", "text": ["a kite", "a red kite at dawn"]}],
    "image_to_text": [
        {"image": "a.png", "text": "an owl at night"},
        {"image": ["a.png", "b.png"], "question": "which <image> is older, <image>?", "answer": "the first"},
        {"image": "b.png", "conversations": [
            {"from": "human", "value": "<image>\nwhat?"}, {"from": "gpt", "value": "a kite"},
            {"from": "human", "value": "why?"}, {"from": "gpt", "value": "it flies"}]},
        {"image": "a.png", "conversations": [
            {"role": "user", "content": "what?"}, {"role": "assistant", "content": "an owl"}]},
    ],
    "text": [{"text": "夜里的猫头鹰"}, {"question": "who?", "answer": "the owl"}],
    "editing": [
        {"source": "a.png", "instruction": "make it red", "target": "b.png"},
        {"source": ["a.png", "b.png"], "instruction": ["join", "join both of them"], "target": "a.png"},
    ],
}  # fmt: skip


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def write(folder: Path, rows: list, name: str = "rows.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    picture(1).save(folder / "a.png")
    picture(2, (64, 40)).save(folder / "b.png")
    lines = [each if isinstance(each, str) else json.dumps(each) for each in rows]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / name


def png(name: str) -> bytes:
    buffer = io.BytesIO()
    picture({"a.png": 1, "b.png": 2}[name], {"a.png": (40, 48), "b.png": (64, 40)}[name]).save(buffer, "PNG")
    return buffer.getvalue()


def told(document) -> list[str]:
    """The segments in words."""
    result = []
    for s in document.segments:
        if isinstance(s, Text):
            result.append(f"{'said' if s.loss else 'text'} {grammar().decode(s.ids)}")
        else:
            result.append(s.use if isinstance(s, Picture) else f"draw {' '.join(s.sees)}")
    return result


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", ROWS)
def test_what_is_measured_is_the_most_that_is_built(tmp_path: Path, kind: str, preset: str) -> None:
    source = KINDS[kind](context(preset, copies=2), write(tmp_path, ROWS[kind]))
    assert isinstance(source, IndexedSource) and not source.unusable and len(source) == len(ROWS[kind])
    for index in range(len(source)):
        built = [source.document(index, rng(seed)).slots for seed in range(8)]
        assert max(built) == source.slots(index) == source.outline(index).slots


def test_segments_stand_as_in_bagels_data(tmp_path: Path) -> None:
    def made(kind: str, number: int, preset: str = "paper") -> list[str]:
        return told(KINDS[kind](context(preset), write(tmp_path / kind, ROWS[kind])).document(number, rng()))

    assert made("text_to_image", 0) == ["text an owl", "draw caption"]
    assert made("image_to_text", 0) == ["vit", "said an owl at night"]
    assert made("image_to_text", 1) == ["text which", "vit", "text is older,", "vit", "text ?", "said the first"]
    assert made("image_to_text", 2) == ["vit", "text what?", "said a kite", "text why?", "said it flies"]
    assert made("image_to_text", 3) == ["vit", "text what?", "said an owl"]
    assert made("text", 0) == ["said 夜里的猫头鹰"] and made("text", 1) == ["text who?", "said the owl"]
    assert made("editing", 0, "released") == [
        "vae", "vit", "text make it red", "draw instruction reference_1.vae reference_1.vit"]  # fmt: skip


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("form", ["bytes", "struct", "path"])
def test_a_parquet_table_gives_the_documents_of_the_lines(tmp_path: Path, kind: str, form: str) -> None:
    def stored(value: object) -> object:
        if isinstance(value, list):
            return [stored(each) for each in value]
        if form == "path" or not isinstance(value, str) or not value.endswith(".png"):
            return value
        return png(value) if form == "bytes" else {"bytes": png(value), "path": value}

    lines = KINDS[kind](context(), write(tmp_path, ROWS[kind]), name="x")
    for number, row in enumerate(ROWS[kind]):  # a row a file: columns have one type
        table = pa.Table.from_pylist([{key: stored(value) for key, value in row.items()}])
        pq.write_table(table, tmp_path / "rows.parquet")
        source = KINDS[kind](context(), tmp_path / "rows.parquet", name="x")
        one, other = source.document(0, rng()), lines.document(number, rng())
        assert told(one) == told(other) and source.slots(0) == lines.slots(number)
        for left, right in zip(one.segments, other.segments, strict=True):
            if not isinstance(left, Text):
                np.testing.assert_array_equal(left.pixels, right.pixels)


def test_tags_in_a_text_are_plain_text_unless_the_source_says_otherwise(tmp_path: Path) -> None:
    path = write(tmp_path, [{"text": "".join(TAGS)}])
    tags = set(grammar().tag_ids.values())
    (plain,) = KINDS["text"](context(), path).document(0, rng()).segments
    (trusted,) = KINDS["text"](context(), path, tags=True).document(0, rng()).segments
    assert not tags & set(plain.ids) and tags == set(trusted.ids)


def test_no_row_is_dropped_without_a_reason(tmp_path: Path) -> None:
    good = {"id": "good", "image": "a.png", "text": "an owl"}
    rows = [
        good, "{", json.dumps(["x"]), "[" * 100_000, {"id": 1, "image": "a.png"}, {"image": 7, "text": "x"},
        {"image": "none.png", "text": "x"}, {"image": "notes.txt", "text": "x"}, {"image": "", "text": "x"},
        {"image": "a\0.png", "text": "x"}, {"image": "a.png", "text": " "}, {"image": "a.png", "text": []},
        '{"image": "a.png", "text": "\\ud800"}', '{"image": "\\ud800", "text": "x"}', good,
    ]  # fmt: skip
    path = write(tmp_path, rows)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "zz.jsonl").write_text("")
    source = KINDS["text_to_image"](context(), tmp_path)
    assert source.ids() == ["good"]
    assert count_reasons(source.unusable) == {
        "row does not fit the schema": 3, "line is not JSON": 2, "picture path is no file name": 3,
        "text is empty": 2, "text is not valid Unicode": 1, "picture missing": 1, "not a picture": 1,
        "another record has the same id": 1, "table is empty": 1,
    }  # fmt: skip
    assert len(source.unusable) == len(rows) and path.name in str(source.unusable)


@pytest.mark.parametrize(
    ("kind", "row", "reason"),
    [
        ("image_to_text", {"image": [], "text": "x"}, "no picture"),
        ("image_to_text", {"image": "a.png"}, "row does not fit the schema"),
        ("image_to_text", {"image": "a.png", "text": "x", "answer": "y"}, "row does not fit the schema"),
        ("image_to_text", {"image": "a.png", "question": "<image><image>", "answer": "x"},
         "pictures and their places differ"),
        ("image_to_text", {"image": "a.png", "conversations": [{"from": "bot", "value": "x"}]}, "unknown speaker"),
        ("image_to_text", {"image": "a.png", "conversations": [{"from": "user", "value": "x"}]}, "nothing to train on"),
        ("text", {"text": 5}, "row does not fit the schema"),
        ("text", {"conversations": []}, "nothing to train on"),
        ("editing", {"source": [], "instruction": "x", "target": "a.png"}, "no source picture"),
        ("editing", {"source": "a.png", "instruction": "x"}, "row does not fit the schema"),
    ],
)  # fmt: skip
def test_each_kind_says_what_is_wrong_with_a_row(tmp_path: Path, kind: str, row: dict, reason: str) -> None:
    assert [each.reason for each in KINDS[kind](context(), write(tmp_path, [row])).unusable] == [reason]


def test_what_changes_after_indexing_is_a_reason(tmp_path: Path) -> None:
    path = write(tmp_path, [{"id": n, "image": "a.png", "text": "an owl"} for n in range(3)])
    source = KINDS["text_to_image"](context(), path)
    lines = path.read_text().splitlines()
    (tmp_path / "a.png").unlink()
    with pytest.raises(Unusable, match="picture missing"):
        source.document(0, rng())
    path.write_text("\n".join([lines[1], lines[0], "x" * (len(lines[2]))]))
    for index, reason in ((0, "changed since it was indexed"), (2, "line is not JSON")):
        with pytest.raises(Unusable, match=reason):
            source.document(index, rng())
    path.write_text("\n")
    with pytest.raises(Unusable, match="changed since it was indexed"):
        source.document(2, rng())
    path.unlink()
    with pytest.raises(Unusable, match="table vanished"):
        source.document(0, rng())


def test_pictures_may_lie_in_another_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "one", ROWS["text_to_image"])
    (tmp_path / "one/a.png").rename(tmp_path / "a.png")
    (tmp_path / "one/b.png").rename(tmp_path / "b.png")
    assert len(KINDS["text_to_image"](context(), path, pictures=tmp_path)) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tag": True}, r"TextToImageSource has no option 'tag', did you mean 'tags'"),
        ({"tags": "yes"}, r"options.tags='yes': TextToImageSource: Input should be a valid boolean"),
        ({"path": 3}, r"options.path=3"),
        ({"path": "/nowhere"}, r"/nowhere: no such file or folder"),
        ({"pictures": "/nowhere"}, r"/nowhere: no such folder of pictures"),
    ],
)
def test_a_wrong_option_is_named_with_the_nearest_real_one(tmp_path: Path, options: dict, message: str) -> None:
    given = {"path": str(write(tmp_path, ROWS["text_to_image"])), **options}
    with pytest.raises(UserError, match=message):
        plugins.call(KINDS["text_to_image"], (context(),), given, "data.sources[0].options")


def test_a_wrong_kind_is_named_with_the_nearest_real_one(tmp_path: Path) -> None:
    config = SourceConfig(kind="text_to_images", path=str(tmp_path))
    with pytest.raises(UserError, match=r"data.sources\[0\].kind=text_to_images: no such kind.*'text_to_image'"):
        _source(config, context(), "data.sources[0]")


def test_places_without_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tables here"):
        KINDS["text"](context(), tmp_path)
    (tmp_path / "x.csv").write_text("x")
    with pytest.raises(UserError, match=r"ends in .jsonl or .parquet"):
        KINDS["text"](context(), tmp_path / "x.csv")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_mixture_of_all_kinds_trains_end_to_end(tmp_path: Path, preset: str) -> None:
    made = []
    for kind, rows in ROWS.items():
        write(tmp_path / kind, rows * 6)
        made.append(_source(SourceConfig(kind, str(tmp_path / kind)), context(preset), "k"))
    for number in range(6):
        add_sample(tmp_path / "agent/birds", f"owl{number}", number % 3)
    pack(tmp_path / "agent", tmp_path / "packed")
    for folder in ("agent", "packed"):
        made.append(_source(SourceConfig(path=str(tmp_path / folder)), context(preset), "k"))
    mixture = Mixture(made, [1, 2, 1, 1, 2, 2], limit=300)
    dropout = Dropout(0.2, 0.2, 0.2)
    loader = Loader(mixture, Limits(350, 400, 300), rules(), seed=1, preset=preset, workers=1, dropout=dropout)
    steps = list(loader.steps(0, loader.plan(0).steps))
    ids = [name for data in steps for batch in data.packs for name in batch.sample_ids]
    assert not loader.skipped and not any(data.skipped for data in steps)
    assert len(ids) == len(set(ids)) == sum(len(pack) for pack in loader.plan(0).packs)
    assert {name.partition(":")[0] for name in ids} == {*ROWS, "agent", "packed"}


def test_a_drawing_can_be_dropped_from_its_caption(tmp_path: Path) -> None:
    from unify_agent.interleave.layout import drop_conditions

    source = KINDS["text_to_image"](context("released"), write(tmp_path, ROWS["text_to_image"]))
    document = drop_conditions(source.document(0, rng()), rng(), "released", text=1, vit=0, vae=0)
    (drawing,) = document.segments
    assert isinstance(drawing, Drawing) and drawing.sees == ()
