"""`python -m data index`: one's own texts and pictures, again after changes, after a kill, with bad files in it."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from PIL import Image
from search_tools import drawing, encoded

from data import index as command
from data.documents import Document, Fault, read_documents
from data.indexing import BUILDING
from unify_agent.errors import UserError
from unify_agent.search.index import DATABASE, Index


def run(capsys, *arguments):
    """The command's exit code, output and messages."""
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    code = command.main(parser.parse_args([str(argument) for argument in arguments]))
    return code, *capsys.readouterr()


@pytest.fixture
def mine(tmp_path):
    """A person's files: docs/, pictures/ with captions."""
    docs, pictures = tmp_path / "docs", tmp_path / "pictures"
    (docs / "more").mkdir(parents=True)
    (pictures / "owls").mkdir(parents=True)
    (docs / "brass_owl.txt").write_text("A metal bird named Velmora.")
    (docs / "heron.md").write_text("Some words.\n\n# The grey heron #\n\nA tall bird by the water.")
    (docs / "more" / "cranes.html").write_text(
        '<html lang="zh-CN"><head><title>丹顶鹤</title><style>p{}</style></head><body><p>一种高大的鸟。'
        "<script>alert('x')</script><noscript>no</noscript><p>生活在湿地&amp;湖边</body></html>",
        encoding="utf-8",
    )
    (docs / "table.csv").write_text('title,text,lang,source\nTern,"Flies far,\nvery far.",en,book p. 7\n')
    (docs / "lines.jsonl").write_text(json.dumps({"title": "Kea", "text": "A green parrot."}) + "\n\n")
    (docs / "notes.pdf").write_bytes(b"%PDF")
    (docs / ".hidden.txt").write_text("not for anyone")
    drawing(1).save(pictures / "owls" / "brass_owl-1.png")
    drawing(2).save(pictures / "b.jpg")
    drawing(3).save(pictures / "no_suffix", "WEBP")
    (pictures / "captions.jsonl").write_text(
        json.dumps({"file": "b.jpg", "title": {"en": "grey heron", "zh": "苍鹭"}, "licence": "CC0",
                    "source": "https://h.example"}) + "\n"
    )  # fmt: skip
    return tmp_path


def build(capsys, mine, *more):
    return run(capsys, "--docs", mine / "docs", "--images", mine / "pictures", "--out", mine / "index", *more)


def test_every_kind_of_file_is_found_by_what_it_says(capsys, mine):
    code, out, err = build(capsys, mine)
    assert code == 0 and "5 passages, 3 pictures, 8 files read" in out and "1 .pdf" in err
    index = Index.open(mine / "index")
    assert [(hit.title, hit.source) for hit in index.text_search("Velmora")] == [("brass owl", "brass_owl.txt")]
    assert index.text_search("grey heron")[0].title == "The grey heron"
    (crane,) = index.text_search("湿地", hl="zh")
    assert crane.title == "丹顶鹤" and "alert" not in crane.text and "湿地&湖边" in crane.text
    assert index.text_search("far", hl="en")[0].source == "book p. 7"
    assert index.text_search("parrot")[0].source == "lines.jsonl:1"
    (heron,) = index.search_image("苍鹭", hl="zh")
    assert (heron.licence, heron.source, heron.title) == ("CC0", "https://h.example", "苍鹭")
    assert heron.open().size == (96, 80)
    assert index.search_image("brass owl")[0].source == "owls/brass_owl-1.png"
    assert index.search_image("no suffix")[0].path.suffix == ".png"
    assert not index.text_search("anyone")


def test_run_again_reads_nothing_and_writes_nothing(capsys, mine):
    build(capsys, mine)
    before = (mine / "index" / DATABASE).stat()
    code, out, _ = build(capsys, mine)
    after = (mine / "index" / DATABASE).stat()
    assert code == 0 and "0 files read, 8 as before" in out
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


def test_what_changed_is_read_and_what_is_gone_is_taken_out(capsys, mine):
    build(capsys, mine)
    (mine / "docs" / "brass_owl.txt").write_text("It is also called Zephyrine, and it is not that other name.")
    (mine / "docs" / "heron.md").unlink()
    (mine / "pictures" / "no_suffix").unlink()
    (mine / "pictures" / "captions.jsonl").write_text(json.dumps({"file": "b.jpg", "title": "stork"}) + "\n")
    code, out, _ = build(capsys, mine)
    assert code == 0 and "4 passages, 2 pictures, 2 files read, 4 as before, 2 taken out" in out
    index = Index.open(mine / "index")
    assert index.text_search("Zephyrine")[0].title == "brass owl"
    assert index.text_search("Velmora") == [] and index.text_search("heron") == []
    assert [hit.title for hit in index.search_image("stork")] == ["stork"] and index.search_image("heron") == []
    assert len(list((mine / "index" / "pictures").iterdir())) == 2


