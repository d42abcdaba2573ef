"""Fetching from addresses that other people chose: the only place that opens a connection for a search.

Every connection goes to an address that was looked up, checked (addresses.py) and then used as it is, so a name that
changes its mind between the check and the connection changes nothing. Redirects are followed here, each checked again.
Bytes are counted after decompression, while they arrive; one clock runs over names, connections, headers and content,
so a server that sends a byte now and then does not hold a search.

Behind a proxy (`https_proxy`, `no_proxy`, ...) the proxy connects: what this machine can look up is checked, the rest
is for the proxy to refuse. Local addresses that the user allows are visited without it.
"""

from __future__ import annotations

import contextlib
import ssl
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from time import monotonic
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from unify_agent.errors import UserError
from unify_agent.search.addresses import Network, check, public, resolve
from unify_agent.search.base import SearchError

SCHEMES = ("http", "https")
LONGEST_URL = 4000
_KEPT_HEADERS = ("accept", "accept-encoding", "accept-language", "user-agent")
"""What a redirect to another host may see: no key among them."""


LookUp = Callable[[str, int], list[str]]
"""Host and port to numeric addresses."""
_look_ups = ThreadPoolExecutor(16, thread_name_prefix="names")


@dataclass(frozen=True)
class Limits:
    """Of one request with its redirects: bytes of content, seconds altogether and of a silence, redirects."""

    content: int = 8 * 2**20
    seconds: float = 30.0
    silence: float = 15.0
    redirects: int = 5


USUAL = Limits()


@dataclass(frozen=True)
class Answer:
    """What came back. `url` is where it came from in the end; header names are lower case."""

    status: int
    url: str
    headers: Mapping[str, str]
    content: bytes


def read_url(text: str) -> httpx.URL:
    """A URL that may be asked for. Raises SearchError (`refused`) for other schemes, no host, or a password."""
    try:
        if len(text) > LONGEST_URL:
            raise httpx.InvalidURL("too long")
        url = httpx.URL(text)
        if url.port is not None and not 0 < url.port < 65536:
            raise httpx.InvalidURL(f"port {url.port}")
    except (httpx.InvalidURL, ValueError) as error:
        raise SearchError("refused", f"{text[:80]!r} is not an address ({error})") from None
    if url.scheme not in SCHEMES or not url.host:
        raise SearchError("refused", f"{text[:80]!r} is not an http or https address")
    if url.userinfo:
        raise SearchError("refused", f"an address of {url.host} holds a user name or a password")
    return url


def public_url(text: Any) -> str:
    """An address as it may be kept in a record: http or https, without a password; else ""."""
    try:
        url = httpx.URL(text) if isinstance(text, str) and len(text) <= LONGEST_URL else httpx.URL("")
    except (httpx.InvalidURL, ValueError):
        return ""
    return str(url.copy_with(username="", password="")) if url.scheme in SCHEMES and url.host else ""


@dataclass
class _Clock:
    """When a request has to be over, and how long it may wait for the next byte."""

    limits: Limits
    end: float = field(init=False)

    def __post_init__(self) -> None:
        self.end = monotonic() + self.limits.seconds

    def left(self) -> float:
        left = self.end - monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout(f"more than {self.limits.seconds:g} s")
        return min(left, self.limits.silence)


class _Stream(httpcore.NetworkStream):
    """A connection whose every step is bounded by the clock."""

    def __init__(self, stream: httpcore.NetworkStream, clock: _Clock) -> None:
        self._stream, self._clock = stream, clock

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._clock.left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._clock.left())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, self._clock.left()), self._clock)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _addresses(look_up: LookUp, host: str, port: int, clock: _Clock) -> list[str]:
    try:
        return _look_ups.submit(look_up, host, port).result(clock.left())
    except TimeoutError:
        raise httpcore.ConnectTimeout(f"the name {host} is not looked up in time") from None
    except OSError as error:
        raise httpcore.ConnectError(f"no such host ({error})") from None


