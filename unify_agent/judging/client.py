"""The client: asks, retries, checks, logs.

One call goes: look it up in the log; else up to `attempts` times: wait for the pace, post, check status, finish reason
and schema, append what happened to the log. A reply that does not fit is asked for once more with what was wrong with
it; one that was cut off, with twice the room. A server that refuses JSON schemas, or fails at each attempt with one and
answers without, is asked without one from then on, and the object is found in its text. Whatever goes over the wire is
logged, refusals that were learned from and the probe included.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from unify_agent.files import digest
from unify_agent.judging import structured
from unify_agent.judging.answers import PASSING, Answer, ChatError, FunctionCall, NotRecorded, split_thinking
from unify_agent.judging.calllog import Log
from unify_agent.judging.endpoint import Endpoint
from unify_agent.judging.gate import Gate, Open, Spent
from unify_agent.judging.messages import Message, Picture, user
from unify_agent.judging.pace import Pace
from unify_agent.judging.pool import run_bounded
from unify_agent.judging.transport import Transport

BROKEN_OFF = ("abort", "cancelled", "error")
"""Finish reasons of vLLM, SGLang and routers for a reply that is not whole though nothing limited it."""
MOST_ROOM = 32_768
"""Tokens: the room of a reply that was cut off is doubled up to here."""


@dataclass(frozen=True)
class Request:
    """What is asked for. `tools` are function schemas in OpenAI's form. `salt` tells repeats of one question apart."""

    messages: Sequence[Message]
    schema: type[BaseModel] | None = None
    tools: Sequence[dict[str, Any]] | None = None
    max_tokens: int = 1024
    temperature: float = 0.0
    seed: int | None = None
    salt: str = ""

    @property
    def prompt_tokens(self) -> int:
        """What the messages may come to at most, roughly: a token for two bytes, 2,000 for a picture."""
        parts = [part for message in self.messages for part in message.parts]
        texts = [part for part in parts if not isinstance(part, Picture)]
        return 2000 * (len(parts) - len(texts)) + sum(len(each.encode("utf-8", "replace")) // 2 + 8 for each in texts)

    def record(self, endpoint: Endpoint) -> dict[str, Any]:
        """The request as it is logged; an answer is cached under the digest of just this."""
        made: dict[str, Any] = {
            "model": endpoint.model,
            "messages": [message.record() for message in self.messages],
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
        }
        if self.schema is not None:
            made["schema"] = {"name": self.schema.__name__, "schema": structured.json_schema(self.schema)}
        for name, value in (("tools", self.tools), ("extra", endpoint.extra), ("salt", self.salt)):
            if value:
                made[name] = value
        return made

    def body(self, endpoint: Endpoint, room: int, complaint: str = "", with_schema: bool = True) -> dict[str, Any]:
        """The request as it is posted, with `room` tokens, and what was wrong with the reply before."""
        messages = list(self.messages)
        if complaint:
            messages.append(user(f"An earlier reply could not be used ({complaint}). Reply anew, exactly in the form "
                                 "that was asked for."))  # fmt: skip
        made: dict[str, Any] = {
            "model": endpoint.model,
            "messages": [message.wire() for message in messages],
            "max_tokens": room,
            "temperature": self.temperature,
        }
        if self.seed is not None:
            made["seed"] = self.seed
        if self.tools:
            made["tools"] = list(self.tools)
        if self.schema is not None and with_schema:
            form = {"name": self.schema.__name__, "schema": structured.json_schema(self.schema), "strict": True}
            made["response_format"] = {"type": "json_schema", "json_schema": form}
        return made | dict(endpoint.extra)


@dataclass
class Usage:
    """What was spent, failed attempts included: attempts over the wire, answers from the log, tokens."""

    attempts: int = 0
    cached: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class ChatClient:
    """Asks one endpoint from any number of threads, `concurrency` at a time.

    `attempts` bounds the tries of one call, `rate` the attempts a second over all threads, `backoff` is the first
    wait in seconds; clients of one service may share a `pace` in place of these, so that a pause that it asks for holds
    them all. Without a log answers are neither kept nor found again. Each attempt passes the `gate`.
    """

    endpoint: Endpoint
    concurrency: int = 8
    attempts: int = 5
    log: Log | None = None
    rate: float | None = None
    backoff: float = 1.0
    gate: Gate = field(default_factory=Open)
    pace: Pace | None = None
    usage: Usage = field(default_factory=Usage, init=False)

    def __post_init__(self) -> None:
        self._pace = self.pace or Pace(self.rate, self.backoff)
        self._transport = Transport(self.endpoint, self.concurrency, self._pace)
        self._slots = threading.Semaphore(self.concurrency)
        self._lock = threading.Lock()
        self._asking: dict[str, tuple[threading.Lock, int]] = {}

    def ask(
        self,
        messages: Sequence[Message],
        *,
        schema: type[BaseModel] | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        max_tokens: int = 1024,
        temperature: float = 0.0,
        seed: int | None = None,
        salt: str = "",
    ) -> Answer:
        """An answer, from the log where it was answered before. Raises ChatError, or NotRecorded in a replay."""
        return self.answer(Request(messages, schema, tools, max_tokens, temperature, seed, salt))

    def answer(self, request: Request) -> Answer:
        """As `ask`. Where there is a log, the same question from two threads is asked once."""
        if self.log is None:
            with self._slots:
                return self._try(request, {}, "")
        record = request.record(self.endpoint)
        key = digest(json.dumps(record, sort_keys=True, ensure_ascii=True))
        with self._alone(key):
            if (known := self._known(self.log, key, request)) is not None:
                return known
            with self._slots:
                return self._try(request, record, key)

    def ask_many(
        self, requests: Iterable[Request], on_answer: Callable[[int, Answer | ChatError], None] | None = None
    ) -> list[Answer | ChatError]:
        """Answers in the order of the requests, which are drawn from their iterable only as they are due.

        A call that failed stands in the list as its ChatError. `on_answer` is told each as it comes, from the calling
        thread. Raises ChatError at once when the key is not accepted.
        """
        results: dict[int, Answer | ChatError] = {}

        def settled(request: Request) -> Answer | ChatError:
            try:
                return self.answer(request)
            except ChatError as error:
                return error

        for number, result in run_bounded(settled, requests, self.concurrency, self.stop):
            if isinstance(result, ChatError) and result.kind == "auth":
                raise result
            results[number] = result
            if on_answer is not None:
                on_answer(number, result)
        return [results[number] for number in sorted(results)]

    def probe(self) -> str:
        """The name under which the model is served. Raises ChatError: unreachable, auth, or refused for no such model.

        The list of models is asked first; a server without one, or whose list does not hold the name, is asked for a
        few tokens (`greet`).
        """
        listed = self._transport.models()
        if self.endpoint.model in listed:
            return self.endpoint.model
        try:
            return self.greet()
        except ChatError as error:
            if listed and error.kind == "refused":
                raise ChatError("refused", f"{error.detail}; the server lists {', '.join(listed[:8])}") from None
            raise

    def greet(self) -> str:
        """The name under which the model answers just now, to one call for a few tokens. Raises ChatError.

        The call is logged, and never answered from the log.
        """
        request = Request((user("Say yes."),), max_tokens=16, salt="greeting")
        record = request.record(self.endpoint)
        key = digest(json.dumps(record, sort_keys=True, ensure_ascii=True))
        try:
            reply = self._transport.complete(
                request.body(self.endpoint, request.max_tokens), self._refused(key, record, 1)
            )
        except ChatError as error:
            self._keep(key, {"attempt": 1, "error": _told(error), "reply": None}, record, None, failed=True)
            raise
        self._keep(key, {"attempt": 1, "answer": reply, "room": request.max_tokens}, record, reply, failed=False)
        return str(reply["model"]) or self.endpoint.model

    def stop(self) -> None:
        """No further attempt is made: calls under way end with what they have, as unreachable."""
        self._pace.stop()

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """One thread at a time for a key. A lock lives as long as somebody holds it or waits for it."""
        with self._lock:
            lock, users = self._asking.get(key, (threading.Lock(), 0))
            self._asking[key] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, users = self._asking.pop(key)
                if users > 1:
                    self._asking[key] = lock, users - 1

    def _known(self, log: Log, key: str, request: Request) -> Answer | None:
        """What the log holds. In a replay its failures count too, and what it does not hold is NotRecorded."""
        if (known := log.find(key)) is not None:
            try:
                answer = _read(known, request, cached=True)
            except ChatError:  # the schema's own rules have become stricter since
                if log.replay:
                    raise
                return None
            with self._lock:
                self.usage.cached += 1
            return answer
        if log.replay:
            failure = log.failure(key)
            raise NotRecorded(key) if failure is None else ChatError(failure["kind"], failure["detail"])
        return None

    def _try(self, request: Request, record: dict[str, Any], key: str) -> Answer:
        room, complaint, with_schema, broken = request.max_tokens, "", True, 0
        for attempt in range(1, self.attempts + 2):  # the last is only for a server that breaks at schemas
            self._pace.wait()
            reply: dict[str, Any] | None = None
            for_schema = request.schema is not None and self._transport.schemas
            try:
                body = request.body(self.endpoint, room, complaint, with_schema)
                with self.gate.attempt(Spent(request.prompt_tokens, room)) as spent:
                    reply = self._transport.complete(body, self._refused(key, record, attempt))
                    spent.prompt = reply["prompt_tokens"] or 0
                    spent.completion = reply["completion_tokens"] or 0
                    answer = _read(reply, request, cached=False)
            except ChatError as error:
                outcome = {"error": _told(error), "reply": reply, "room": room}
                self._keep(key, {"attempt": attempt} | outcome, record, reply, failed=True)
                broken += error.status >= 500
                if error.kind not in PASSING or attempt > self.attempts:
                    raise
                if attempt == self.attempts:
                    if not for_schema or broken < attempt:
                        raise
                    with_schema = False
                complaint = ""
                if error.kind in ("malformed", "empty"):
                    complaint = error.detail
                elif error.kind == "truncated":
                    room = max(room, min(2 * room, MOST_ROOM))
                else:
                    self._pace.back_off(attempt)
            else:
                self._keep(key, {"attempt": attempt, "answer": reply, "room": room}, record, reply, failed=False)
                if not with_schema:
                    self._transport.answered_without_schema()
                return answer
        raise AssertionError("the last attempt returns or raises")

    def _refused(self, key: str, record: dict[str, Any], attempt: int) -> Callable[[ChatError], None]:
        """Logs a refusal that the transport has learned from."""

        def log(error: ChatError) -> None:
            outcome = {"attempt": attempt, "error": _told(error), "reply": None}
            self._keep(key, outcome, record, None, failed=True)

        return log

    def _keep(
        self, key: str, outcome: dict[str, Any], record: dict[str, Any], reply: dict[str, Any] | None, failed: bool
    ) -> None:
        with self._lock:
            self.usage.attempts += 1
            self.usage.failures += failed
            if reply is not None:
                self.usage.prompt_tokens += reply["prompt_tokens"] or 0
                self.usage.completion_tokens += reply["completion_tokens"] or 0
        if self.log is not None:
            self.log.append({"key": key, "at": round(time.time(), 3)} | outcome | {"request": record})


def _told(error: ChatError) -> dict[str, str]:
    return {"kind": error.kind, "detail": error.detail}


def _read(reply: dict[str, Any], request: Request, cached: bool) -> Answer:
    """The typed answer of what was kept of a reply. Raises ChatError for what cannot be used."""
    if reply["finish_reason"] in BROKEN_OFF:
        raise ChatError("server", f"the server ended the reply early ({reply['finish_reason']})")
    if reply["refusal"] or reply["finish_reason"] == "content_filter":
        raise ChatError("refused", f"the model refused: {reply['refusal'] or 'content filter'}")
    if reply["finish_reason"] == "length":
        raise ChatError("truncated", f"the reply was cut off after {reply['completion_tokens'] or 'too many'} tokens")
    text, thinking = split_thinking(reply["content"], reply["reasoning"])
    calls = tuple(FunctionCall(**call) for call in reply["tool_calls"])
    if not text and not calls:
        raise ChatError("empty", "the reply holds no text")
    parsed = None
    if request.schema is not None:
        try:
            parsed = structured.parse(text, request.schema)
        except ValueError as error:
            raise ChatError("malformed", str(error)) from None
    return Answer(
        text, thinking, calls, reply["finish_reason"], reply["model"], reply["prompt_tokens"],
        reply["completion_tokens"], cached, parsed, reply["content"],
    )  # fmt: skip
