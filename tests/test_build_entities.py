"""The list of a data build: what is taken, what is refused by name, and that nothing is mixed up."""

import json
import math
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from build_lists import HEADER, csv_list, picture, spec
from hypothesis import given
from hypothesis import strategies as st

from data.build.contracts import CATEGORIES
from data.build.entities import read_entities
from data.build.listing import ALIASES, category_of, read_list
from data.build.lookalike import Looks
from data.build.names import guess_language, in_language, normalised, own_language, safe_id
from data.build.table import columns_of
from eval.benchmarks import factip
from unify_agent.agent.record import is_safe_name
from unify_agent.errors import UserError

OWL = ("007", "铜鸮", "Brass Owl", "UK", "mascot", "of a post office")


def read(path):
    return read_list(path, Looks())


def told_of(listed):
    """What is said of each row that was refused, by its id."""
    return {re.search("id '(.*?)'", why.detail)[1]: why.detail for _, why in listed.refused}


def test_the_releases_columns_are_read_as_they_are(tmp_path):
    (owl,) = read(csv_list(tmp_path / "list.csv", [OWL])).entities
    assert (owl.id, owl.given_id, owl.country, owl.category) == ("007", "007", "UK", "mascot")
    assert owl.names == {"zh": "铜鸮", "en": "Brass Owl"} and owl.remark == "of a post office"
    stage1 = {"7": {"index": "7", "country": "UK", "ip_name": "Brass Owl", "ip_name_zh": "铜鸮",
                    "ip_name_en": "Brass Owl", "ip_category": "mascot", "image_prompt": "",
                    "tag_name": "x", "language": "en"}}  # fmt: skip
    (tmp_path / "list.json").write_text(json.dumps(stage1))
    (owl,) = read(tmp_path / "list.json").entities
    assert owl.id == "7" and owl.names == {"zh": "铜鸮", "en": "Brass Owl"}


def test_all_four_formats_say_the_same(tmp_path):
    rows = [{"id": str(k), "name_en": f"Owl {k}", "name_ja": f"フクロウ{k}", "category": "Animal"} for k in range(4)]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keyed = {row["id"]: {key: value for key, value in row.items() if key != "id"} for row in rows}
    (tmp_path / "c.json").write_text(json.dumps(keyed))
    csv_list(tmp_path / "d.csv", [tuple(row.values()) for row in rows], tuple(rows[0]))
    pq.write_table(pa.Table.from_pylist([row | {"id": int(row["id"])} for row in rows]), tmp_path / "e.parquet")
    lists = [read(tmp_path / name).entities for name in ("a.json", "b.jsonl", "c.json", "d.csv", "e.parquet")]
    assert lists[0][0].id == "0" and lists[0][3].names == {"en": "Owl 3", "ja": "フクロウ3"}
    assert all(each == lists[0] for each in lists)


def test_ids_that_begin_at_zero_or_look_like_numbers_stay_apart(tmp_path):
    ids = ["0", "007", "7", "7.0", "1e3", "٧"]
    rows = [(given, "", f"Thing {k}", "", "toy", "") for k, given in enumerate(ids)]
    assert [e.given_id for e in read(csv_list(tmp_path / "a.csv", rows)).entities] == ids
    table = pa.table({"index": [0.0, 7.0, math.nan], "name": ["A", "B", "C"], "category": ["toy"] * 3})
    pq.write_table(table, tmp_path / "floats.parquet")
    listed = read(tmp_path / "floats.parquet")
    assert [e.id for e in listed.entities] == ["0", "7"]
    assert "floats.parquet#3" in listed.refused[0][1].detail and "id is empty" in listed.refused[0][1].detail


def test_ids_that_can_name_no_file_get_names_of_their_own(tmp_path):
    odd = ["a/b", "a.b", "a b", "a-b", "A-B", "../x", ".", "..", "/", "x" * 300, "x" * 301, "q-p1", "q", "हिन्दी", "é",
           "ｑ", "CON.txt", "a\\b", "😀", "a-0123456789"]  # fmt: skip
    listed = read(csv_list(tmp_path / "a.csv", [(g, "", f"Thing {k}", "", "toy", "") for k, g in enumerate(odd)]))
    assert [e.given_id for e in listed.entities] == odd and not listed.refused
    made = [e.id for e in listed.entities]
    assert len({each.casefold() for each in made}) == len(odd) and all(map(is_safe_name, made))
    assert made[3] == "a-b" and made[12] == "q" and "." not in "".join(made)


@given(st.lists(st.text(min_size=1, max_size=40), unique=True, max_size=30))
def test_safe_ids_are_never_shared(given_ids):
    taken = set()
    for each in given_ids:
        made = safe_id(each, taken)
        assert made.casefold() not in taken and is_safe_name(made) and len(f"{made}-p100".encode()) <= 100
        taken.add(made.casefold())


