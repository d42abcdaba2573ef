"""Wikipedia's API spoken by a local server: editions, introductions, pictures with their licences."""

import pytest
from search_tools import Reply, drawing, encoded, serving

from unify_agent.search.base import SearchError
from unify_agent.search.registry import open_backend
from unify_agent.search.wikipedia import _plain, edition

ARTICLES = [
    {"pageid": 2, "title": "Owl", "index": 2, "extract": "Owls are birds.", "fullurl": "https://en.example/wiki/Owl"},
    {"pageid": 1, "title": "Brass owl", "index": 1, "extract": "A brass owl is a small figure.",
     "fullurl": "https://en.example/wiki/Brass_owl"},
]  # fmt: skip


def info(url, name, licence="CC BY 2.0", mime="image/png", **more):
    return {
        "title": f"File:{name}",
        "imageinfo": [{
            "url": f"{url}/full/{name}", "mime": mime, "descriptionurl": f"https://commons.example/File:{name}",
            "extmetadata": {
                "LicenseShortName": {"value": licence},
                "Artist": {"value": '<a href="x">Ann &amp; Bob</a>'},
                "ObjectName": {"value": f"the {name}"},
            },
            **more,
        }],
    }  # fmt: skip


def wiki(asked, url):
    """A small MediaWiki: three lead pictures, two files of Commons."""
    if asked.path.startswith(("/full/", "/thumb/")):
        return Reply(encoded(drawing(sum(map(ord, asked.path.rpartition("/")[2])))))
    if "titles" in asked.query:
        names = [title.removeprefix("File:") for title in asked.query["titles"].split("|")]
        return Reply(
            {"query": {"pages": [info(url, name, thumburl=f"{url}/thumb/{name}") for name in reversed(names)]}}
        )
    if asked.query.get("gsrnamespace") == "6":
        files = [info(url, "Sound.ogg", mime="application/ogg"), info(url, "Owl_b.png", "Public domain")]
        return Reply({"query": {"pages": [page | {"index": k} for k, page in enumerate(files)]}})
    if asked.query["prop"] == "pageimages":
        names = ["Brass_owl.png", "Owl_a.png", "Brass_owl.png"]
        pages = [{"title": f"Page {k}", "index": k, "pageimage": name} for k, name in enumerate(names)]
        return Reply({"query": {"pages": [*pages, {"title": "No picture", "index": 9}]}})
    return Reply({"query": {"pages": ARTICLES}})


def backend(server, **options):
    return open_backend(
        "wikipedia", wikipedia_url=server.url + "/{language}/w/api.php", commons_url=f"{server.url}/commons/w/api.php",
        allow_local="127.0.0.1", **options,
    )  # fmt: skip


@pytest.fixture
def server():
    with serving(lambda asked: wiki(asked, opened.url)) as opened:
        yield opened


def test_articles_come_best_first_with_their_licence(server):
    hits = backend(server, user_agent="lab (ann@example.org)").text_search("brass owl", "zh-CN", 2)
    assert [(hit.title, hit.source) for hit in hits] == [
        ("Brass owl", "https://en.example/wiki/Brass_owl"), ("Owl", "https://en.example/wiki/Owl"),
    ]  # fmt: skip
    assert hits[0].text == "A brass owl is a small figure." and hits[0].licence == "CC BY-SA 4.0"
    (asked,) = server.asked
    assert asked.path == "/zh/w/api.php" and asked.headers["user-agent"] == "lab (ann@example.org)"
    assert asked.query["gsrsearch"] == "brass owl" and asked.query["gsrlimit"] == "2" and asked.query["exintro"] == "1"


def test_pictures_are_leads_of_articles_and_then_files_of_commons(server, tmp_path):
    hits = backend(server, cache=tmp_path).search_image("brass owl", "Austria", "de", 5)
    assert [hit.title for hit in hits] == ["Page 0", "Page 1", "the Owl_b.png"]
    assert [hit.licence for hit in hits] == ["CC BY 2.0", "CC BY 2.0", "Public domain"]
    assert {hit.author for hit in hits} == {"Ann & Bob"}
    assert hits[0].source == "https://commons.example/File:Brass%20owl.png"
    assert hits[0].url.startswith(f"{server.url}/thumb/") and hits[2].url == f"{server.url}/full/Owl_b.png"
    places = [asked.path for asked in server.asked]
    assert places[:3] == ["/de/w/api.php", "/de/w/api.php", "/commons/w/api.php"]
    assert not any("ogg" in place for place in places)


def test_a_long_fact_of_a_file_is_cut_before_it_is_looked_at():
    assert _plain({"Artist": {"value": "<" * 200_000}}, "Artist") == "<" * 200  # else minutes


def test_an_article_that_is_not_there_is_an_empty_list():
    with serving(lambda asked: Reply({"batchcomplete": True})) as server:
        assert backend(server).text_search("x") == [] and backend(server).search_image("x") == []


def test_a_busy_wiki_is_asked_again_when_it_says():
    answers = iter([Reply({"error": {"code": "maxlag", "info": "Waiting"}}, headers={"Retry-After": "0"}),
                    Reply({"query": {"pages": ARTICLES}})])  # fmt: skip
    with serving(lambda asked: next(answers)) as server:
        assert len(backend(server).text_search("owl")) == 2
    assert len(server.asked) == 2


def test_a_refused_question_and_a_missing_edition_are_said():
    error = {"error": {"code": "cirrussearch-query-too-long", "info": "Search request is too long"}}
    with serving(lambda asked: Reply(error)) as server, pytest.raises(SearchError, match="too long") as caught:
        backend(server).text_search("x" * 500)
    assert caught.value.kind == "bad_request"
    with (
        serving(lambda asked: Reply("", 404)) as server,
        pytest.raises(SearchError, match=r"no edition .*'xx'") as caught,
    ):
        backend(server).text_search("owl", "xx")
    assert caught.value.kind == "bad_request"


@pytest.mark.parametrize(("hl", "language"), [(None, "en"), ("", "en"), ("zh-Hans-CN", "zh"), ("zh_TW", "zh"),
                                              ("EN", "en"), ("nb", "no"), ("iw", "he"), ("ja", "ja")])  # fmt: skip
def test_the_edition_follows_the_language(hl, language):
    assert edition(hl) == language


@pytest.mark.parametrize(
    "hl", ["evil.example/", "en.evil.example#", "../x", "en@evil", "english language", "e", "中文"]
)
def test_a_language_never_leads_to_another_host(hl):
    with pytest.raises(SearchError, match="not a language code"):
        edition(hl)


@pytest.mark.parametrize(
    "pages", [{"a": 1}, [None, 3, {"title": 4, "imageinfo": 7}, {"imageinfo": [5]}, {"index": "x"}]]
)
def test_odd_pages_do_no_harm(pages):
    with serving(lambda asked: Reply({"query": {"pages": pages}})) as server:
        found = backend(server)
        if isinstance(pages, dict):
            with pytest.raises(SearchError, match="not a list"):
                found.text_search("x")
        else:
            assert [hit.title for hit in found.text_search("x")] == ["", "", ""]
            assert found.search_image("x") == []
