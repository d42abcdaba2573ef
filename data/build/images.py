"""Who draws: an endpoint that takes references (OpenAI's images and edits protocol), or our own model.

    POST {url}/images/generations   {"model", "prompt", "size", "n", "seed", ...}         without references
    POST {url}/images/edits         the same as a form, with `image[]` for each of them

An answer holds a picture as base64 or an address, which is fetched as any address from outside. What counts as a
picture is what decodes as one: a web page named image/png is an error, tried again. It is kept as a PNG of its own
making under the hash of its content, on the disk before the log says so and before anybody uses it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from data.build.spec import Image, Spec
from unify_agent import __version__
from unify_agent.agent.episode import Episode
from unify_agent.agent.options import size_of
from unify_agent.agent.record import png
from unify_agent.files import digest, write_bytes
from unify_agent.interleave.segments import Unusable
from unify_agent.judging import ChatError, Endpoint, Gate, Log, Picture, PicturePolicy, Spent
from unify_agent.judging.answers import PASSING
from unify_agent.judging.client import Usage
from unify_agent.judging.pace import Pace
from unify_agent.judging.transport import Transport, token_count
from unify_agent.search.addresses import Network, parse_allowed, resolve
from unify_agent.search.base import SearchError
from unify_agent.search.fetch import Fetcher, Limits
from unify_agent.search.pictures import plain_picture

SENT = PicturePolicy(longest=1536)
FETCHED = Limits(content=40 * 2**20, seconds=60.0)
BACKOFF = 1.0
FOLDER = "pictures"


class Draws(Protocol):
    """Who draws. Called from many threads."""

    name: str
    usage: Usage

    def draw(self, episode: Episode, number: int, seed: int) -> Path:
        """The picture of an episode's recaption and references, for trial `number`.

        It lies in the folder of pictures. Raises ChatError, and whatever the gate raises.
        """

    def described(self) -> dict[str, Any]:
        """Who this is, for records."""

    def close(self) -> None:
        """Releases what is open."""


def open_image(spec: Spec, folder: Path, log: Log, gate: Gate) -> Draws:
    """Who the spec says. Raises UserError for an address, a key or a model that is none."""
    settings = spec.services.image
    if settings.own:
        from data.build.ownmodel import OwnModel

        return OwnModel(settings, folder / FOLDER, log, gate)
    return EndpointImages(settings, folder / FOLDER, log, gate)


class Kept:
    """Pictures in a folder, found again in a log by what they were drawn from. `usage.cached`: how often."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.folder, self.log, self.usage = folder, log, Usage()
        self._lock = threading.Lock()

    def find(self, key: str) -> Path | None:
        """The picture that was drawn for this, when its file is still there."""
        known = self.log.find(key)
        path = None if known is None else self.folder / str(known["picture"])
        if path is None or not path.is_file():
            return None
        with self._lock:
            self.usage.cached += 1
        return path

    def keep(self, key: str, data: bytes, **about: Any) -> Path:
        """Writes a PNG, then says so in the log. `about`: what else the log's record holds."""
        sha = digest(data)
        name = f"{sha[:2]}/{sha}.png"
        write_bytes(self.folder / name, data)
        self.log.append({"key": key, "answer": {"picture": name}} | about)
        return self.folder / name


def key_of(record: Mapping[str, Any]) -> str:
    """What a picture is found again under: all that it was drawn from."""
    return digest("picture", json.dumps(record, sort_keys=True, ensure_ascii=True))


