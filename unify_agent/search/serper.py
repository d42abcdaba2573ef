"""`serper`: Google's results through serper.dev, pages as text through the Jina reader.

    POST {url}/search   {"q", "hl", "num"}              -> {"organic": [{"title", "link", "snippet"}], "answerBox", ...}
    POST {url}/images   {"q", "hl", "gl"/"location", "num"} -> {"images": [{"title", "imageUrl", "link"}]}
    POST {reader}       {"url"}                         -> {"data": {"title", "content" or "text"}}

Keys: SERPER_API_KEY, and JINA_API_KEY, without which the reader answers too, but slowly. Language and place are those
of the request; nothing is added to it and nothing is filtered. A page that can't be read leaves its snippet;
a reader that refuses the key is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from unify_agent.search.base import ImageHit, OnHit, SearchError, TextHit, well_formed
from unify_agent.search.fetch import public_url
from unify_agent.search.passages import excerpt
from unify_agent.search.pictures import Candidate, Pictures
from unify_agent.search.service import Service

PAGE_CHARS = 1200
"""Of a page's text that a hit holds: what the question is about (passages.py)."""
MOST_IMAGES = 100  # that the service sends at once
SPARE = 2  # candidates asked for per picture wanted: not all of them can be fetched


def text_of(record: Any, key: str) -> str:
    """A field of an answer that should be a text; "" when it is absent or something else."""
    value = record.get(key) if isinstance(record, dict) else None
    return well_formed(value).strip() if isinstance(value, str) else ""


def list_of(answer: dict[str, Any], key: str, service: str) -> list[Any]:
    """A field that should be a list; [] when absent. Raises SearchError when it is something else."""
    found = answer.get(key, [])
    if not isinstance(found, list):
        raise SearchError("bad_answer", f"{service}: '{key}' is a {type(found).__name__}, not a list")
    return found


class JinaReader:
    """Web pages as plain text (r.jina.ai)."""

    def __init__(self, url: str, service: Service, key: str = "") -> None:
        self._url, self._service = url, service
        self._headers = {"x-return-format": "text"} | ({"authorization": f"Bearer {key}"} if key else {})

    def read(self, url: str) -> str:
        """The text of a page. Raises SearchError."""
        answer = self._service.json("POST", self._url, body={"url": url}, headers=self._headers)
        data = answer.get("data")
        text = text_of(data, "text") or text_of(data, "content")
        if not text:
            raise SearchError("bad_answer", f"{self._service.name}: no text of {url}")
        return text


class Serper:
    """The back end; both methods as in `SearchBackend`.

    `reader` None leaves the snippets as they are. `on_note` is told, in a line, of each page that was not read.
    """

    name = "serper"
    early = True

    def __init__(
        self,
        url: str,
        service: Service,
        key: str,
        pictures: Pictures,
        reader: JinaReader | None,
        threads: int = 8,
        on_note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._url, self._service, self._pictures, self._reader = url.rstrip("/"), service, pictures, reader
        self._headers, self._tell = {"x-api-key": key}, on_note
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="pages")

    def text_search(self, q: str, hl: str | None = None, top_k: int = 5) -> list[TextHit]:
        """The answer box and the knowledge panel where there are some, then the pages; at most `top_k` together."""
        answer = self._ask("search", {"q": q, "hl": hl, "num": top_k})
        boxes = [box for box in (_box(answer.get("answerBox")), _panel(answer.get("knowledgeGraph"))) if box]
        pages = list_of(answer, "organic", self.name)[: max(0, top_k - len(boxes))]
        return [*boxes, *self._threads.map(lambda page: self._page(page, q), pages)][:top_k]

    def search_image(
        self, q: str, location: str | None = None, hl: str | None = None, num: int = 8, on_hit: OnHit | None = None
    ) -> list[ImageHit]:
        """The first `num` pictures that can be fetched. A place of two letters is a country (`gl`)."""
        country = location.lower() if location and re.fullmatch(r"[A-Za-z]{2}", location) else None
        place = None if country else location or None
        asked = {"q": q, "hl": hl, "gl": country, "location": place, "num": min(SPARE * num, MOST_IMAGES)}
        found = list_of(self._ask("images", asked), "images", self.name)
        candidates = [
            Candidate(text_of(each, "imageUrl"), text_of(each, "title"), text_of(each, "link"))
            for each in found
            if text_of(each, "imageUrl")
        ]
        return self._pictures.gather(candidates, num, on_hit)

    def _ask(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._service.json("POST", f"{self._url}/{what}", body=body, headers=self._headers)

    def _page(self, page: Any, q: str) -> TextHit:
        address, text = public_url(text_of(page, "link")), text_of(page, "snippet")
        if self._reader is not None and address:
            try:
                text = excerpt(self._reader.read(address), q, PAGE_CHARS) or text
            except SearchError as error:
                if error.kind == "wrong_key":
                    raise
                self._tell(str(error))
        return TextHit(text_of(page, "title"), text, address)


def _box(box: Any) -> TextHit | None:
    """Google's direct answer."""
    text = text_of(box, "answer") or text_of(box, "snippet")
    return TextHit(text_of(box, "title"), text, public_url(text_of(box, "link"))) if text else None


def _panel(panel: Any) -> TextHit | None:
    """Google's panel about a thing: its kind, a description, facts."""
    facts = panel.get("attributes") if isinstance(panel, dict) else None
    facts = facts if isinstance(facts, dict) else {}
    rows = [f"{well_formed(name)}: {text_of(facts, name)}" for name in facts if text_of(facts, name)]
    text = "\n".join(part for part in (text_of(panel, "type"), text_of(panel, "description"), *rows) if part)
    source = text_of(panel, "descriptionLink") or text_of(panel, "website")
    return TextHit(text_of(panel, "title"), text, public_url(source)) if text else None
