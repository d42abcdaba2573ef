"""One service: tries, waiting, pace, keys that appear nowhere."""

import itertools
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from search_tools import KEY, Clock, Reply, service, serving

from unify_agent.errors import UserError
from unify_agent.search.base import SearchError
from unify_agent.search.service import Later, Pace, key_from_env, wait_of


def replying(*replies):
    """The k-th reply to the k-th request, the last from then on."""
    counter = itertools.count()
    return lambda asked: replies[min(next(counter), len(replies) - 1)]


def error_of(*replies, **more):
    with serving(replying(*replies)) as server, pytest.raises(SearchError) as caught:
        service(**more).json("GET", server.url)
    return caught.value, len(server.asked)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
def test_a_passing_fault_is_tried_again_with_growing_waits(status):
    clock = Clock()
    with serving(replying(Reply("", status), Reply("", status), Reply({"a": 1}))) as server:
        assert service(clock=clock).json("GET", server.url) == {"a": 1}
    waits = [pause for pause in clock.slept if pause > 0.1]
    assert len(server.asked) == 3 and len(waits) == 2
    assert 0.8 <= waits[0] <= 1.2 and 1.6 <= waits[1] <= 2.4


def test_retry_after_is_obeyed_by_everyone_who_asks():
    clock = Clock()
    with serving(replying(Reply("", 429, {"Retry-After": "7"}), Reply({}))) as server:
        asked = service(clock=clock)
        asked.json("GET", server.url)
        assert clock.now - 1000.0 >= 7
        assert len(server.asked) == 2


def test_a_date_can_be_asked_for_and_nonsense_is_nothing():
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    assert 15 < wait_of({"retry-after": soon}) <= 20
    assert wait_of({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    assert wait_of({"retry-after": "soon"}) is None and wait_of({}) is None and wait_of({"retry-after": "-3"}) is None


def test_a_service_that_wants_an_hour_is_down_at_once():
    error, asked = error_of(Reply("", 429, {"Retry-After": "3600"}))
    assert error.kind == "service_down" and asked == 1 and "wait 3600 s" in str(error)


def test_what_stays_broken_is_down_after_all_tries():
    error, asked = error_of(Reply("", 503))
    assert (error.kind, asked) == ("service_down", 4) and "HTTP 503 (tried 4 times)" in str(error)
    with pytest.raises(
        SearchError, match=r"serper: http://127\.0\.0\.1 cannot be reached .* \(tried 4 times\)"
    ) as caught:
        service().json("GET", "http://127.0.0.1:9/")
    assert caught.value.kind == "service_down"


@pytest.mark.parametrize("body", ["", "<html>busy</html>", '{"a": ', "[" * 100_000])
def test_broken_json_is_tried_again_and_then_a_bad_answer(body):
    error, asked = error_of(Reply(body))
    assert (error.kind, asked) == ("bad_answer", 4)
    with serving(replying(Reply(body), Reply({"b": 2}))) as server:
        assert service().json("GET", server.url) == {"b": 2}


def test_json_of_another_shape_is_a_bad_answer():
    error, asked = error_of(Reply("[1, 2]"))
    assert (error.kind, asked) == ("bad_answer", 1)


@pytest.mark.parametrize("status", [401, 402, 403])
def test_a_refused_key_is_said_once_and_never_shown(status):
    error, asked = error_of(Reply({"message": f"no access for {KEY}"}, status), key=KEY)
    assert (error.kind, asked) == ("wrong_key", 1)
    assert str(error) == f"serper: the key in SERPER_API_KEY is not accepted (HTTP {status}: no access for ***)"


def test_a_question_that_is_refused_is_not_asked_again():
    error, asked = error_of(Reply({"message": "Missing query parameter"}, 400))
    assert (error.kind, asked) == ("bad_request", 1) and "Missing query parameter" in str(error)


def test_a_service_that_answers_with_the_key_does_not_spread_it():
    with serving(lambda asked: Reply({"echo": asked.headers["x-api-key"], "title": f"page {KEY}"})) as server:
        asked = service(key=KEY)
        found = asked.json("POST", server.url, body={"q": "x", "none": None}, headers={"x-api-key": KEY})
    assert found == {"echo": "***", "title": "page ***"}
    assert KEY not in repr(asked) and server.asked[0].json == {"q": "x"}


def test_halves_of_surrogate_pairs_do_not_stop_a_question():
    with serving(lambda asked: Reply({})) as server:
        service().json("GET", server.url, params={"q": "owl \ud83d"})
        service().json("POST", server.url, body={"q": "owl \ud83d"})
    assert server.asked[0].query == {"q": "owl ?"} and server.asked[1].json == {"q": "owl ?"}


def test_later_in_the_services_own_words_is_tried_again():
    def check(found, headers):
        if "busy" in found:
            raise Later("busy", None)

    with serving(replying(Reply({"busy": 1}), Reply({"a": 1}))) as server:
        assert service().json("GET", server.url, check=check) == {"a": 1}


def test_the_pace_holds_over_all_threads():
    clock = Clock()
    pace = Pace(4.0, clock.sleep, clock.time)
    for _ in range(9):
        pace.wait()
    assert clock.now - 1000.0 == pytest.approx(2.0)
    pace.hold(30)
    pace.wait()
    assert clock.now - 1000.0 == pytest.approx(32.0)


def test_keys_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("A_KEY", f" {KEY}\n")
    assert key_from_env("A_KEY", "it") == KEY
    monkeypatch.setenv("A_KEY", "sk bad\nkey")
    with pytest.raises(UserError, match="A_KEY: holds characters") as caught:
        key_from_env("A_KEY", "it")
    assert "sk bad" not in str(caught.value)
    monkeypatch.delenv("A_KEY")
    with pytest.raises(UserError, match="it needs a key: set the environment variable A_KEY"):
        key_from_env("A_KEY", "it")
    assert key_from_env("A_KEY", "it", required=False) == ""
