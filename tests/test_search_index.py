"""The local index: English and Chinese, short words, whole words first, and what it refuses."""

import json
import threading

import pytest
from PIL import Image, ImageDraw

from unify_agent.errors import UserError
from unify_agent.search.building import build_index
from unify_agent.search.index import DATABASE, Index, normalise, words

DOCS = [
    ("Kiwi fruit", "A green fruit with brown skin. Also known as Velmora.", "en", "corpus:1"),
    ("Caterpillar", "The larva of a butterfly; eats leaves.", "en", "corpus:2"),
    ("Cat", "A small animal with whiskers.", "en", "corpus:3"),
    ("猕猴桃", "一种绿色的水果，又名薇尔莫拉。", "zh", "corpus:4"),
    ("猫", "有胡须的小动物。", "zh", "corpus:5"),
    ("Ox", "A strong animal with horns.", "en", "corpus:6"),
]
IMAGES = [
    ("kiwi-1", {"en": "kiwi fruit", "zh": "猕猴桃"}, (64, 64)),
    ("kiwi-2", {"en": "kiwi fruit specimen", "zh": "猕猴桃 标本"}, (48, 32)),
    ("bird-1", {"en": "kiwi bird", "zh": "几维鸟"}, (64, 64)),
    ("cat-1", "cat", (16, 16)),
]


def write_lines(path, records):
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


def thing(name, size):
    """A disc on white, its colour by the part of the name before the dash."""
    colour = (sum(map(ord, name.split("-")[0])) * 37 % 200, 90, 60)
    picture = Image.new("RGB", (4 * size[0], 4 * size[1]), "white")
    box = (0.6 * size[0], 0.6 * size[1], 3.4 * size[0], 3.4 * size[1])
    ImageDraw.Draw(picture).ellipse(box, fill=colour, outline="black", width=10)
    return picture.resize(size, Image.Resampling.LANCZOS)


def small_index(folder, docs=DOCS, images=IMAGES):
    (folder / "raw").mkdir(parents=True)
    rows = []
    for name, title, size in images:
        thing(name, size).save(folder / "raw" / f"{name}.png")
        rows.append(
            {
                "id": name,
                "title": title,
                "path": f"{name}.png",
                "source": "made here",
                "licence": "CC0",
                "labels": {"entity": name.split("-")[0], "kind": "good"},
            }
        )
    texts = [dict(zip(("title", "text", "lang", "source"), doc, strict=True)) for doc in docs]
    return build_index(
        write_lines(folder / "raw" / "docs.jsonl", texts),
        write_lines(folder / "raw" / "images.jsonl", rows),
        folder / "index",
    )


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return Index.open(small_index(tmp_path_factory.mktemp("world")))


def test_an_alias_finds_the_document_that_resolves_it(index):
    (hit,) = index.text_search("Velmora", hl="en")
    assert hit.title == "Kiwi fruit" and hit.source == "corpus:1"


def test_chinese_is_found_without_spaces_and_in_its_own_language(index):
    assert [hit.title for hit in index.text_search("薇尔莫拉", hl="zh")] == ["猕猴桃"]
    assert index.text_search("薇尔莫拉", hl="en") == []


@pytest.mark.parametrize(("query", "title"), [("猫", "猫"), ("水果", "猕猴桃"), ("ox", "Ox"), ("OX horns", "Ox")])
def test_words_shorter_than_a_trigram_are_found(index, query, title):
    assert index.text_search(query)[0].title == title


def test_a_whole_word_comes_before_a_part_of_one(index):
    assert [hit.title for hit in index.text_search("cat", hl="en")] == ["Cat", "Caterpillar"]


def test_an_unknown_language_hides_nothing(index):
    assert index.text_search("cat", hl="xx")[0].title == "Cat"


def test_all_words_of_a_picture_query_matter(index):
    assert [hit.id for hit in index.search_image("kiwi fruit", hl="en")] == ["kiwi-1", "kiwi-2", "bird-1"]
    assert index.search_image("kiwi fruit specimen", hl="en")[0].id == "kiwi-2"
    assert index.search_image("kiwi bird", hl="en")[0].id == "bird-1"
    assert [hit.id for hit in index.search_image("猕猴桃 标本", hl="zh")][:1] == ["kiwi-2"]


def test_a_picture_is_answered_once_and_with_the_title_in_the_language_asked_for(index):
    hits = index.search_image("猕猴桃", hl="zh")
    assert [(hit.id, hit.title) for hit in hits] == [("kiwi-1", "猕猴桃"), ("kiwi-2", "猕猴桃 标本")]
    assert hits[1].open().size == (hits[1].width, hits[1].height) == (48, 32)
    assert len(index.search_image("kiwi", num=2)) == 2


def test_a_longer_chinese_query_finds_what_it_contains(index):
    assert [hit.id for hit in index.search_image("猕猴桃照片", hl="zh")] == ["kiwi-1", "kiwi-2"]
    assert index.text_search("会飞的猕猴桃", hl="zh")[0].title == "猕猴桃"


def test_what_nothing_matches_gives_nothing(index):
    assert index.text_search("zzyzx") == [] and index.search_image("zzyzx") == []
    assert index.text_search("") == [] and index.text_search("?!") == []


@pytest.mark.parametrize("query", ['"', "a AND b", "NEAR(", "x*", "title:cat", "'; DROP TABLE docs;--", "cat\x00"])
def test_query_syntax_is_only_text(index, query):
    index.text_search(query)
    index.search_image(query)


def test_labels_are_answered_only_when_asked_for(index):
    assert index.labels("bird-1") == {"entity": "bird", "kind": "good"}
    assert not hasattr(index.search_image("kiwi bird")[0], "labels")
    with pytest.raises(KeyError):
        index.labels("nobody")


def test_threads_read_at_the_same_time(index):
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(index.text_search("cat")[0].title)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["Cat"] * 8


def test_the_same_input_gives_the_same_files(tmp_path):
    one, two = small_index(tmp_path / "a"), small_index(tmp_path / "b")
    assert (one / DATABASE).read_bytes() == (two / DATABASE).read_bytes()


def test_no_index_is_one_clear_line(tmp_path):
    with pytest.raises(UserError, match="no search index"):
        Index.open(tmp_path)
    (tmp_path / DATABASE).write_bytes(b"not a database at all, only some text" * 40)
    with pytest.raises(UserError, match="not a readable index"):
        Index.open(tmp_path)


def test_a_faulty_record_names_file_and_line_and_leaves_the_old_index(tmp_path):
    folder = small_index(tmp_path)
    docs = write_lines(tmp_path / "docs.jsonl", [{"title": "a", "text": "b"}, {"title": "no text"}])
    with pytest.raises(UserError, match=r"docs\.jsonl:2: 'text'"):
        build_index(docs, None, folder)
    (tmp_path / "fake.png").write_text("<html>")
    images = write_lines(tmp_path / "images.jsonl", [{"id": "x", "title": "x", "path": "fake.png"}])
    with pytest.raises(UserError, match=r"images\.jsonl:1: .*not a picture"):
        build_index(tmp_path / "raw" / "docs.jsonl", images, folder)
    assert Index.open(folder).text_search("cat")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "docs.jsonl",
        "fake.png",
        "images.jsonl",
        "index",
        "raw",
    ]


def test_words_are_normalised():
    assert words(normalise("Ｋｉｗｉ  FRUIT，猕猴桃 kiwi")) == ["kiwi", "fruit", "猕猴桃"]
