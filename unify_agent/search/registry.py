"""Search back ends by name: what `--search` takes.

    index:PATH        a local index (search/index.py)
    serper            Google through serper.dev, pages through the Jina reader (keys: SERPER_API_KEY, JINA_API_KEY)
    wikipedia         articles by language edition, pictures of Wikimedia Commons
    record:DIR:SPEC   any of them, every answer kept in DIR
    replay:DIR        what was recorded in DIR, nothing else

Keys come from the environment alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from unify_agent import __version__
from unify_agent.errors import UserError, nearest
from unify_agent.search.addresses import parse_allowed
from unify_agent.search.base import SearchBackend
from unify_agent.search.fetch import Fetcher, Limits
from unify_agent.search.index import Index
from unify_agent.search.pictures import Pictures
from unify_agent.search.recorded import Recording, Replay
from unify_agent.search.serper import JinaReader, Serper
from unify_agent.search.service import Service, key_from_env
from unify_agent.search.wikipedia import Wikipedia

PICTURE_LIMITS = Limits(content=20 * 2**20, seconds=20.0, silence=8.0)
USER_AGENT = f"unify-agent/{__version__} (text-to-image research; python)"
READERS = ("jina", "none")


@dataclass(frozen=True)
class SearchOptions:
    """What the live back ends may be told, each its own part of it (`TAKEN`); an index and a replay take none of it.

    cache: where fetched pictures stay (None: a folder that ends with the program). allow_local: addresses that may be
    visited although they are not public, as `parse_allowed` reads them. reader: `jina`, or `none` for snippets alone.
    user_agent: who asks; Wikimedia wants a way to reach you in it. *_url: another place that speaks the protocol.
    on_note: told, in a line, of each page and picture that came to nothing.
    """

    cache: Path | str | None = None
    allow_local: str = ""
    reader: str = "jina"
    user_agent: str = USER_AGENT
    serper_url: str = "https://google.serper.dev"
    jina_url: str = "https://r.jina.ai/"
    wikipedia_url: str = "https://{language}.wikipedia.org/w/api.php"
    commons_url: str = "https://commons.wikimedia.org/w/api.php"
    on_note: Callable[[str], None] = lambda line: None


def open_backend(spec: str, **options: object) -> SearchBackend:
    """The back end that `spec` names (see the module), `options` as in `SearchOptions`.

    Raises UserError: what `check_search` refuses, a missing key, a folder that holds no index or no recording.
    """
    check_search(spec, options)
    return _open(spec, SearchOptions(**options))  # type: ignore[arg-type]


def check_search(spec: str, options: Mapping[str, object]) -> None:
    """Raises UserError, before anything is opened, for a `spec` that is none and for options that are not its own."""
    asked, rest = _parsed(spec)
    if asked == "record":
        asked, _ = _parsed(_inner(spec, rest)[1])
    taken = TAKEN[asked]
    for name, value in options.items():
        if name not in _NAMES:
            raise UserError(f"search option '{name}' is not known{nearest(name, taken or _NAMES)}")
        if not taken:
            raise UserError(f"search option '{name}': {asked} takes no options; leave it out")
        if name not in taken:
            raise UserError(f"search option '{name}': {asked} does not take it; it takes {', '.join(taken)}")
        if name == "on_note" and not callable(value):
            raise UserError("search option 'on_note' is a function, which only Python can give")


def _parsed(spec: str) -> tuple[str, str]:
    """Kind and rest of a spec of a known form."""
    kind, colon, rest = spec.partition(":")
    if kind not in FORMS:
        raise UserError(f"search '{spec}' is not known{nearest(kind, sorted(FORMS))}; give one of {_forms()}")
    if bool(rest) != (":" in FORMS[kind]) or (colon and not rest):
        raise UserError(f"search '{spec}': expected {FORMS[kind]}")
    return kind, rest


def _inner(spec: str, rest: str) -> tuple[Path, str]:
    """Folder and inner spec of a recording."""
    folder, _, inner = rest.partition(":")
    if not folder or not inner or inner.partition(":")[0] in ("record", "replay"):
        raise UserError(f"search '{spec}': expected {FORMS['record']}, SPEC being what is recorded, such as wikipedia")
    return Path(folder), inner


def _open(spec: str, options: SearchOptions) -> SearchBackend:
    kind, rest = _parsed(spec)
    if kind == "index":
        return Index.open(rest)
    if kind == "replay":
        return Replay(Path(rest))
    if kind == "record":
        folder, inner = _inner(spec, rest)
        return Recording(folder, _open(inner, options), inner)
    return _serper(options) if kind == "serper" else _wikipedia(options)


FORMS = {
    "index": "index:PATH", "serper": "serper", "wikipedia": "wikipedia",
    "record": "record:DIR:SPEC", "replay": "replay:DIR",
}  # fmt: skip
_LIVE = ("cache", "allow_local", "user_agent", "on_note")
TAKEN: dict[str, tuple[str, ...]] = {
    "index": (), "replay": (), "serper": (*_LIVE, "reader", "serper_url", "jina_url"),
    "wikipedia": (*_LIVE, "wikipedia_url", "commons_url"),
}  # fmt: skip
"""The options that each back end takes; a recording takes those of what it records."""
_NAMES = [field.name for field in fields(SearchOptions)]


def _forms() -> str:
    return ", ".join(FORMS.values())


def _serper(options: SearchOptions) -> Serper:
    if options.reader not in READERS:
        raise UserError(f"search option reader '{options.reader}' is not known{nearest(options.reader, READERS)}")
    key = key_from_env("SERPER_API_KEY", "serper")
    fetcher = _fetcher(options)
    service = Service("serper", fetcher, 10.0, key_name="SERPER_API_KEY", key=key)
    reader = None
    if options.reader == "jina":
        jina = key_from_env("JINA_API_KEY", "the Jina reader", required=False)
        pages = Service(
            "jina", fetcher, 3.0 if jina else 0.3, tries=2, limits=Limits(seconds=45, silence=45),
            key_name="JINA_API_KEY", key=jina,
        )  # fmt: skip
        reader = JinaReader(options.jina_url, pages, jina)
    return Serper(options.serper_url, service, key, _pictures(fetcher, options), reader, on_note=options.on_note)


def _wikipedia(options: SearchOptions) -> Wikipedia:
    fetcher = _fetcher(options)
    service = Service("wikipedia", fetcher, 5.0)
    return Wikipedia(options.wikipedia_url, options.commons_url, service, _pictures(fetcher, options))


def _fetcher(options: SearchOptions) -> Fetcher:
    return Fetcher(options.user_agent, parse_allowed(options.allow_local))


def _pictures(fetcher: Fetcher, options: SearchOptions) -> Pictures:
    service = Service("picture", fetcher, 20.0, tries=2, limits=PICTURE_LIMITS)
    return Pictures(Path(options.cache) if options.cache else None, service, on_note=options.on_note)