def test_an_index_brought_up_to_date_answers_as_one_made_anew(capsys, mine):
    (mine / "docs" / "table.csv").rename(mine / "later.csv")
    build(capsys, mine)
    (mine / "later.csv").rename(mine / "docs" / "table.csv")
    (mine / "docs" / "brass_owl.txt").write_text("A metal bird. Tern, kea and crane are birds.")
    build(capsys, mine)
    run(capsys, "--docs", mine / "docs", "--images", mine / "pictures", "--out", mine / "fresh")
    one, two = Index.open(mine / "index"), Index.open(mine / "fresh")
    for query in ("bird", "Tern", "brass owl", "parrot", "far"):
        assert {hit.title for hit in one.text_search(query)} == {hit.title for hit in two.text_search(query)}, query
    assert [hit.id for hit in one.search_image("owl")] == [hit.id for hit in two.search_image("owl")]


def test_bad_files_are_listed_and_counted_and_the_rest_is_indexed(capsys, mine):
    (mine / "docs" / "latin.txt").write_bytes("Käuzchen".encode("latin-1"))
    (mine / "docs" / "empty.md").write_text(" \n")
    (mine / "docs" / "bad.jsonl").write_text(
        '{"title": "a", "text": "fine one"}\n{"title": "b"\n[1]\n{"title": 3, "text": "x"}\n'
    )
    (mine / "docs" / "bad.csv").write_text("name,words\na,b\n")
    (mine / "pictures" / "lie.png").write_text("<html>")
    (mine / "pictures" / "cut.png").write_bytes(encoded(drawing(4))[:500])
    with (mine / "pictures" / "captions.jsonl").open("a") as file:
        file.write('{"file": "nowhere.png"}\n{"file": "b.jpg"}\n{"title": "x"}\n{"file": "no_suffix", "title": 3}\n')
    code, out, err = build(capsys, mine)
    assert code == 3 and "6 passages, 3 pictures" in out and "12 skipped" in out
    for line in (
        "latin.txt: not UTF-8 text (byte 1)", "empty.md: holds no text", "bad.jsonl:2: not JSON",
        "bad.jsonl:3: a JSON object is expected", "bad.jsonl:4: 'title' must be a text",
        "bad.csv: has no column 'title'",
        "lie.png: not a picture", "cut.png: not a picture", "captions.jsonl:2: 'nowhere.png' is not in the folder",
        "captions.jsonl:3: 'b.jpg' was described before", "captions.jsonl:4: 'file' is missing",
        "captions.jsonl:5: title, licence and source must be texts",
    ):  # fmt: skip
        assert f"skipped: {line}" in err
    again = build(capsys, mine)
    assert again[0] == 3 and "0 files read" in again[1] and again[2].count("skipped:") == 12
    for name in ("latin.txt", "empty.md", "bad.jsonl", "bad.csv"):
        (mine / "docs" / name).unlink()
    for name in ("lie.png", "cut.png", "captions.jsonl"):
        (mine / "pictures" / name).unlink()
    assert build(capsys, mine)[0] == 0


def test_long_texts_become_passages(capsys, mine):
    text = "\n\n".join(f"Section {k}. " + "Filler words here. " * 20 for k in range(40))
    (mine / "docs" / "book.txt").write_text(text + "\n\nThe egg of the kiwi is very large.")
    build(capsys, mine)
    hit = Index.open(mine / "index").text_search("kiwi egg")[0]
    assert hit.title == "book" and len(hit.text) <= 1200 and "egg of the kiwi" in hit.text
    assert hit.source.startswith("book.txt#")


def test_pictures_lose_their_metadata(capsys, mine):
    exif = Image.Exif()
    exif[0x010E] = "taken at home"
    drawing(7).save(mine / "pictures" / "home.jpg", exif=exif)
    build(capsys, mine)
    (hit,) = Index.open(mine / "index").search_image("home")
    assert not Image.open(hit.path).getexif() and b"taken at home" not in hit.path.read_bytes()