@given(st.text(max_size=20))
def test_names_are_the_same_after_spelling_case_and_spaces(name):
    assert normalised(normalised(name)) == normalised(name) == normalised(f" {name}\u200b ")


def test_same_names_are_refused_and_prefixes_are_not(tmp_path):
    rows = [("1", "", "Iron Man", "", "comic", ""), ("2", "", "Iron Man 2", "", "comic", ""),
            ("3", "", "Iron", "", "toy", ""), ("4", "", "ｉｒｏｎ  ＭＡＮ", "", "comic", ""),
            ("5", "孙悟空", "", "中国", "mythology", ""), ("6", "孙悟", "", "", "celebrity", ""),
            ("1", "", "Another", "", "toy", ""), ("10", "", "Ten", "", "toy", "")]  # fmt: skip
    listed = read(csv_list(tmp_path / "a.csv", rows))
    assert [e.id for e in listed.entities] == ["1", "2", "3", "5", "6", "10"]
    (what, why), (_, twin) = listed.refused
    assert what == "a.csv:5" in why.detail and "a.csv:2 has the name" in why.detail
    assert twin.reason == "an id that is taken" and "a.csv:2" in twin.detail


@pytest.mark.parametrize(
    ("row", "reason", "words"),
    [
        (("", "", "A", "", "toy", ""), "no id", "id is empty"),
        (("1", "", " \u200b ", "", "toy", ""), "no name", "no name in any language"),
        (("1", "", "?!", "", "toy", ""), "no name", "no letter or digit"),
        (("1", "", "x" * 201, "", "toy", ""), "no name", "more than 200"),
        (("1", "", "A", "", "toi", ""), "no known category", "'toy'"),
        (("1", "", "A", "", "", ""), "no known category", "known: animation"),
        (("1", "", "A\x07", "", "toy", ""), "a row that cannot be read", "'name_en'"),
        (("1", "", "A", "", "toy", "", "x"), "a row that cannot be read", "more fields"),
    ],
)
def test_a_row_that_is_refused_names_file_line_and_what_to_do(tmp_path, row, reason, words):
    path = csv_list(tmp_path / "list.csv", [OWL, row])
    ((_, why),) = read(path).refused
    assert why.reason == reason and words in why.detail and "list.csv:3" in why.detail


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (("indx", *HEADER[1:]), "'indx' is not known, did you mean 'index'?"),
        (("index", "name_zh", "nam_en", *HEADER[3:]), "'nam_en' is not known"),
        (("index", "country", "category"), "no column 'name_en'"),
        (("name", "country", "category"), "no column 'index'"),
        (("index", "name"), "no column 'category'"),
        (("id", "index", "name", "category"), "mean the same"),
        (("index;name;category",), "divide the columns by commas"),
        (("index", "name", "name", "category"), "two columns 'name'"),
    ],
)
def test_wrong_columns_are_refused_with_the_nearest_known(tmp_path, header, words):
    with pytest.raises(UserError, match=r"list\.csv") as raised:
        read(csv_list(tmp_path / "list.csv", [], header))
    assert words in str(raised.value)


def test_columns_that_nobody_could_mean_are_left_alone():
    found = columns_of(["index", "name", "category", "wikidata", "age", "image_prompt"])
    assert found == {"index": "id", "name": "name", "category": "category"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"x", "is a .csv"),
        ("a.csv", b"", "is empty"),
        ("a.csv", b"index,name,category\n", "no row"),
        ("a.csv", "index,name,category\n1,铜鸮,toy\n".encode("gb18030"), "UTF-8"),
        ("a.json", b"{", "does not parse"),
        ("a.json", b'{"1": {"name": "a", "category": "toy"}, "1": {}}', "twice"),
        ("a.json", b"3", "array of objects"),
        ("a.jsonl", b"[1]\n", "no row can be used"),
        ("a.parquet", b"PAR1", "not a parquet file"),
    ],
)
def test_a_file_that_is_no_list_is_refused(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=name) as raised:
        read(tmp_path / name)
    assert words in str(raised.value)


def test_wrong_types_are_told_apart_from_the_rows_beside_them(tmp_path):
    rows = [{"id": "1", "name": True, "category": "toy"}, {"id": "2", "name": ["x"], "category": "toy"},
            {"id": 3, "name": 1984, "category": "toy"},
            {"id": 4, "names": {"en": "Four", "fr": None}, "category": "toy"},
            {"id": 5, "names": "Five", "category": "toy"}, {"id": 6.5, "name": "Six", "category": "toy"},
            {"id": 7, "name": "\ud800", "category": "toy"}, 8, {"id": 9, "name": "Nine", "catgory": "toy"},
            {"id": 10, "names": {"english": "Ten"}, "category": "toy"},
            {"id": 11, "names": {"zh-CN": "十一", "zh_tw": "十一"}, "category": "toy"}]  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(rows))
    listed = read(tmp_path / "a.json")
    assert {e.id: dict(e.names) for e in listed.entities} == {"3": {"en": "1984"}, "4": {"en": "Four"}}
    assert len(listed.refused) == 9 and all("a.json#" in why.detail for _, why in listed.refused)
    told = told_of(listed)
    assert "did you mean 'category'" in told["9"] and "no language" in told["10"] and "two names" in told["11"]


