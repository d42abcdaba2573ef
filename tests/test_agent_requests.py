"""Requests: every form of file, every id, one line for what is wrong with one of them."""

import json

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from unify_agent.agent.record import is_safe_name
from unify_agent.agent.requests import collect, file_name_of, language_of, read_prompts
from unify_agent.datasets.records import is_file_name
from unify_agent.errors import UserError

IP_DATA = {"x1": {"image_prompt": "Draw it.", "ip_name": "It", "language": "en", "source_category": "toy"},
           "x2": json.dumps({"image_prompt": "画它。", "ip_name_zh": "它", "country": "中国"})}  # fmt: skip
FILES = {
    "a.json": json.dumps(IP_DATA),
    "b.json": json.dumps(["Draw it.", {"prompt": "画它。", "id": "that"}]),
    "one.json": json.dumps({"image_prompt": "Draw it.", "id": 3}),
    "c.jsonl": '\ufeff"Draw it."\n\n{"prompt": "画它。", "id": 0}\n',
    "d.txt": "Draw it.\n画它。\n",
    "bom.csv": '\ufeffimage_prompt,id\r\n"Draw it.",1\r\n画它。,2\r\n',
    "bom.json": "\ufeff" + json.dumps(["Draw it.", "画它。"]),
    "bom.txt": "\ufeffDraw it.\r\n画它。\r\n",
    "e.csv": 'id,prompt,language\n1,"Draw it.",\n0,画它。,zh\n,,\n',
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_prompts_are_read_in_every_form(tmp_path, name):
    (tmp_path / name).write_text(FILES[name], encoding="utf-8")
    asked = read_prompts(tmp_path / name)
    assert not asked.refused
    found = asked.requests
    assert [(each.prompt, each.language) for each in found] == [("Draw it.", "en"), ("画它。", "zh")][: len(found)]
    assert len(found) == (1 if name == "one.json" else 2)
    if name == "a.json":
        assert (found[0].id, found[0].name, found[0].category) == ("x1", "It", "toy")
        assert (found[1].name, found[1].country) == ("它", "中国")
    if name in ("c.jsonl", "e.csv"):
        assert found[1].id == "0"


def test_parquet_is_read_with_its_nulls_and_numbers(tmp_path):
    rows = {"id": [7, 8, None], "image_prompt": ["Draw it.", None, "画它。"], "language": ["en", None, None]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    asked = read_prompts(tmp_path / "a.parquet")
    assert [each.prompt for each in asked.requests] == ["Draw it.", "画它。"] and asked.requests[0].id.startswith("7")
    assert [each.reason.partition(";")[0] for each in asked.refused] == ["the prompt is empty"]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("", "the prompt is empty"),
        ({"prompt": 3}, "the prompt is empty"),
        ({"image_prompt": None}, "the prompt is empty"),
        ("x" * 5000, "the prompt has 5000 characters"),
        ({"prompt": "x", "language": "xx"}, "choose en or zh"),
        ({"prompt": "x", "language": 3}, "language must be a text"),
        ({"prompt": "x", "id": ["a"]}, "the id must be a text or a number"),
        ({"prompt": "x", "id": True}, "the id must be a text or a number"),
        ({"prompt": "half \ud800"}, "not valid Unicode"),
        (3, "a text or an object"),
        ({"prompt": "x", "references": 3}, "a list of files"),
        ({"prompt": "x", "references": ["no.png"]}, "reference"),
        ({"prompt": "x", "references": ["a", "b", "c"]}, "at most 2"),
    ],
)
def test_a_bad_request_is_refused_with_its_place_and_the_others_stay(tmp_path, record, said):
    asked = collect([("f:1", "Draw it.", None), ("f:2", record, None), ("f:3", "Draw that.", None)], tmp_path)
    assert [each.prompt for each in asked.requests] == ["Draw it.", "Draw that."]
    (refused,) = asked.refused
    assert refused.where == "f:2" and said in refused.reason and "\n" not in refused.reason


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "{", "does not parse"),
        ("a.json", "[" * 100_000, "does not parse"),
        ("a.json", "[" + "1" * 5000 + "]", "does not parse"),
        ("a.json", "[]", "holds no prompt"),
        ("a.json", "3", "a list or an object"),
        ("a.txt", "", "holds no prompt"),
        ("a.csv", "a,b\n1,2\n", "no column image_prompt or prompt; there are: a, b"),
        ("a.csv", "", "there are: none"),
        ("a.parquet", "no parquet", "not readable as parquet"),
        ("a.xlsx", "x", "a file of prompts is one of"),
    ],
)
def test_a_file_that_is_none_is_refused_as_a_whole(tmp_path, name, text, said):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        read_prompts(tmp_path / name)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UserError, match="not UTF-8"):
        read_prompts(tmp_path / "a.txt")