class EndpointImages:
    """Asks an endpoint. A seed is sent until the server says that it knows none."""

    def __init__(self, settings: Image, folder: Path, log: Log, gate: Gate, backoff: float = BACKOFF) -> None:
        self.name = settings.model
        self._settings, self._kept, self._gate = settings, Kept(folder, log), gate
        self.usage = self._kept.usage
        self._endpoint = Endpoint.parse(
            settings.url, settings.model, key_env=settings.key_env, timeout=settings.timeout, extra=settings.extra
        )
        self._pace = Pace(None, backoff)
        self._transport = Transport(self._endpoint, settings.concurrency, self._pace)
        self._fetcher = Fetcher(f"unify-agent/{__version__}", _own_addresses(self._endpoint))
        self._seeded = True

    def described(self) -> dict[str, Any]:
        return {"model": self.name, "size": self._settings.size, **self._settings.extra}

    def close(self) -> None:
        self._pace.stop()
        self._transport.close()

    def draw(self, episode: Episode, number: int, seed: int) -> Path:
        """As `Draws`. Raises ChatError of kind `refused` at once where the content is not to the service's liking."""
        references = [Picture.of(each.hit.path, SENT) for each in episode.references]
        record = {
            "model": self.name, "prompt": episode.recaption, "references": [each.digest for each in references],
            "sent": [SENT.longest, SENT.format], "size": self._settings.size, "extra": dict(self._settings.extra),
            "seed": seed, "trial": number,
        }  # fmt: skip
        key = key_of(record)
        known = self._kept.find(key)
        return known if known is not None else self._ask(key, record, references)

    def _ask(self, key: str, record: dict[str, Any], references: list[Picture]) -> Path:
        for attempt in range(1, self._settings.attempts + 1):
            self._pace.wait()
            try:
                with self._gate.attempt(Spent(pictures=1)) as spent:
                    answer = self._posted(record, references)
                    spent.pictures = 1
                    spent.prompt, spent.completion = _tokens(answer)
                    data = self._picture(answer)
            except ChatError as error:
                failure = {"kind": error.kind, "detail": error.detail}
                self._kept.log.append({"key": key, "attempt": attempt, "error": failure, "request": record})
                if error.kind not in PASSING or attempt == self._settings.attempts:
                    raise
                self._pace.back_off(attempt)
            else:
                return self._kept.keep(key, data, attempt=attempt, request=record)
        raise AssertionError("the last attempt returns or raises")

    def _posted(self, record: dict[str, Any], references: list[Picture]) -> Any:
        height, width = size_of(self._settings.size)
        while True:
            seeded = self._seeded
            fields: dict[str, Any] = {
                "model": self.name, "prompt": record["prompt"], "n": 1, "size": f"{width}x{height}",
                **({"seed": record["seed"]} if seeded else {}), **self._endpoint.extra,
            }  # fmt: skip
            try:
                if not references:
                    return self._transport.exchange("POST", "/images/generations", json=fields)
                files = [
                    ("image[]", (f"image_{k}.png", _sent(each), "image/png")) for k, each in enumerate(references, 1)
                ]
                form = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
                return self._transport.exchange("POST", "/images/edits", data=form, files=files)
            except ChatError as error:
                if not (seeded and error.kind == "refused" and re.search(r"\bseed\b", error.detail)):
                    raise
                self._seeded = False

    def _picture(self, answer: Any) -> bytes:
        """The picture of an answer, as a PNG of our own making. Raises ChatError for what is none."""
        try:
            (first, *_) = answer["data"]
            packed, address = first.get("b64_json"), first.get("url")
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ChatError("empty", "the answer holds no picture") from None
        if isinstance(address, str) and address.startswith("data:"):
            packed = address.partition("base64,")[2]
        try:
            data = base64.b64decode(packed, validate=True) if isinstance(packed, str) else self._fetched(address)
            picture, _ = plain_picture(data, f"what {self.name} sent")
        except (binascii.Error, ValueError):
            raise ChatError("malformed", "the picture is not base64") from None
        except (Unusable, SearchError) as error:
            raise ChatError("malformed", str(error)) from None
        return png(picture)

    def _fetched(self, address: Any) -> bytes:
        if not isinstance(address, str):
            raise SearchError("bad_answer", "the answer holds neither base64 nor an address")
        found = self._fetcher.request("GET", address, {"accept": "image/*"}, limits=FETCHED)
        if found.status != 200:
            raise SearchError("bad_answer", f"the picture's address answers HTTP {found.status}")
        return found.content


def _own_addresses(endpoint: Endpoint) -> tuple[Network, ...]:
    """Where a service of the user's own network may serve its pictures: where it is itself."""
    if not endpoint.is_local:
        return ()
    try:
        return parse_allowed(resolve(urlsplit(endpoint.base_url).hostname or "", 80))
    except OSError:
        return ()


def _sent(picture: Picture) -> bytes:
    """The PNG of a reference as it goes over the wire."""
    return base64.b64decode(picture.data_uri().partition("base64,")[2])


def _tokens(answer: Any) -> tuple[int, int]:
    """Tokens that the service counts, in and out."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    given = [usage.get(name) if isinstance(usage, dict) else 0 for name in ("input_tokens", "output_tokens")]
    into, out = (token_count(each) or 0 for each in given)
    return into, out
