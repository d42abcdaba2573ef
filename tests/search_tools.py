"""Local servers that speak the protocols of the search services, and speak them badly when told to."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import numpy as np
from PIL import Image, ImageDraw

from unify_agent.search.addresses import parse_allowed
from unify_agent.search.fetch import USUAL, Fetcher, Limits
from unify_agent.search.service import Service

KEY = "sk-secret-0123456789"


@dataclass(frozen=True)
class Asked:
    """A request as the server saw it; header names are lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """What the server sends; `pieces` instead of a body are sent one by one, without a length."""

    body: bytes | str | dict | list = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pieces: Iterator[bytes] | None = None


@dataclass
class Server:
    """An open server: its address, and what it was asked in order."""

    url: str
    port: int
    asked: list[Asked] = field(default_factory=list)

    def paths(self) -> list[str]:
        return [each.path for each in self.asked]


@contextmanager
def serving(answer: Callable[[Asked], Reply], host: str = "127.0.0.1") -> Iterator[Server]:
    """Runs a server that answers every request with `answer`."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def _handle(self):
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Asked(self.command, parts.path, query, headers, body)
            server.asked.append(request)
            reply = answer(request)
            content = reply.body if isinstance(reply.body, bytes | str) else json.dumps(reply.body)
            content = content.encode() if isinstance(content, str) else content
            try:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                if reply.pieces is None and not any(name.lower() == "content-length" for name in reply.headers):
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                for piece in reply.pieces if reply.pieces is not None else (content,):
                    self.wfile.write(piece)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client had enough

        do_GET = do_POST = _handle

    class Listener(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request, client_address):
            pass

    listener = Listener((host, 0), Handler)
    port = listener.server_address[1]
    server = Server(f"http://{host}:{port}", port)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()


def fetcher(allowed: str = "127.0.0.1", **more) -> Fetcher:
    """A fetcher that may visit our servers on 127.0.0.1 and nothing else that is local."""
    return Fetcher("test-agent", parse_allowed(allowed), **more)


@dataclass
class Clock:
    """Time that passes only when somebody sleeps."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def time(self) -> float:
        return self.now


def service(name: str = "serper", clock: Clock | None = None, limits: Limits = USUAL, key: str = "", **more) -> Service:
    """A service that waits on a made-up clock."""
    clock = clock or Clock()
    return Service(
        name, fetcher(), 1000.0, limits=limits, key_name="SERPER_API_KEY", key=key, sleep=clock.sleep, now=clock.time,
        **more,
    )  # fmt: skip


def drawing(seed: int = 0, size: tuple[int, int] = (96, 80)) -> Image.Image:
    """A picture of its own: shapes in places and colours that follow from the seed."""
    random = np.random.default_rng(seed)
    picture = Image.new("RGB", size, tuple(int(v) for v in random.integers(150, 256, 3)))
    draw = ImageDraw.Draw(picture)
    for _ in range(4):
        x, y = (int(random.integers(0, side * 3 // 4)) for side in size)
        box = (x, y, x + int(random.integers(8, size[0] // 2)), y + int(random.integers(8, size[1] // 2)))
        draw.ellipse(box, fill=tuple(int(v) for v in random.integers(0, 200, 3)))
    return picture


def encoded(picture: Image.Image, kind: str = "PNG", **more) -> bytes:
    """The file of a picture."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **more)
    return buffer.getvalue()