class _Network(httpcore.NetworkBackend):
    """Connects to checked addresses only; `None` for `allowed` checks nothing (the user's own proxy)."""

    def __init__(self, clock: _Clock, allowed: Sequence[Network] | None, look_up: LookUp) -> None:
        self._clock, self._allowed, self._look_up = clock, allowed, look_up
        self._plain = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable | None = None,
    ) -> httpcore.NetworkStream:
        addresses = _addresses(self._look_up, host, port, self._clock)
        if self._allowed is not None:
            check(host, addresses, self._allowed)
        fault: Exception = httpcore.ConnectError("no address")
        for address in addresses:
            try:
                return _Stream(
                    self._plain.connect_tcp(address, port, self._clock.left(), local_address, socket_options),
                    self._clock,
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                fault = error
        raise fault


class Fetcher:
    """Asks for one thing at a time, from any number of threads.

    allowed: networks that may be visited although they are not public. look_up: host and port to numeric addresses.
    """

    def __init__(
        self,
        user_agent: str,
        allowed: Sequence[Network] = (),
        look_up: LookUp = resolve,
    ) -> None:
        self.user_agent, self.allowed, self._look_up = user_agent, tuple(allowed), look_up

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        limits: Limits = USUAL,
    ) -> Answer:
        """The answer, whatever its status. GET follows redirects; any other method takes one as the answer.

        Raises SearchError: `refused` for an address that may not be visited, `too_large`, `bad_answer` for content that
        does not unpack, `service_down` when nothing, or nothing in time, comes back. No message holds a header.
        """
        sent = {"user-agent": self.user_agent, "accept-encoding": "gzip"}
        sent |= {name.lower(): value for name, value in (headers or {}).items()}
        target, clock = read_url(url), _Clock(limits)
        for _ in range(limits.redirects + 1):
            answer = self._one(method, target, sent, body, clock)
            place = answer.headers.get("location")
            if method != "GET" or answer.status not in (301, 302, 303, 307, 308) or not place:
                return answer
            before = target
            target = read_url(_join(before, place))
            if (before.scheme, before.host, before.port) != (target.scheme, target.host, target.port):
                sent = {name: value for name, value in sent.items() if name in _KEPT_HEADERS}
        raise SearchError("refused", f"{read_url(url).host} redirects more than {limits.redirects} times")

    def _one(
        self, method: str, url: httpx.URL, headers: Mapping[str, str], body: bytes | None, clock: _Clock
    ) -> Answer:
        """One request, its redirect not followed."""
        port = url.port or (443 if url.scheme == "https" else 80)
        headers = {"host": url.netloc.decode(), **headers}
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=port, target=url.raw_path)
        shown = f"{url.scheme}://{url.host}"
        try:
            with (
                self._connection(url, target.origin, clock) as connection,
                connection.stream(method, target, headers=headers, content=body) as response,
            ):
                found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
                room = clock.limits.content if response.status < 400 else min(clock.limits.content, 2**16)
                try:
                    content = _content(response.iter_stream(), found, room, shown)
                except SearchError:
                    if response.status < 400:
                        raise
                    content = b""  # an error page: its status says enough
        except httpcore.TimeoutException:
            raise SearchError("service_down", f"{shown} did not answer in time") from None
        except httpcore.ProtocolError:  # its text may hold what was sent or received
            raise SearchError("service_down", f"{shown} does not answer as HTTP demands, or breaks off") from None
        except (httpcore.NetworkError, httpcore.ProxyError, OSError) as error:
            raise SearchError("service_down", f"{shown} cannot be reached ({_reason(error)})") from None
        return Answer(response.status, str(url), found, content)

    @contextlib.contextmanager
    def _connection(self, url: httpx.URL, origin: httpcore.Origin, clock: _Clock) -> Iterator[Any]:
        proxy = None if proxy_bypass(url.host) else getproxies().get(url.scheme)
        if proxy is not None:
            with contextlib.suppress(httpcore.ConnectError):  # only the proxy knows the name
                addresses = _addresses(self._look_up, url.host, origin.port, clock)
                check(url.host, addresses, self.allowed)
                if not all(map(public, addresses)):  # allowed, and no proxy leads there
                    proxy = None
        if proxy is None:
            network = _Network(clock, self.allowed, self._look_up)
            with httpcore.HTTPConnection(origin, ssl_context=_trusted(), network_backend=network) as connection:
                yield connection
            return
        try:
            through = httpx.Proxy(proxy if "://" in proxy else f"http://{proxy}")
        except (ValueError, httpx.InvalidURL):
            raise UserError(f"{url.scheme}_proxy: only an http or https proxy can be used") from None
        if through.url.scheme not in SCHEMES:
            raise UserError(f"{url.scheme}_proxy: a {through.url.scheme} proxy can't be used, only http or https")
        pool = httpcore.HTTPProxy(
            str(through.url), proxy_auth=through.raw_auth, ssl_context=_trusted(),
            network_backend=_Network(clock, None, self._look_up),
        )  # fmt: skip
        with pool:
            yield pool


@lru_cache(maxsize=1)
def _trusted() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def _join(url: httpx.URL, place: str) -> str:
    try:
        return str(url.join(place))
    except (httpx.InvalidURL, ValueError):
        raise SearchError("refused", f"{url.host} redirects to {place[:80]!r}, which is not an address") from None


def _reason(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__


def _content(pieces: Iterable[bytes], headers: Mapping[str, str], room: int, shown: str) -> bytes:
    """The whole content, unpacked, or a SearchError as soon as it is more than `room` bytes."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip", "x-gzip"):
        raise SearchError("bad_answer", f"{shown} answers packed as {encoding[:40]!r}, which was not asked for")
    unpack = zlib.decompressobj(31) if encoding.endswith("gzip") else None
    too_large = SearchError("too_large", f"{shown} sends more than {room} bytes")
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > room:
        raise too_large
    content, received = bytearray(), 0
    for piece in pieces:
        received += len(piece)
        if unpack is not None:
            try:
                piece = unpack.decompress(piece, room + 1 - len(content))
            except zlib.error:
                raise SearchError("bad_answer", f"{shown} answers with a damaged gzip stream") from None
        content += piece
        if len(content) > room or received > room:
            raise too_large
    if unpack is not None and not unpack.eof and received:
        raise SearchError("bad_answer", f"{shown} answers with a gzip stream that breaks off")
    return bytes(content)