@pytest.mark.parametrize("step", ["_add", "_publish", "_tidy"])
def test_killed_anywhere_the_same_command_goes_on(mine, step):
    script = textwrap.dedent("""
        import os, sys
        from data import indexing, index
        from pathlib import Path
        indexing.COMMIT_EVERY = 0.0
        step, times = sys.argv[1], 0
        real = getattr(indexing, step)
        def dying(*arguments):
            global times
            times += 1
            if times == (5 if step == "_add" else 1):
                os.kill(os.getpid(), 9)
            return real(*arguments)
        if step:
            setattr(indexing, step, dying)
        import argparse
        parser = argparse.ArgumentParser()
        index.add_arguments(parser)
        index.main(parser.parse_args(sys.argv[2:]))
    """).replace("real = getattr(indexing, step)", "real = getattr(indexing, step, None)")
    where = ["--docs", mine / "docs", "--images", mine / "pictures", "--out", mine / "index"]

    def go(step):
        return subprocess.run(
            [sys.executable, "-c", script, step, *map(str, where)], env={**os.environ, "PYTHONPATH": "."},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert go(step).returncode == -9
    assert (mine / "index" / DATABASE).is_file() == (step == "_tidy")
    done = go("")
    assert done.returncode == 0 and "5 passages, 3 pictures" in done.stdout
    read = {"_add": "4 files read, 4 as before", "_publish": "0 files read", "_tidy": "0 files read"}[step]
    assert read in done.stdout
    assert sorted(path.name for path in (mine / "index").iterdir()) == [DATABASE, "pictures"]
    assert len(Index.open(mine / "index").text_search("bird")) == 2


def test_a_failed_update_leaves_the_index_as_it_was(capsys, mine):
    build(capsys, mine)
    before = (mine / "index" / DATABASE).read_bytes()
    only = mine / "only"
    only.mkdir()
    (only / "x.txt").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"x\.txt: not UTF-8.*nothing is left to index"):
        run(capsys, "--docs", only, "--out", mine / "index")
    assert (mine / "index" / DATABASE).read_bytes() == before
    assert build(capsys, mine)[0] == 0


def test_two_commands_do_not_work_on_one_index(capsys, mine):
    import sqlite3

    (mine / "index").mkdir()
    code, _, _ = run(capsys, "--docs", mine / "docs", "--out", mine / "index")
    assert code == 0
    (mine / "docs" / "new.txt").write_text("new")
    os.link(mine / "index" / DATABASE, mine / "index" / BUILDING)
    other = sqlite3.connect(mine / "index" / BUILDING)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UserError, match="another command is working on this index"):
        run(capsys, "--docs", mine / "docs", "--out", mine / "index")
    other.close()


def test_wrong_arguments_are_one_clear_line(capsys, mine):
    cases = {
        "nothing to index": ["--docs", mine / "pictures" / "owls"],
        "no such file or folder": ["--docs", mine / "nowhere"],
        "a .pdf file; known": ["--docs", mine / "docs" / "notes.pdf"],
        "no such folder": ["--images", mine / "nowhere"],
        "lies inside": ["--images", mine],
        "needs --images": ["--docs", mine / "docs", "--captions", mine / "x.csv"],
        "no such file": ["--images", mine / "pictures", "--captions", mine / "x.csv"],
        r"expected a \.jsonl or \.csv": ["--images", mine / "pictures", "--captions", mine / "x.txt"],
    }
    for said, arguments in cases.items():
        with pytest.raises(UserError, match=said):
            run(capsys, *arguments, "--out", mine / "out")
    (mine / "other").mkdir()
    (mine / "other" / "file").write_text("x")
    with pytest.raises(UserError, match="is not an index"):
        run(capsys, "--docs", mine / "docs", "--out", mine / "other")


def test_odd_characters_in_names_and_texts_stop_nothing(capsys, mine):
    with open(os.fsencode(mine / "docs") + b"/k\xe4uz.txt", "w") as file:
        file.write("A tawny owl.")
    (mine / "docs" / "half.jsonl").write_text(
        '{"title": "half \\ud83d", "text": "of a pair \\ud83d", "source": "\\ud83d"}\n'
    )
    with (mine / "pictures" / "captions.jsonl").open("a") as file:
        file.write('{"file": "no_suffix", "title": "half \\ud83d", "licence": "\\ud83d"}\n')
    assert build(capsys, mine)[0] == 0
    index = Index.open(mine / "index")
    assert index.text_search("tawny")[0].source == "k?uz.txt" and index.text_search("pair")[0].title == "half ?"
    assert index.search_image("half")[0].licence == "?"
    assert "0 files read" in build(capsys, mine)[1]


def test_captions_may_be_a_table(capsys, mine):
    (mine / "pictures" / "captions.jsonl").unlink()
    (mine / "names.csv").write_text(
        "file,title,title_zh,licence,source\nb.jpg,heron,苍鹭,CC BY 4.0,me\n", encoding="utf-8"
    )
    code, _, _ = run(capsys, "--images", mine / "pictures", "--captions", mine / "names.csv", "--out", mine / "index")
    index = Index.open(mine / "index")
    assert code == 0 and index.search_image("heron", hl="en")[0].licence == "CC BY 4.0"
    assert index.search_image("苍鹭", hl="zh")[0].title == "苍鹭"


def test_the_language_of_texts_can_be_given(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.jsonl").write_text('{"title": "t", "text": "x", "lang": "fr"}\n')
    assert list(read_documents(tmp_path / "a.txt", "a.txt", "de")) == [Document("a", "text", "de", "a.txt")]
    assert list(read_documents(tmp_path / "b.jsonl", "b.jsonl", "de")) == [Document("t", "x", "fr", "b.jsonl:1")]
    assert list(read_documents(tmp_path / "none.txt", "none.txt")) == [
        Fault("none.txt", "cannot be read (No such file or directory)", passing=True)
    ]
