"""Back ends by name, and that a key appears nowhere in what a run leaves behind."""

import logging
import subprocess
import sys

import pytest
from search_tools import KEY, Reply, drawing, encoded, serving
from test_search_index import small_index

from unify_agent.errors import UserError
from unify_agent.search.base import SearchError
from unify_agent.search.registry import open_backend


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("serpre", "did you mean 'serper'"),
        ("", "give one of index:PATH, serper"),
        ("index", "expected index:PATH"),
        ("index:", "expected index:PATH"),
        ("wikipedia:de", "expected wikipedia"),
        ("serper:", "expected serper"),
        ("record:DIR", "expected record:DIR:SPEC"),
        ("record::wikipedia", "expected record:DIR:SPEC"),
        ("record:DIR:replay:DIR", "expected record:DIR:SPEC"),
        ("replay", "expected replay:DIR"),
        ("replay:nowhere", "no such record"),
        ("index:nowhere", "no search index here"),
        ("serper", "serper needs a key: set the environment variable SERPER_API_KEY"),
    ],
)
def test_a_wrong_spec_is_one_clear_line(monkeypatch, spec, said):
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    with pytest.raises(UserError) as caught:
        open_backend(spec)
    assert said in str(caught.value)


def test_options_are_checked(monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    with pytest.raises(UserError, match="'reeder' is not known, did you mean 'reader'"):
        open_backend("serper", reeder="none")
    with pytest.raises(UserError, match="reader 'jin' is not known, did you mean 'jina'"):
        open_backend("serper", reader="jin")
    with pytest.raises(UserError, match="'lan'"):
        open_backend("wikipedia", allow_local="lan")


@pytest.mark.parametrize(
    ("spec", "options", "said"),
    [
        ("index:nowhere", {"cache": "x"}, "'cache': index takes no options; leave it out"),
        ("replay:nowhere", {"reader": "none"}, "'reader': replay takes no options"),
        ("record:rec:index:nowhere", {"allow_local": "all"}, "'allow_local': index takes no options"),
        ("wikipedia", {"reader": "none"}, "'reader': wikipedia does not take it; it takes cache, allow_local"),
        ("serper", {"commons_url": "x"}, "'commons_url': serper does not take it"),
        ("index:nowhere", {"cahce": "x"}, "'cahce' is not known, did you mean 'cache'"),
        ("record:rec:wikipedia", {"wikipedia_ulr": "x"}, "did you mean 'wikipedia_url'"),
        ("wikipedia", {"on_note": "print"}, "'on_note' is a function"),
        ("record:rec:wikpedia", {}, "search 'wikpedia' is not known, did you mean 'wikipedia'"),
    ],
)
def test_an_option_that_a_back_end_does_not_take_is_refused_before_anything_is_opened(
    monkeypatch, tmp_path, spec, options, said
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    with pytest.raises(UserError) as caught:
        open_backend(spec, **options)
    assert said in str(caught.value) and not list(tmp_path.iterdir())


def test_an_index_is_recorded_and_replayed(tmp_path):
    folder = small_index(tmp_path / "world")
    recorded = open_backend(f"record:{tmp_path / 'rec'}:index:{folder}")
    texts, pictures = recorded.text_search("Velmora", "en"), recorded.search_image("kiwi fruit", None, "en", 2)
    replay = open_backend(f"replay:{tmp_path / 'rec'}")
    assert replay.text_search("Velmora", "en") == texts == open_backend(f"index:{folder}").text_search("Velmora", "en")
    assert replay.search_image("kiwi fruit", None, "en", 2) == pictures and replay.name == "index"
    assert [hit.id for hit in pictures] == ["kiwi-1", "kiwi-2"]


def test_keys_appear_nowhere(monkeypatch, tmp_path, caplog, capfd):
    """A service that echoes the key in everything it says: in no result, error, note, log line or file."""
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    monkeypatch.setenv("JINA_API_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    notes, said = [], []

    def answer(asked):
        if asked.path == "/search":
            if asked.json["q"] == "bad":
                return Reply({"message": f"key {KEY} is not valid"}, 403)
            return Reply({"organic": [{"title": KEY, "link": f"https://a.example/?k={KEY}", "snippet": f"s {KEY}"}],
                          "searchParameters": {"apiKey": KEY}})  # fmt: skip
        if asked.path == "/images":
            return Reply({"images": [{"title": KEY, "imageUrl": f"{server.url}/p?key={KEY}", "link": KEY}]})
        if asked.path == "/p":
            return Reply(encoded(drawing()))
        return Reply({"detail": f"no page for {KEY}"}, 422)

    with serving(answer) as server:
        found = open_backend(
            f"record:{tmp_path / 'rec'}:serper", serper_url=server.url, jina_url=f"{server.url}/jina",
            allow_local="127.0.0.1", on_note=notes.append, cache=tmp_path / "cache",
        )  # fmt: skip
        said += [str(found.text_search("owl")), str(found.search_image("owl")), repr(found), str(vars(found))]
        for q in ("bad", "bad"):
            with pytest.raises(SearchError) as caught:
                found.text_search(q)
            said += [str(caught.value), repr(caught.value), str(caught.value.__cause__)]
    assert notes and any(asked.headers.get("x-api-key") == KEY for asked in server.asked)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 4
    left = [*said, *notes, caplog.text, *capfd.readouterr()] + [path.read_bytes().decode("latin-1") for path in files]
    assert not [text for text in left if KEY in text]


def test_searching_needs_no_torch():
    code = "import sys, unify_agent.search.registry; assert 'torch' not in sys.modules, 'torch'"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