def test_lines_that_do_not_parse_are_refused_alone(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "x"}\n{\n' + "[" * 100_000 + '\n{"prompt": "y"}\n')
    asked = read_prompts(tmp_path / "a.jsonl")
    assert len(asked.requests) == 2 and [each.where[-2:] for each in asked.refused] == [":2", ":3"]


def test_of_several_with_one_id_the_first_counts(tmp_path):
    entries = [(f"f:{n}", {"prompt": f"Draw {n}.", "id": each}, None) for n, each in enumerate(["a", "b", "a"], 1)]
    asked = collect(entries, tmp_path)
    assert [each.id for each in asked.requests] == ["a", "b"]
    assert asked.refused[0].reason.startswith("the id 'a' occurs before, at f:1")


def test_a_key_that_occurs_twice_in_an_object_of_requests_loses_none(tmp_path):
    (tmp_path / "a.json").write_text('{"a": "Draw x.", "b": {"prompt": "Draw y."}, "a": "Draw z."}')
    asked = read_prompts(tmp_path / "a.json")
    assert [each.prompt for each in asked.requests] == ["Draw x.", "Draw y."]
    assert "the id 'a' occurs before" in asked.refused[0].reason


def test_no_category_is_that_of_refused_requests(tmp_path):
    asked = collect([("f:1", {"prompt": "Draw x.", "category": "refused"}, None)], tmp_path)
    assert asked.requests[0].category == "refused_"


def test_references_of_a_request_are_found_beside_its_file(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "r.png")
    (tmp_path / "a.json").write_text(json.dumps([{"prompt": "x", "references": ["r.png"]}]))
    assert read_prompts(tmp_path / "a.json").requests[0].references == (tmp_path / "r.png",)


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=200))
def test_any_id_becomes_a_file_name_and_a_good_one_stays(text):
    name = file_name_of(text.encode("utf-8", "replace").decode())
    assert is_safe_name(name) and is_file_name(name)
    assert file_name_of(name) == name


def test_ids_that_look_alike_stay_apart():
    names = [file_name_of(each) for each in ("a/b", "a_b", "a b", "../a_b", ".", "..", "0", "00", "", "猫/狗", "-")]
    assert len(set(names)) == len(names)
    assert names[1] == "a_b" and names[6] == "0"


def test_shards_are_disjoint_and_together_all(tmp_path):
    asked = collect([(f"f:{n}", f"Draw {n}." if n % 4 else "", None) for n in range(23)], tmp_path)
    parts = [asked.shard(k, 5) for k in range(1, 6)]
    assert sorted(each.id for part in parts for each in part.requests) == sorted(each.id for each in asked.requests)
    assert sum(len(part.refused) for part in parts) == len(asked.refused) == 6


@pytest.mark.parametrize(
    ("text", "language"), [("Draw it.", "en"), ("画 it", "zh"), ("猫を描く", "en"), ("고양이", "en"), ("", "en")]
)
def test_the_language_of_a_request(text, language):
    assert language_of(text) == language
