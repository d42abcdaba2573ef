"""The client against a server that misbehaves: what is retried, what is kept, what is never guessed."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from chat_server import ChatServer, Reply, pictures, schema_name, texts
from PIL import Image
from pydantic import Field

from unify_agent.errors import UserError
from unify_agent.judging import (
    CallLog,
    ChatClient,
    ChatError,
    Endpoint,
    Picture,
    PicturePolicy,
    Request,
    assistant,
    system,
    tool_result,
    user,
)
from unify_agent.judging.answers import NotRecorded, split_thinking
from unify_agent.judging.endpoint import base_url_of
from unify_agent.judging.pace import Pace, retry_after
from unify_agent.judging.structured import Verdict, json_schema, objects_in
from unify_agent.judging.transport import is_moderated

SECRET = "sk-very-secret-0123456789"


class Score(Verdict):
    clear: int = Field(ge=0, le=10)
    score: int = Field(ge=0, le=10)


GOOD = {"clear": 7, "score": 3}


def client_of(server, log=None, *, timeout=20.0, attempts=5, **more):
    return ChatClient(
        Endpoint.parse(server.url, "judge", timeout=timeout), log=log, attempts=attempts, backoff=0.0, **more
    )


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("given", [
    "http://h:8000", "http://h:8000/", "http://h:8000/v1", "http://h:8000/v1/", "http://h:8000/v1/chat/completions",
    "http://h:8000/v1/models", "h:8000", "h:8000/v1", " http://h:8000/v1/chat/completions/ ",
])  # fmt: skip
def test_every_form_of_a_base_url_is_the_same_endpoint(given):
    assert base_url_of(given) == ("http://h:8000/v1", {})


def test_other_paths_are_kept_and_hosts_on_the_net_are_asked_by_https():
    assert base_url_of("api.openai.com")[0] == "https://api.openai.com/v1"
    assert base_url_of("https://x.example/compatible-mode/v1/")[0] == "https://x.example/compatible-mode/v1"
    assert base_url_of("https://a.example/openai/d/chat/completions?api-version=2") == (
        "https://a.example/openai/d", {"api-version": "2"},
    )  # fmt: skip
    assert base_url_of("http://[::1]:80/v1")[0] == "http://[::1]:80/v1"


@pytest.mark.parametrize("given", ["", "ftp://h", "http://", "http://h:port", f"http://u:{SECRET}@h/v1",
                                   f"https://h/v1?key={SECRET}", "http://[::1", "http://[x]/", "http://a\0b", "a b",
                                   f"http://{'a' * 70}.com"])  # fmt: skip
def test_what_is_no_address_or_holds_a_secret_is_refused_without_repeating_it(given):
    with pytest.raises(UserError) as caught:
        base_url_of(given)
    assert SECRET not in str(caught.value)


def test_the_key_comes_from_the_environment_and_is_shown_nowhere(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    assert Endpoint.parse("localhost:8000", "m").key is None  # not sent to whoever is asked
    assert Endpoint.parse("api.openai.com", "m").key is not None
    with pytest.raises(UserError, match="OTHER_KEY"):
        Endpoint.parse("localhost:8000", "m", key_env="OTHER_KEY")
    monkeypatch.setenv("OTHER_KEY", SECRET)
    with ChatServer(key="another") as server, CallLog(tmp_path / "calls.jsonl") as log:
        endpoint = Endpoint.parse(server.url, "judge", key_env="OTHER_KEY")
        with ChatClient(endpoint, log=log) as client:
            with pytest.raises(ChatError) as caught:
                client.ask([user("Hello")])
            with pytest.raises(ChatError, match="auth"):
                client.probe()
    assert caught.value.kind == "auth" and server.calls == 1
    assert SECRET not in f"{caught.value}{endpoint!r}{client!r}{log.path.read_text()}"
    assert "***" in str(caught.value)


def test_a_key_that_is_missing_or_none_is_told_before_any_call(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        Endpoint.parse("api.openai.com", "m")
    for wrong in ("sk-\xe9-0123", "sk-a\nb-0123"):
        monkeypatch.setenv("OTHER_KEY", wrong)
        with pytest.raises(UserError, match="OTHER_KEY") as caught:
            Endpoint.parse("localhost:8000", "m", key_env="OTHER_KEY")
        assert "0123" not in str(caught.value)


@pytest.mark.parametrize("status", [401, 200])
def test_a_key_that_a_server_repeats_is_hidden_before_the_text_is_cut(status, monkeypatch, tmp_path):
    monkeypatch.setenv("OTHER_KEY", SECRET)
    with ChatServer() as server:
        said = "y" * (290 if status == 401 else 70) + SECRET
        server._respond = lambda handler, body, fault: handler.send(status, said)
        endpoint = Endpoint.parse(server.url, "judge", key_env="OTHER_KEY")
        with CallLog(tmp_path / "calls.jsonl") as log, pytest.raises(ChatError) as caught:
            ChatClient(endpoint, attempts=1, log=log).ask([user("Hello")])
    assert SECRET[:8] not in f"{caught.value}{log.path.read_text()}"


def test_odd_replies_are_kept_as_text_and_counts_as_numbers(tmp_path):
    reply = {"choices": [{"message": {"content": "half \ud800"}, "finish_reason": "stop"}],
             "usage": {"prompt_tokens": "12", "completion_tokens": 3}}  # fmt: skip
    with ChatServer() as server, CallLog(tmp_path / "calls.jsonl") as log:
        server._respond = lambda handler, body, fault: handler.send(200, reply)
        answer = client_of(server, log).ask([user("Hello")])
    assert answer.text.encode().startswith(b"half") and (answer.prompt_tokens, answer.completion_tokens) == (None, 3)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_reply_that_the_server_gave_up_is_no_answer(reason):
    replies = iter([Reply("Half a", finish_reason=reason), "Whole."])
    with ChatServer(lambda body: next(replies)) as server:
        assert client_of(server).ask([user("Hello")]).text == "Whole." and server.calls == 2


def test_a_call_goes_over_the_wire_as_the_protocol_says(tmp_path):
    picture = io.BytesIO()
    Image.new("RGB", (60, 20), "red").save(picture, "PNG")
    shown = Picture.of(picture.getvalue(), PicturePolicy(longest=30, format="jpeg"))
    with ChatServer(lambda body: GOOD) as server, client_of(server) as client:
        answer = client.ask([system("Judge."), user("This one:", shown)], schema=Score, max_tokens=99, seed=5)
    body = server.bodies[0]
    assert server.paths == ["/v1/chat/completions"] and (body["max_tokens"], body["seed"]) == (99, 5)
    assert body["messages"][0] == {"role": "system", "content": "Judge."}
    assert [part["type"] for part in body["messages"][1]["content"]] == ["text", "image_url"]
    assert Image.open(io.BytesIO(pictures(body)[0])).size == (30, 10)
    assert body["messages"][1]["content"][1]["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert schema_name(body) == "Score" and body["response_format"]["json_schema"]["strict"] is True
    assert answer.parsed == Score(clear=7, score=3) and answer.model == "judge-2026" and answer.completion_tokens


def test_headers_query_and_extra_go_along_and_are_no_part_of_a_repr():
    with ChatServer() as server:
        where = Endpoint.parse(f"{server.url}/v1?api-version=7", "judge", extra={"top_p": 1})
        endpoint = Endpoint(where.base_url, "judge", headers={"X-Team": SECRET}, query=where.query, extra=where.extra)
        with ChatClient(endpoint) as client:
            client.ask([user("Hello")])
    assert server.paths == ["/v1/chat/completions?api-version=7"] and server.bodies[0]["top_p"] == 1
    assert server.headers[0]["x-team"] == SECRET and SECRET not in repr(client)


def test_tool_calls_come_back_and_their_results_go_out():
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    with ChatServer(lambda body: Reply(tool_calls=[("add", {"a": 1}), ("add", "{broken")])) as server:
        client = client_of(server)
        answer = client.ask([user("Add.")], tools=tools)
        first, second = answer.tool_calls
        assert (first.arguments, second.arguments, second.text) == ({"a": 1}, None, "{broken")
        client.ask([user("Add."), assistant("", answer.tool_calls), tool_result(first, {"sum": 1})], tools=tools)
    sent = server.bodies[1]["messages"]
    assert server.bodies[0]["tools"] == tools
    assert sent[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert sent[2] == {"role": "tool", "content": '{"sum": 1}', "tool_call_id": first.id}


@pytest.mark.parametrize("fault", ["fenced", "wordy", "strings", "thinking", "noschema"])
def test_what_can_be_read_is_read_without_asking_again(fault):
    with ChatServer(lambda body: GOOD, plan=[fault] * 2) as server, client_of(server) as client:
        assert client.ask([user("Judge.")], schema=Score).parsed == Score(clear=7, score=3)
    assert server.calls == (2 if fault == "noschema" else 1)


@pytest.mark.parametrize(("fault", "kind"), [
    ("malformed", "malformed"), ("missing", "malformed"), ("range", "malformed"), ("empty", "empty"),
    ("truncated", "truncated"), ("429", "rate_limited"), ("500", "server"), ("html", "server"),
    ("nochoice", "server"), ("drop", "unreachable"),
])  # fmt: skip
def test_what_cannot_be_read_is_asked_again_and_never_guessed(fault, kind, tmp_path):
    with ChatServer(lambda body: GOOD, plan=[fault]) as server:
        log = CallLog(tmp_path / "calls.jsonl")
        assert client_of(server, log).ask([user("Judge.")], schema=Score).parsed == Score(clear=7, score=3)
        assert server.calls == 2
        assert [("answer" in r, r.get("error", {}).get("kind")) for r in lines_of(log.path)] == [
            (False, kind), (True, None),
        ]  # fmt: skip
    with ChatServer(lambda body: GOOD, plan=[fault] * 9) as server:
        with pytest.raises(ChatError) as caught:
            client_of(server, attempts=3).ask([user("Judge.")], schema=Score)
    assert caught.value.kind == kind and server.calls == 3 + (fault == "500")  # once more without the schema


def test_a_timeout_is_one_kind_and_an_absent_server_another():
    with ChatServer(plan=["timeout"]) as server, pytest.raises(ChatError, match="timeout"):
        client_of(server, timeout=0.3, attempts=1).ask([user("Judge.")])
    with pytest.raises(ChatError, match="unreachable"):
        ChatClient(Endpoint.parse(server.url, "judge"), attempts=2, backoff=0.0).ask([user("Judge.")])


@pytest.mark.parametrize(("fault", "kind"), [("404", "refused"), ("401", "auth")])
def test_what_another_attempt_cannot_mend_is_not_tried_again(fault, kind):
    with ChatServer(plan=[fault] * 9) as server, pytest.raises(ChatError) as caught:
        client_of(server).ask([user("Judge.")])
    assert caught.value.kind == kind and server.calls == 1


def test_a_refusal_of_the_model_is_no_answer():
    with ChatServer(lambda body: Reply("", refusal="I cannot judge this.")) as server:
        with pytest.raises(ChatError, match="I cannot judge this") as caught:
            client_of(server).ask([user("Judge.")], schema=Score)
    assert caught.value.kind == "refused" and server.calls == 1


def test_the_next_attempt_says_what_was_wrong_and_has_more_room_after_a_cut():
    with ChatServer(lambda body: GOOD, plan=["range", "truncated"]) as server:
        client_of(server).ask([user("Judge.")], schema=Score, max_tokens=50)
    first, second, third = server.bodies
    assert "less than or equal to 10" in texts(second) and texts(first) == "Judge." == texts(third)
    assert [body["max_tokens"] for body in server.bodies] == [50, 50, 100]


def test_all_threads_learn_that_a_server_knows_no_schemas():
    gate = threading.Barrier(3, timeout=20)  # all three have asked with a schema before any is refused
    with ChatServer(lambda body: GOOD) as server, client_of(server, concurrency=3) as client:
        original = server._respond

        def respond(handler, body, fault):
            if "response_format" in body:
                gate.wait()
                return handler.send(400, {"error": {"message": "response_format is not supported"}})
            return original(handler, body, fault)

        server._respond = respond
        answers = client.ask_many(Request([user(f"{n}")], schema=Score) for n in range(3))
        client.ask([user("later")], schema=Score)
    assert [answer.parsed for answer in answers] == [Score(clear=7, score=3)] * 3 and server.calls == 7


def broken_by_schemas(server, failing=lambda body: True):
    """Makes a server answer 500 wherever a schema is asked for."""
    original = server._respond

    def respond(handler, body, fault):
        if "response_format" in body and failing(body):
            return handler.send(500, {"error": {"message": "grammar backend failed"}})
        return original(handler, body, fault)

    server._respond = respond


def test_a_server_that_breaks_at_schemas_is_asked_once_without_and_then_always(tmp_path):
    with ChatServer(lambda body: GOOD) as server, CallLog(tmp_path / "calls.jsonl") as log:
        broken_by_schemas(server)
        client = client_of(server, log, attempts=2)
        assert client.ask([user("One")], schema=Score).parsed == Score(clear=7, score=3) and server.calls == 3
        assert client.ask([user("Two")], schema=Score).parsed == Score(clear=7, score=3) and server.calls == 4
    assert [("answer" in r, r["attempt"]) for r in lines_of(log.path)] == [
        (False, 1), (False, 2), (True, 3), (True, 1),
    ]  # fmt: skip
    assert client.usage.attempts == 4 and client.usage.failures == 2


def test_a_server_that_is_down_teaches_nothing_about_schemas():
    with ChatServer(lambda body: GOOD, plan=["500"] * 3) as server:
        client = client_of(server, attempts=2)
        with pytest.raises(ChatError, match="server"):
            client.ask([user("One")], schema=Score)
        client.ask([user("Two")], schema=Score)
        assert schema_name(server.bodies[2]) == "" and schema_name(server.bodies[3]) == "Score"
        # one that answered to a schema before is out of order for a while, and knows schemas afterwards
        broken_by_schemas(server, lambda body: "Three" in texts(body))
        assert client.ask([user("Three")], schema=Score).parsed == Score(clear=7, score=3)
        client.ask([user("Four")], schema=Score)
    assert schema_name(server.bodies[-1]) == "Score"


def test_failures_of_several_kinds_are_not_taken_for_the_schema_s():
    with ChatServer(lambda body: GOOD, plan=["malformed", "500"]) as server:
        with pytest.raises(ChatError, match="server"):
            client_of(server, attempts=2).ask([user("One")], schema=Score)
    assert server.calls == 2


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n"])
def test_a_reply_that_comes_drop_by_drop_ends_with_the_time_of_its_attempt(head):
    """The server sends a byte every few milliseconds for as long as it is listened to, of its head or of its body."""
    ended = threading.Event()

    def drip(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            try:
                connection.sendall(head or b"HTTP/1.1 200 OK\r\nX-Long: ")
                while not ended.wait(0.02):
                    connection.sendall(b"a")
            except OSError:
                pass  # the client has left

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        endpoint = Endpoint.parse(f"http://127.0.0.1:{listener.getsockname()[1]}", "judge", timeout=0.5)
        with ChatClient(endpoint, attempts=1) as client:
            with pytest.raises(ChatError) as caught:
                client.ask([user("Judge.")])
            if head:  # nobody goes on reading a body that nobody waits for
                thread.join(60)
                assert not thread.is_alive()
        ended.set()
        thread.join()
    assert caught.value.kind == "timeout" and "whole reply within 0.5 s" in str(caught.value)


@pytest.mark.parametrize(("fault", "attempts"), [("noschema", [1, 1]), ("ok", [1])])
def test_a_refusal_that_is_learned_from_is_logged_and_counted(fault, attempts, tmp_path):
    with ChatServer(lambda body: GOOD, plan=[fault]) as server, CallLog(tmp_path / "calls.jsonl") as log:
        client = client_of(server, log)
        client.ask([user("Judge.")], schema=Score)
        client.ask([user("Judge.")], schema=Score)
    records = lines_of(log.path)
    assert [r["attempt"] for r in records] == attempts and server.calls == len(attempts)
    assert ["answer" in r for r in records] == [False, True][-len(attempts) :]
    assert (client.usage.attempts, client.usage.failures, client.usage.cached) == (server.calls, server.calls - 1, 1)


def test_the_probe_s_call_is_logged_and_made_each_time(tmp_path):
    with ChatServer() as server, CallLog(tmp_path / "calls.jsonl") as log:
        server.lists_models = False
        for _ in range(2):
            assert client_of(server, log).probe() == "judge-2026"
        assert server.calls == 2
        server.plan.append("500")
        with pytest.raises(ChatError, match="server"):
            client_of(server, log).probe()
    assert [("answer" in r, "error" in r) for r in lines_of(log.path)] == [(True, False)] * 2 + [(False, True)]


def test_tokens_of_a_reply_that_the_server_broke_off_are_counted(tmp_path):
    replies = iter([Reply("Half a", finish_reason="abort"), "Whole."])
    with ChatServer(lambda body: next(replies)) as server, CallLog(tmp_path / "calls.jsonl") as log:
        client = client_of(server, log)
        client.ask([user("Hello")])
    assert [(r.get("answer") or r["reply"])["completion_tokens"] for r in lines_of(log.path)] == [1, 1]
    assert client.usage.completion_tokens == 2


@pytest.mark.parametrize(("message", "kind"), [
    ("Your key may not use this model.", "auth"), ("Input flagged by moderation.", "refused"),
])  # fmt: skip
def test_a_403_may_be_about_the_key_or_about_the_content(message, kind):
    with ChatServer() as server:
        server._respond = lambda handler, body, fault: handler.send(403, {"error": {"message": message}})
        with pytest.raises(ChatError) as caught:
            client_of(server).ask([user("Judge.")])
    assert caught.value.kind == kind and server.calls == 1


def test_a_server_that_wants_the_other_name_for_room_gets_it():
    def answer(body):
        assert "max_completion_tokens" in body
        return "Yes."

    with ChatServer(answer) as server:
        original = server._respond

        def respond(handler, body, fault):
            if "max_tokens" in body:
                return handler.send(400, {"error": {"message": "Use 'max_completion_tokens' instead."}})
            return original(handler, body, fault)

        server._respond = respond
        client = client_of(server)
        client.ask([user("One")])
        client.ask([user("Two")])
    assert server.calls == 3


class Clock:
    """Time that passes only where somebody waits; `waits` are those longer than a second."""

    def __init__(self, monkeypatch):
        self.now, self.waits = 1000.0, []
        monkeypatch.setattr(threading.Event, "wait", lambda event, seconds=None: self.pass_by(event, seconds))
        monkeypatch.setattr("unify_agent.judging.pace.time.monotonic", lambda: self.now)

    def pass_by(self, event, seconds):
        self.now += max(seconds or 0.0, 0.0)
        self.waits += [seconds] if seconds and seconds > 1 else []
        return event.is_set()


def test_a_pause_also_holds_back_who_waits_for_its_turn_already(monkeypatch):
    clock = Clock(monkeypatch)
    pace = Pace(rate=0.1, backoff=0.0)
    pace.wait()
    passed = clock.pass_by

    def asked_for_meanwhile(event, seconds):
        clock.pass_by = passed
        pace.hold(30.0)
        return passed(event, seconds)

    clock.pass_by = asked_for_meanwhile
    pace.wait()
    assert clock.now >= 1030.0


def test_retry_after_holds_back_every_thread(monkeypatch):
    waits = Clock(monkeypatch).waits
    with ChatServer(plan=["429"], retry_after="7") as server:
        client = client_of(server)
        client.ask([user("Judge.")])
        client.ask([user("Another.")])
    assert [round(each) for each in waits] == [7]
    assert retry_after({"retry-after": "soon"}) is None and retry_after({}) is None
    for wrong in ("nan", "Mon, 01 Jan 99999 00:00:00 GMT"):
        assert retry_after({"retry-after": wrong}) is None
    assert retry_after({"retry-after": "-5"}) == 0.0
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 60))
    assert 50 < retry_after({"retry-after": date}) < 70


def test_concurrency_is_bounded_and_answers_keep_their_order():
    gate, drawn = threading.Barrier(3, timeout=20), []

    def answer(body):
        gate.wait()
        return texts(body)

    def requests():
        for number in range(9):
            drawn.append(number)
            yield Request([user(f"number {number}")])

    with ChatServer(answer) as server, client_of(server, concurrency=3) as client:
        answers = client.ask_many(requests(), lambda number, _: None)
    assert [each.text for each in answers] == [f"number {number}" for number in range(9)]
    assert server.most_at_once == 3


def test_the_same_question_is_asked_once_whoever_asks(tmp_path):
    with ChatServer() as server, CallLog(tmp_path / "calls.jsonl") as log, client_of(server, log) as client:
        answers = client.ask_many([Request([user("Same?")])] * 6 + [Request([user("Same?")], salt="again")])
    assert server.calls == 2 and sum(each.cached for each in answers) == 5
    assert (client.usage.attempts, client.usage.cached) == (2, 5)


def test_a_log_repeats_no_success_retries_failures_and_can_be_replayed(tmp_path):
    path = tmp_path / "calls.jsonl"
    asked = [Request([user(f"{n}")], schema=Score) for n in range(4)]

    def answer(body):
        return GOOD if texts(body)[0] != "2" else "no"

    with ChatServer(answer) as server:
        with CallLog(path) as log:
            first = client_of(server, log, attempts=2).ask_many(asked)
        assert isinstance(first[2], ChatError) and server.calls == 5
        with CallLog(path) as log:
            client_of(server, log, attempts=1).ask_many(asked)
        assert server.calls == 6
    before = path.read_bytes()
    replay = ChatClient(Endpoint.parse("127.0.0.1:9", "judge"), log=CallLog(path, replay=True))
    again = replay.ask_many(asked)
    assert [a.text if not isinstance(a, ChatError) else a.kind for a in again] == [
        a.text if not isinstance(a, ChatError) else a.kind for a in first
    ]
    with pytest.raises(NotRecorded):
        replay.ask([user("never asked")])
    assert path.read_bytes() == before


def test_a_torn_last_line_is_dropped_and_a_broken_one_is_named(tmp_path):
    path = tmp_path / "calls.jsonl"
    with ChatServer() as server:
        with CallLog(path) as log:
            client_of(server, log).ask([user("One")])
        whole = path.read_bytes()
        path.write_bytes(whole + whole[: len(whole) // 2])
        assert CallLog(path, replay=True).path.read_bytes() != whole  # a replay writes nothing
        with CallLog(path) as log:
            assert path.read_bytes() == whole
            client_of(server, log).ask([user("One")])
            with pytest.raises(UserError, match="another process"):
                CallLog(path)
        assert server.calls == 1
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(UserError, match=r"calls.jsonl:1"):
        CallLog(path)


CHILD = """
import sys
from unify_agent.judging import CallLog, ChatClient, Endpoint, Request, user
client = ChatClient(Endpoint.parse(sys.argv[1], "judge"), log=CallLog(sys.argv[2]), concurrency=2, backoff=0.0)
client.ask_many(Request([user(f"question {n}")]) for n in range(int(sys.argv[3])))
"""


def test_a_kill_at_any_moment_repeats_no_success(tmp_path):
    path, kill_at, child = tmp_path / "calls.jsonl", iter([4, 9, 9999]), []

    def answer(body):
        if server.calls >= child[1]:
            os.kill(child[0].pid, signal.SIGKILL)
        return "Yes."

    with ChatServer(answer) as server:
        for limit in kill_at:
            child[:] = [None, 9999]
            child[:] = [subprocess.Popen([sys.executable, "-c", CHILD, server.url, str(path), "12"]), limit]
            child[0].wait(60)
    answers = [r["key"] for r in lines_of(path) if "answer" in r]
    assert child[0].returncode == 0 and len(answers) == len(set(answers)) == 12
    assert server.calls <= 12 + 2 * 2  # at most what was under way at each of two kills


def test_pictures_are_recorded_by_hash_and_texts_in_full(tmp_path):
    picture = io.BytesIO()
    Image.new("RGB", (8, 8), "blue").save(picture, "PNG")
    with ChatServer() as server, CallLog(tmp_path / "calls.jsonl") as log:
        shown = Picture.of(picture.getvalue())
        client = client_of(server, log)
        client.ask([user("What is it?", shown)])
        client.ask([user("What is it?", Picture(shown.digest))])  # known: needs no pixels
        assert server.calls == 1
        client.ask([user("What is it?", Picture.of(picture.getvalue(), PicturePolicy(longest=4)))])
        assert server.calls == 2
    record = lines_of(log.path)[0]["request"]
    assert record["messages"][0]["content"][1] == {
        "type": "picture", "sha256": shown.digest, "policy": {"longest": 1024, "format": "png", "quality": 95},
    }  # fmt: skip
    assert "base64" not in log.path.read_text()


def test_the_probe_says_under_which_name_a_model_is_served():
    with ChatServer(served=["judge"]) as server:
        assert client_of(server).probe() == "judge" and server.calls == 0
        with pytest.raises(ChatError, match="judge") as caught:
            ChatClient(Endpoint.parse(server.url, "juge")).probe()
        assert caught.value.kind == "refused"
        server.lists_models = False
        assert client_of(server).probe() == "judge-2026"
    with pytest.raises(ChatError, match="unreachable"):
        client_of(server).probe()


@pytest.mark.parametrize(("content", "text", "thinking"), [
    ("plain", "plain", ""), ("<think>hm</think>\n yes", "yes", "hm"), ("hm</think>yes", "yes", "hm"),
    ("<think>cut off", "", "cut off"), ("say <think>a</think> b", "say <think>a</think> b", ""),
])  # fmt: skip
def test_what_was_thought_is_no_part_of_the_text(content, text, thinking):
    assert split_thinking(content) == (text, thinking)


def test_thinking_in_a_field_of_its_own_is_kept_beside_the_text():
    with ChatServer(lambda body: Reply("<think>b</think>yes", reasoning="a")) as server:
        answer = client_of(server).ask([user("?")])
    assert (answer.text, answer.thinking, answer.raw) == ("yes", "a", "<think>b</think>yes")


def test_objects_are_found_whole_and_the_last_first():
    text = 'first {"a": {"b": 1}} then {broken and {"c": "}"} end {'
    assert list(objects_in(text)) == [{"c": "}"}, {"a": {"b": 1}}]


def test_a_text_that_is_all_beginnings_is_given_up_and_of_a_long_one_the_end_is_read():
    assert list(objects_in('{"a": ' * 999 + ', {"b": 1}')) == [{"b": 1}]
    assert list(objects_in('{"a": ' * 5000 + ', {"b": 1}')) == []
    assert list(objects_in("{" * 1_000_000 + '{"b": 1}')) == [{"b": 1}]


def test_true_is_no_number_and_schemas_are_closed():
    with pytest.raises(ValueError, match="a number is expected"):
        Score.model_validate({"clear": True, "score": 1})
    schema = json_schema(Score)
    assert schema["additionalProperties"] is False and schema["required"] == ["clear", "score"]


@pytest.mark.parametrize(
    ("body", "moderated"),
    [({"message": "Rejected.", "code": "content_policy_violation"}, True),
     ({"message": "Rejected by our safety system.", "code": "x"}, True),
     ({"message": "size must be 64x64", "code": "invalid_value"}, False)],
)  # fmt: skip
def test_a_refusal_of_the_content_is_told_from_one_of_the_form(body, moderated):
    with ChatServer() as server:
        server._respond = lambda handler, asked, fault: handler.send(400, {"error": body})
        with pytest.raises(ChatError) as caught:
            client_of(server, None).ask([user("Hello")])
    assert is_moderated(caught.value) == moderated and caught.value.kind == "refused"