def test_seeds_are_pictures_beside_the_list(tmp_path):
    for k in range(3):
        picture(tmp_path / "seeds" / f"{k}.png", k)
    (tmp_path / "page.jpg").write_text("<!DOCTYPE html><html>Not found</html>")
    (tmp_path / "cut.png").write_bytes((tmp_path / "seeds" / "0.png").read_bytes()[:900])
    (tmp_path / "empty.jpg").write_bytes(b"")
    header = (*HEADER, "seed1", "seed2", "seeds")
    seeds = {"good": ("seeds/0.png", "", "seeds/1.png; seeds/2.png"), "none": ("", "", ""), "gone": ("x.png", "", ""),
             "page": ("seeds/0.png", "page.jpg", ""), "cut": ("cut.png", "", ""), "void": ("empty.jpg", "", ""),
             "folder": ("seeds", "", ""), "web": ("https://a.example/x.png", "", "")}  # fmt: skip
    path = csv_list(tmp_path / "a.csv", [(k, "", f"Thing {k}", "", "toy", "", *v) for k, v in seeds.items()], header)
    listed = read_list(path, Looks(tmp_path / "looks.jsonl"))
    assert {e.id: len(e.seeds) for e in listed.entities} == {"good": 3, "none": 0}
    told = told_of(listed)
    assert "not there" in told["gone"] and "web page" in told["page"] and "broken off" in told["cut"]
    assert "no picture" in told["void"] and "folder" in told["folder"] and "download it" in told["web"]
    assert all(f"a.csv:{k}" in told[name] for k, name in enumerate(seeds, 2) if name in told)


def test_seeds_are_opened_once(tmp_path, monkeypatch):
    seed = picture(tmp_path / "a.png", 1)
    cache = tmp_path / "looks.jsonl"
    before = Looks(cache).of([seed])
    cache.write_bytes(cache.read_bytes() + b'[1, "half')
    monkeypatch.setattr("data.build.lookalike.open_picture", None)
    assert Looks(cache).of([seed]) == before


def test_strict_stops_at_the_first_refusal(tmp_path):
    csv_list(tmp_path / "list.csv", [OWL, ("8", "", "", "", "toy", "")])
    entities, lost = read_entities(spec(tmp_path))
    assert [e.id for e in entities] == ["007"] and [what for what, _ in lost] == ["list.csv:3"]
    with pytest.raises(UserError, match=r"list\.csv:3.*no name"):
        read_entities(spec(tmp_path, strict=True))


def test_categories_are_those_of_the_benchmark():
    assert {group: tuple(members) for group, members in factip.GROUPS.items()} == CATEGORIES
    assert ALIASES == factip._ALIASES
    for text in ("Cultural Relic/Art", "animal_plant", "Comics", "toy", "LANDMARKS"):
        assert category_of(text) == factip.category_of(text)
    assert category_of("美食") == "food" and category_of("nothing") is None and category_of("toyland") is None


def test_the_language_of_an_entity_is_that_of_its_country(tmp_path):
    rows = [("1", "铜鸮", "Owl", "UK", "toy", ""), ("2", "龙", "Dragon", "中国/日本", "toy", ""),
            ("3", "虎", "", "Korea", "toy", ""), ("4", "", "Fox", "China", "toy", "")]  # fmt: skip
    assert [own_language(e) for e in read(csv_list(tmp_path / "a.csv", rows)).entities] == ["en", "zh", "zh", "en"]
    names = {"en": "Owl", "zh": "鸮", "ja": "フクロウ梟", "ko": "부엉이", "ru": "Сова", "ar": "بومة"}
    assert {language: guess_language(name) for language, name in names.items()} == {each: each for each in names}


def test_one_language_is_told_by_its_script():
    assert in_language("a quiet street at dusk, 3 lamps", "en") and not in_language("a quiet 街 at dusk", "en")
    assert in_language("黄昏时安静的街道，三盏灯", "zh") and not in_language("黄昏的 street", "zh")
    assert not in_language("静かな街", "zh") and in_language("静かな街", "ja") and in_language("une rue calme", "fr")
    assert not in_language("12 34", "en") and not in_language("тихая улица", "en") and in_language("тихая улица", "ru")
