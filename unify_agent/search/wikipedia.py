"""`wikipedia`: articles of the language edition that the request asks for, pictures with their licences.

Both are MediaWiki's API (format 2). Text: a search whose results come with the beginnings of their articles. Pictures:
first the lead pictures of the best articles, under the article's name, then what Wikimedia Commons finds; licence and
author are those of the file's page. No key; a user agent that says who asks is demanded.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

from unify_agent.search.base import ImageHit, OnHit, SearchError, TextHit
from unify_agent.search.fetch import public_url
from unify_agent.search.passages import excerpt
from unify_agent.search.pictures import Candidate, Pictures
from unify_agent.search.serper import PAGE_CHARS, SPARE, list_of, text_of
from unify_agent.search.service import Later, Service, wait_of

MOST = 20  # extracts that come with one answer
LEADS = 4  # articles whose lead pictures are looked at
WIDTH = 1280  # pixels of the scaled version that is fetched; the original where it is smaller
TEXT_LICENCE = "CC BY-SA 4.0"
LONGEST_FACT = 4000  # characters of a field of a file's metadata that are looked at
_HL = re.compile(r"[a-z]{2,3}(?:[-_][a-z0-9]+)*", re.IGNORECASE)
_EDITIONS = {"nb": "no", "nn": "nn", "iw": "he", "in": "id", "fil": "tl", "jp": "ja", "cn": "zh"}
_LATER = frozenset({"maxlag", "ratelimited", "readonly", "cirrussearch-too-busy-error"})
_TAG = re.compile(r"<[^>]*>")


def edition(hl: str | None) -> str:
    """The language edition for a language code: `zh` for zh-CN, `no` for nb; English when there is none.

    Raises SearchError for what is not a language code.
    """
    if not hl:
        return "en"
    if not _HL.fullmatch(hl):
        raise SearchError("bad_request", f"wikipedia: hl {hl[:20]!r} is not a language code such as en or zh")
    base = re.split("[-_]", hl.lower())[0]
    return _EDITIONS.get(base, base)


class Wikipedia:
    """The back end; both methods as in `SearchBackend`. A place is not part of what an encyclopedia can be asked.

    url: of an edition's API, with `{language}`; commons: of the API of the file collection.
    """

    name = "wikipedia"
    early = True

    def __init__(self, url: str, commons: str, service: Service, pictures: Pictures) -> None:
        self._url, self._commons, self._service, self._pictures = url, commons, service, pictures

    def text_search(self, q: str, hl: str | None = None, top_k: int = 5) -> list[TextHit]:
        """The best articles in the language of `hl`, the part of each introduction that the question is about."""
        found = self._search(
            self._url.replace("{language}", edition(hl)), q, min(top_k, MOST), hl, prop="extracts|info",
            exintro=1, explaintext=1, exlimit="max", inprop="url",
        )  # fmt: skip
        return [
            TextHit(
                text_of(page, "title"), excerpt(text_of(page, "extract"), q, PAGE_CHARS),
                public_url(text_of(page, "fullurl")), TEXT_LICENCE,
            )
            for page in found
        ]  # fmt: skip

    def search_image(
        self, q: str, location: str | None = None, hl: str | None = None, num: int = 8, on_hit: OnHit | None = None
    ) -> list[ImageHit]:
        """Lead pictures of articles, then files of Wikimedia Commons; each with licence, author and page."""
        candidates = self._leads(q, hl)
        files = self._search(
            self._commons, q, min(SPARE * num, 50), hl, gsrnamespace=6, prop="imageinfo", **self._image_info(hl)
        )
        candidates += [found for page in files if (found := _candidate(page, "")) is not None]
        unique: dict[str, Candidate] = {}
        for each in candidates:
            unique.setdefault(each.url, each)
        return self._pictures.gather(list(unique.values()), num, on_hit)

    def _leads(self, q: str, hl: str | None) -> list[Candidate]:
        api = self._url.replace("{language}", edition(hl))
        articles = self._search(api, q, LEADS, hl, prop="pageimages", piprop="name", pilimit="max", pilicense="any")
        named: dict[str, str] = {}
        for page in articles:
            if name := text_of(page, "pageimage").replace("_", " "):
                named.setdefault(name, text_of(page, "title"))
        if not named:
            return []
        asked = {"titles": "|".join(f"File:{name}" for name in named), "prop": "imageinfo", **self._image_info(hl)}
        pages = self._ask(api, asked, hl)
        by_name = {text_of(page, "title").partition(":")[2]: page for page in pages}
        found = (_candidate(by_name.get(name, {}), title) for name, title in named.items())
        return [each for each in found if each is not None]

    @staticmethod
    def _image_info(hl: str | None) -> dict[str, Any]:
        return {
            "iiprop": "url|size|mime|extmetadata", "iiurlwidth": WIDTH,
            "iiextmetadatafilter": "LicenseShortName|Artist|ObjectName", "iiextmetadatalanguage": edition(hl),
        }  # fmt: skip

    def _search(self, api: str, q: str, limit: int, hl: str | None, **more: Any) -> list[dict[str, Any]]:
        return self._ask(api, {"generator": "search", "gsrsearch": q, "gsrlimit": limit, **more}, hl)

    def _ask(self, api: str, params: Mapping[str, Any], hl: str | None) -> list[dict[str, Any]]:
        """The pages of an answer, best first."""
        asked = {"action": "query", "format": "json", "formatversion": 2, "maxlag": 5, **params}
        try:
            answer = self._service.json("GET", api, params=asked, check=_refusal)
        except SearchError as error:
            if error.kind == "bad_request" and api != self._commons and "HTTP 404" in str(error):
                raise SearchError("bad_request", f"wikipedia: no edition in the language {edition(hl)!r}") from None
            raise
        query = answer.get("query", {})
        pages = list_of(query, "pages", self.name) if isinstance(query, dict) else []
        return sorted((page for page in pages if isinstance(page, dict)), key=_place)


def _place(page: dict[str, Any]) -> int:
    index = page.get("index")
    return index if isinstance(index, int) else 0


def _refusal(answer: dict[str, Any], headers: Mapping[str, str]) -> None:
    """MediaWiki says no with status 200 and an `error` object."""
    error = answer.get("error")
    if error is None:
        return
    code, text = text_of(error, "code"), text_of(error, "info")[:160]
    if code in _LATER:
        raise Later(f"{code}: {text}", wait_of(headers))
    raise SearchError("bad_request", f"{code}: {text}")


def _candidate(page: dict[str, Any], title: str) -> Candidate | None:
    """A file's page as a candidate; None when it shows no picture (a sound, a film, ...)."""
    info = page.get("imageinfo")
    first = info[0] if isinstance(info, list) and info and isinstance(info[0], dict) else {}
    address = text_of(first, "thumburl") or text_of(first, "url")
    if not text_of(first, "mime").startswith("image/") or not address:
        return None
    facts = first.get("extmetadata")
    name = _plain(facts, "ObjectName") or text_of(page, "title").partition(":")[2].rpartition(".")[0]
    return Candidate(
        address, title or name, text_of(first, "descriptionurl"),
        _plain(facts, "LicenseShortName"), _plain(facts, "Artist"),
    )  # fmt: skip


def _plain(facts: Any, key: str) -> str:
    """A field of a file's metadata without its markup."""
    fact = facts.get(key) if isinstance(facts, dict) else None
    return " ".join(html.unescape(_TAG.sub(" ", text_of(fact, "value")[:LONGEST_FACT])).split())[:200]
