"""Fetching what others chose: redirects, rebinding, sizes, times, packed bombs; against a local server."""

import gzip
import itertools
import socket
import threading
import zlib

import pytest
from search_tools import Reply, fetcher, serving

from unify_agent.search.addresses import resolve
from unify_agent.search.base import SearchError
from unify_agent.search.fetch import Limits, public_url, read_url

SMALL = Limits(content=10_000, seconds=20)


def kind_of(call, *arguments, **more):
    with pytest.raises(SearchError) as caught:
        call(*arguments, **more)
    return caught.value.kind, str(caught.value)


def test_an_answer_comes_back_with_its_status_and_headers():
    with serving(lambda asked: Reply("hello", 404, {"X-Thing": "1"})) as server:
        answer = fetcher().request("GET", f"{server.url}/a?b=c", {"Accept": "text/plain"})
    assert (answer.status, answer.content, answer.headers["x-thing"]) == (404, b"hello", "1")
    (asked,) = server.asked
    assert asked.path == "/a" and asked.query == {"b": "c"} and asked.headers["accept"] == "text/plain"
    assert asked.headers["user-agent"] == "test-agent" and asked.headers["host"] == f"127.0.0.1:{server.port}"


def test_a_local_address_is_not_even_connected_to():
    with serving(lambda asked: Reply("secret")) as server:
        for spelling in ("127.0.0.1", "2130706433", "0x7f.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
            kind, text = kind_of(fetcher("").request, "GET", f"http://{spelling}:{server.port}/")
            assert kind == "refused" and "not a public address" in text
    assert server.asked == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_a_private_address_is_refused(status):
    def answer(asked):
        return Reply("", status, {"Location": f"http://127.0.0.2:{inner.port}/admin"})

    with serving(lambda asked: Reply("secret"), "127.0.0.2") as inner, serving(answer) as server:
        kind, text = kind_of(fetcher().request, "GET", server.url)
    assert kind == "refused" and "127.0.0.2" in text and inner.asked == []


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://example.com/x", "gopher://127.0.0.1:1/", "http://",
                                   "http://user:pass@127.0.0.1/", "http://[::1"])  # fmt: skip
def test_a_redirect_to_something_else_than_the_web_is_refused(place):
    with serving(lambda asked: Reply("", 302, {"Location": place})) as server:
        kind, text = kind_of(fetcher().request, "GET", server.url)
    assert kind == "refused" and "pass@" not in text


def test_redirects_are_followed_and_end():
    def answer(asked):
        number = int(asked.path[1:])
        return Reply("done") if number == 3 else Reply("", 302, {"Location": f"/{number + 1}"})

    with serving(answer) as server:
        assert fetcher().request("GET", f"{server.url}/0").url == f"{server.url}/3"
        server.asked.clear()
        kind, text = kind_of(fetcher().request, "GET", f"{server.url}/4", limits=Limits(redirects=3))
    assert kind == "refused" and "more than 3 times" in text
    assert server.paths() == ["/4", "/5", "/6", "/7"]


def test_a_key_does_not_follow_a_redirect_to_another_host():
    with serving(lambda asked: Reply("there"), "127.0.0.2") as other:
        with serving(lambda asked: Reply("", 302, {"Location": f"{other.url}/x"})) as server:
            client = fetcher("127.0.0.0/8")
            client.request("GET", server.url, {"X-Api-Key": "sk-1", "Authorization": "Bearer 2", "Accept": "a/b"})
            client.request("POST", server.url, {"X-Api-Key": "sk-1"}, b"{}")  # a post is not sent anywhere else
    (asked,) = other.asked
    assert "x-api-key" not in asked.headers and "authorization" not in asked.headers
    assert asked.headers["accept"] == "a/b"
    assert server.asked[0].headers["x-api-key"] == "sk-1"


def test_a_name_that_changes_its_address_after_the_check_changes_nothing():
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])
    looked_up = []

    def look_up(host, port):
        looked_up.append(host)
        return next(answers)

    with serving(lambda asked: Reply("ok")) as server:
        client = fetcher("127.0.0.1", look_up=look_up)
        assert client.request("GET", f"http://rebind.example:{server.port}/").content == b"ok"
        assert looked_up == ["rebind.example"]  # one look-up: what is checked is what is connected to
        assert server.asked[0].headers["host"] == f"rebind.example:{server.port}"
        assert kind_of(client.request, "GET", f"http://rebind.example:{server.port}/")[0] == "refused"


@pytest.mark.parametrize("hop", [1, 2, 5])
def test_every_hop_is_checked_also_when_the_name_was_good_at_the_hop_before(hop):
    looked_up = []

    def look_up(host, port):
        looked_up.append(host)
        return ["127.0.0.1"] if len(looked_up) <= hop else ["10.0.0.7"]

    def answer(asked):
        return Reply("", 302, {"Location": f"http://rebind.example:{server.port}/{len(looked_up)}"})

    with serving(answer) as server:
        client = fetcher("127.0.0.1", look_up=look_up)
        kind, text = kind_of(client.request, "GET", f"http://rebind.example:{server.port}/0")
    assert kind == "refused" and "10.0.0.7" in text and len(server.asked) == hop


def test_a_name_that_takes_for_ever_to_look_up_is_given_up():
    end = threading.Event()
    client = fetcher(look_up=lambda host, port: end.wait(20) and [])
    try:
        kind, text = kind_of(client.request, "GET", "http://slow.example/", limits=Limits(seconds=0.05))
    finally:
        end.set()
    assert kind == "service_down" and "in time" in text


