"""Serper and the Jina reader against servers that speak their protocols, well and badly."""

import pytest
from search_tools import KEY, Reply, drawing, encoded, serving

from unify_agent.search.base import SearchError
from unify_agent.search.registry import open_backend

PAGES = [
    {"title": "Brass owl", "link": "https://owls.example/brass", "snippet": "A metal owl.", "position": 1},
    {"title": "Owl", "link": "https://me:pw@owls.example/owl", "snippet": "A bird.", "position": 2},
    {"title": "Odd", "link": "javascript:alert(1)", "snippet": "No page."},
]
ARTICLE = "Home\n\nAbout us\n\n" + "\n\n".join(
    f"Paragraph {k} is about nothing in particular." for k in range(60)
) + "\n\nThe brass owl has round eyes of green glass.\n\nImprint"  # fmt: skip


@pytest.fixture
def backend(monkeypatch, tmp_path):
    """Opens the back end against a server; `answers` by path."""
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    monkeypatch.setenv("JINA_API_KEY", "jina-secret-42")

    def open_with(server, **options):
        return open_backend(
            "serper", serper_url=server.url, jina_url=f"{server.url}/reader", allow_local="127.0.0.1",
            cache=tmp_path / "cache", **options,
        )  # fmt: skip

    return open_with


def answering(**by_path):
    return lambda asked: by_path[asked.path.strip("/").partition("/")[0]](asked)


def test_results_come_with_the_part_of_the_page_that_the_question_is_about(backend):
    answer = answering(
        search=lambda asked: Reply({"organic": PAGES}),
        reader=lambda asked: Reply(
            {"code": 200, "data": {"text": ARTICLE if "brass" in asked.json["url"] else "An owl."}}
        ),
    )
    with serving(answer) as server:
        hits = backend(server).text_search("brass owl eyes", "zh", 5)
    assert [hit.title for hit in hits] == ["Brass owl", "Owl", "Odd"]
    assert hits[0].text.startswith("The brass owl has round eyes") and len(hits[0].text) <= 1200
    assert [hit.source for hit in hits] == ["https://owls.example/brass", "https://owls.example/owl", ""]
    assert hits[2].text == "No page."
    search, *readers = sorted(server.asked, key=lambda asked: asked.path != "/search")
    assert search.json == {"q": "brass owl eyes", "hl": "zh", "num": 5} and search.headers["x-api-key"] == KEY
    assert {each.headers["authorization"] for each in readers} == {"Bearer jina-secret-42"} and len(readers) == 2


def test_without_a_key_the_reader_is_asked_without_one(backend, monkeypatch):
    monkeypatch.delenv("JINA_API_KEY")
    answer = answering(
        search=lambda asked: Reply({"organic": PAGES[:1]}), reader=lambda asked: Reply({"data": {"content": "Text."}})
    )
    with serving(answer) as server:
        assert backend(server).text_search("owl")[0].text == "Text."
    assert "authorization" not in server.asked[1].headers and server.asked[0].json == {"q": "owl", "num": 5}


def test_a_page_that_cannot_be_read_leaves_its_snippet_and_says_so(backend):
    notes = []
    answer = answering(search=lambda asked: Reply({"organic": PAGES[:2]}), reader=lambda asked: Reply({"data": {}}))
    with serving(answer) as server:
        hits = backend(server, on_note=notes.append).text_search("owl")
        assert [hit.text for hit in hits] == ["A metal owl.", "A bird."]
        assert len(notes) == 2 and all("jina: no text of https://owls.example/" in note for note in notes)
        assert [hit.text for hit in backend(server, reader="none").text_search("owl")] == ["A metal owl.", "A bird."]
    assert server.paths().count("/reader") == 2


def test_a_reader_that_refuses_its_key_is_an_error_not_a_worse_answer(backend):
    answer = answering(search=lambda asked: Reply({"organic": PAGES[:1]}), reader=lambda asked: Reply("", 401))
    with serving(answer) as server, pytest.raises(SearchError, match="JINA_API_KEY is not accepted") as caught:
        backend(server).text_search("owl")
    assert caught.value.kind == "wrong_key"


def test_answer_box_and_panel_come_first(backend):
    answer = {
        "answerBox": {"title": "Height", "answer": "12 cm", "link": "https://a.example"},
        "knowledgeGraph": {"title": "Brass owl", "type": "Sculpture", "description": "A small owl.",
                           "attributes": {"Made": "1901", "Odd": 7}, "descriptionLink": "https://b.example"},
        "organic": PAGES,
    }  # fmt: skip
    with serving(lambda asked: Reply(answer)) as server:
        hits = backend(server, reader="none").text_search("owl", top_k=3)
    assert [hit.title for hit in hits] == ["Height", "Brass owl", "Brass owl"]
    assert hits[1].text == "Sculpture\nA small owl.\nMade: 1901"


@pytest.mark.parametrize(("location", "sent"), [(None, {}), ("de", {"gl": "de"}), ("Austria", {"location": "Austria"})])
def test_language_and_place_are_those_of_the_request_and_nothing_is_added(backend, location, sent):
    def images(asked):
        return Reply({"images": [{"title": "t", "imageUrl": f"{server.url}/p/{k}", "link": f"https://s.example/{k}"}
                                 for k in range(9)]})  # fmt: skip

    answer = answering(images=images, p=lambda asked: Reply(encoded(drawing(int(asked.path[3:])))))
    with serving(answer) as server:
        hits = backend(server).search_image("brass owl", location, "de", 3)
    assert server.asked[0].json == {"q": "brass owl", "hl": "de", "num": 6, **sent}
    assert [hit.source for hit in hits] == [f"https://s.example/{k}" for k in range(3)]
    assert len({hit.id for hit in hits}) == 3 and all(hit.open().size == (96, 80) for hit in hits)
    assert all("x-api-key" not in asked.headers for asked in server.asked[1:])


def test_nothing_found_is_an_empty_list(backend):
    with serving(lambda asked: Reply({"searchParameters": {"q": "x"}})) as server:
        found = backend(server)
        assert found.text_search("x") == [] and found.search_image("x") == []


@pytest.mark.parametrize("answer", [{"organic": "none", "images": {}}, {"organic": 5, "images": 5}])
def test_an_answer_of_another_shape_is_said(backend, answer):
    with serving(lambda asked: Reply(answer)) as server:
        found = backend(server)
        for ask in (found.text_search, found.search_image):
            with pytest.raises(SearchError, match="not a list") as caught:
                ask("x")
            assert caught.value.kind == "bad_answer"


def test_odd_entries_do_no_harm(backend):
    rows = [
        None,
        7,
        "text",
        {},
        {"title": 5, "link": ["x"], "snippet": None},
        {"title": "Half \ud83d", "snippet": "\udc00"},
    ]
    images = [*rows, {"imageUrl": "file:///etc/passwd", "title": "x"}, {"imageUrl": "http://127.0.0.2/"}]
    with serving(lambda asked: Reply({"organic": rows, "images": images})) as server:
        found = backend(server)
        hits = found.text_search("x", top_k=20)
        assert hits[-1].title == "Half ?" and len(hits) == len(rows)
        assert found.search_image("x") == []


def test_a_wrong_key_is_said_without_showing_it(backend):
    with serving(lambda asked: Reply({"message": "Unauthorized.", "statusCode": 403}, 403)) as server:
        with pytest.raises(SearchError, match="SERPER_API_KEY is not accepted") as caught:
            backend(server).text_search("x")
    assert caught.value.kind == "wrong_key" and KEY not in str(caught.value)