def test_the_next_address_of_a_host_is_tried():
    with serving(lambda asked: Reply("ok")) as server:
        client = fetcher("127.0.0.0/8", look_up=lambda host, port: ["127.0.0.9", "127.0.0.1"])
        assert client.request("GET", f"http://two.example:{server.port}/").content == b"ok"


def test_too_much_is_not_read_to_the_end():
    sent = []

    def endless():
        for number in itertools.count():
            sent.append(number)
            yield b"x" * 4096

    with serving(lambda asked: Reply(pieces=endless())) as server:
        assert kind_of(fetcher().request, "GET", server.url, limits=SMALL)[0] == "too_large"
    assert len(sent) < 2000
    with serving(lambda asked: Reply("", headers={"Content-Length": "99999999"})) as server:
        assert kind_of(fetcher().request, "GET", server.url, limits=SMALL)[0] == "too_large"


def test_packed_content_is_unpacked_and_a_bomb_is_not():
    packed = {
        "/text": gzip.compress(b"hello " * 100),
        "/bomb": gzip.compress(b"\0" * 30_000_000),
        "/damaged": gzip.compress(b"hello " * 100)[:-20],
        "/not": b"plain text",
    }
    with serving(lambda asked: Reply(packed[asked.path], headers={"Content-Encoding": "gzip"})) as server:
        ask = fetcher().request
        assert ask("GET", f"{server.url}/text", limits=SMALL).content == b"hello " * 100
        assert kind_of(ask, "GET", f"{server.url}/bomb", limits=SMALL)[0] == "too_large"
        assert kind_of(ask, "GET", f"{server.url}/damaged", limits=SMALL)[0] == "bad_answer"
        assert kind_of(ask, "GET", f"{server.url}/not", limits=SMALL)[0] == "bad_answer"


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "zstd"])
def test_an_encoding_that_was_not_asked_for_is_not_guessed(encoding):
    with serving(lambda asked: Reply(zlib.compress(b"x"), headers={"Content-Encoding": encoding})) as server:
        assert kind_of(fetcher().request, "GET", server.url)[0] == "bad_answer"


def test_one_clock_runs_over_a_server_that_drips(monkeypatch):
    """A byte and a second for every look at the clock: the silence limit is never reached, the total is."""
    now, looked = itertools.count(), threading.Semaphore(0)

    def look():
        looked.release()
        return float(next(now))

    monkeypatch.setattr("unify_agent.search.fetch.monotonic", look)
    drips = (b"x" for _ in itertools.takewhile(lambda _: looked.acquire(timeout=20), range(10_000)))
    with serving(lambda asked: Reply(pieces=drips)) as server:
        kind, text = kind_of(fetcher().request, "GET", server.url, limits=Limits(seconds=40))
    assert kind == "service_down" and "in time" in text


def test_silence_and_a_closed_port_are_a_service_that_is_down():
    with socket.socket() as listener:  # accepts connections and never says a word
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        kind, text = kind_of(fetcher().request, "GET", url, limits=Limits(silence=0.05))
        assert kind == "service_down" and "in time" in text
    assert kind_of(fetcher().request, "GET", url)[0] == "service_down"


@pytest.mark.parametrize(
    "content", [b"", b"\x00\x01nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort"]
)
def test_a_server_that_does_not_speak_http_is_down(content):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(content)

        thread = threading.Thread(target=serve)
        thread.start()
        kind, _ = kind_of(fetcher().request, "GET", f"http://127.0.0.1:{listener.getsockname()[1]}/")
        thread.join()
    assert kind == "service_down"


def test_no_key_is_in_any_message():
    kind, text = kind_of(fetcher().request, "GET", "http://127.0.0.1:9/", {"x-api-key": "sk-bad\nkey"})
    assert kind == "service_down" and "sk-bad" not in text


@pytest.mark.parametrize("url", ["", "no address", "/path", "javascript:alert(1)", "data:image/png;base64,AA",
                                 "http://", "https://a:b@example.com/", "http://example.com/" + "x" * 5000,
                                 "http://:80/", "http://[::1", "http://example.com:99999/"])  # fmt: skip
def test_what_is_not_a_web_address_is_refused(url):
    assert kind_of(read_url, url)[0] == "refused"


def test_addresses_are_kept_without_passwords():
    assert public_url("https://me:secret@example.com/a?b=1") == "https://example.com/a?b=1"
    for other in ("javascript:alert(1)", "/x", None, 7, "http://[::1", "x" * 9000):
        assert public_url(other) == ""


def test_behind_a_proxy_the_proxy_is_asked_and_local_names_are_still_refused(monkeypatch):
    with serving(lambda asked: Reply("through the proxy")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)

        def look_up(host, port):
            if host.endswith(".invalid"):
                raise OSError("unknown here")
            return resolve(host, port)

        client = fetcher("", look_up=look_up)
        assert client.request("GET", "http://somewhere.invalid/x").content == b"through the proxy"
        assert kind_of(client.request, "GET", "http://169.254.169.254/latest/meta-data")[0] == "refused"
        assert kind_of(client.request, "GET", "http://localhost/x")[0] == "refused"
        with serving(lambda asked: Reply("mine")) as mine:  # allowed by name, so the proxy is not asked
            assert fetcher().request("GET", mine.url).content == b"mine"
    assert [each.headers["host"] for each in proxy.asked] == ["somewhere.invalid"]
