"""One exchange with a server: what goes over the wire, and every way to fail as a ChatError."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import httpx

from unify_agent.judging.answers import ChatError, Kind
from unify_agent.judging.endpoint import Endpoint
from unify_agent.judging.pace import Pace, retry_after

SCHEMA_WORDS = ("response_format", "json_schema", "guided", "structured output")
"""A refusal that names one of these is about the schema; the call is made without it, and so are all later ones."""
MODERATION_WORDS = ("moderation", "flagged", "content policy", "safety", "content_policy", "content filter")
"""A 403 that says one of these refuses the content, not the key."""
ROOM_WORD = "max_completion_tokens"
"""A refusal that names this wants `max_tokens` under that name."""


class Transport:
    """Posts and reads JSON. `pace` is told of pauses that the server asks for."""

    def __init__(self, endpoint: Endpoint, connections: int, pace: Pace) -> None:
        self.endpoint, self._connections, self._pace = endpoint, connections, pace
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._schemas, self._answered_schema, self._room = True, False, "max_tokens"

    def models(self) -> list[str]:
        """Names that the server lists; none when it keeps no list. Raises ChatError."""
        try:
            return [str(each["id"]) for each in self.exchange("GET", "/models")["data"]]
        except ChatError as error:
            if error.kind in ("auth", "unreachable", "timeout"):
                raise
        except (KeyError, TypeError):
            pass
        return []

    @property
    def schemas(self) -> bool:
        """Whether requests for a schema go out as such: until the server was seen not to know them."""
        return self._schemas

    def complete(self, body: dict[str, Any], refused: Callable[[ChatError], None]) -> dict[str, Any]:
        """What is kept of a completion: content, tool calls, finish reason, model, token counts. Raises ChatError.

        A refusal that tells how to ask is told to `refused`, and the same is asked that way.
        """
        while True:
            sent = self._fitted(body)
            try:
                reply = kept(self.exchange("POST", "/chat/completions", json=sent))
            except ChatError as error:
                if error.kind != "refused" or not self._learns(sent, error.detail.lower()):
                    raise
                refused(error)
            else:
                self._answered_schema |= "response_format" in sent
                return reply

    def answered_without_schema(self) -> None:
        """Tells that the server answered without a schema what it failed at with one, attempt after attempt.

        It is asked without one from then on, unless it has answered to a schema before: then it was out of order.
        """
        self._schemas = self._schemas and self._answered_schema

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _fitted(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body in the words that this server knows."""
        fitted = {key: value for key, value in body.items() if self._schemas or key != "response_format"}
        fitted[self._room] = fitted.pop("max_tokens")
        return fitted

    def _learns(self, sent: dict[str, Any], detail: str) -> bool:
        """Whether the refusal of what was sent tells how to send it again."""
        if "max_tokens" in sent and ROOM_WORD in detail:
            self._room = ROOM_WORD
            return True
        if "response_format" in sent and any(word in detail for word in SCHEMA_WORDS):
            self._schemas = False
            return True
        return False

    def exchange(self, method: str, path: str, **sent: Any) -> Any:
        """The JSON of an answer. `sent`: `json`, or `data` and `files` of a form, as httpx takes them.

        Raises ChatError.
        """
        try:
            response = within(self.endpoint.timeout, lambda: self._response(method, path, sent))
        except (httpx.TimeoutException, TimeoutError):
            raise ChatError("timeout", f"no whole reply within {self.endpoint.timeout:g} s") from None
        except httpx.HTTPError as error:
            raise self._error("unreachable", f"{self.endpoint.base_url}: {error}") from None
        if response.status_code != 200:
            raise self._failure(response)
        try:
            return response.json()
        except ValueError:
            text = self.endpoint.hide(response.text)
            raise self._error("server", f"the reply is not JSON but {text[:80]!r}") from None

    def _response(self, method: str, path: str, sent: dict[str, Any]) -> httpx.Response:
        """A whole response. One that comes drop by drop is left when the time of the attempt is over."""
        end = time.monotonic() + self.endpoint.timeout
        with self._connection().stream(method, self.endpoint.base_url + path, **sent) as response:
            content = bytearray()
            for part in response.iter_bytes():
                content += part
                if time.monotonic() > end:
                    raise TimeoutError
        headers = [(k, v) for k, v in response.headers.multi_items() if k not in ("content-encoding", "content-length")]
        return httpx.Response(response.status_code, headers=headers, content=bytes(content))

    def _error(self, kind: Kind, detail: str, status: int = 0) -> ChatError:
        return ChatError(kind, whole(self.endpoint.hide(detail)), status)

    def _failure(self, response: httpx.Response) -> ChatError:
        """The error that a status other than 200 stands for."""
        status, text, code = response.status_code, response.text, ""
        try:
            error = response.json()["error"]
            text, code = str(error["message"]), str(error.get("code"))
        except (ValueError, KeyError, TypeError):
            pass
        said = self.endpoint.hide(text)[:300]
        if _of_moderation(code) and not _of_moderation(said):
            said += f" ({self.endpoint.hide(code)})"
        detail = f"HTTP {status}: {said}"
        if status == 401 or (status == 403 and not _of_moderation(said)):
            return self._error("auth", detail)
        if status == 429 and code == "insufficient_quota":
            return self._error("refused", detail)
        pause = retry_after(response.headers)
        if pause is not None and status in (429, 503):
            self._pace.hold(pause)
        if status == 429:
            return self._error("rate_limited", detail)
        if status == 408:
            return self._error("timeout", detail)
        return self._error("server" if status >= 500 else "refused", detail, status)

    def _connection(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                headers = dict(self.endpoint.headers)
                if self.endpoint.key is not None:
                    headers["Authorization"] = f"Bearer {self.endpoint.key.get_secret_value()}"
                self._client = httpx.Client(
                    headers=headers,
                    params=dict(self.endpoint.query),
                    timeout=httpx.Timeout(self.endpoint.timeout, connect=min(10.0, self.endpoint.timeout)),
                    limits=httpx.Limits(max_connections=self._connections, max_keepalive_connections=self._connections),
                    trust_env=not self.endpoint.is_local,
                )
            return self._client


def within(seconds: float, work: Callable[[], httpx.Response]) -> httpx.Response:
    """What `work` returns or raises; TimeoutError when it takes longer, whatever it waits for then.

    The client's own time-outs bound only the silence between two bytes, and those of a header come one by one.
    """
    done: Future[httpx.Response] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result(seconds)


def _of_moderation(text: str) -> bool:
    return any(word in text.lower() for word in MODERATION_WORDS)


def is_moderated(error: Exception) -> bool:
    """Whether an error says that a service will not answer because of what was asked for: another attempt, or another
    run, would meet the same."""
    return (
        isinstance(error, ChatError)
        and error.kind == "refused"
        and (error.detail.startswith("the model refused") or _of_moderation(error.detail))
    )


def kept(reply: Any) -> dict[str, Any]:
    """What is kept of a reply: first choice, model, token counts. Raises ChatError for JSON of another kind."""
    try:
        choice, usage = reply["choices"][0], reply.get("usage") or {}
        message, finish = choice["message"], str(choice.get("finish_reason") or "")
        calls = [
            {"id": whole(str(call.get("id") or number)), "name": whole(str(call["function"]["name"])),
             "text": _arguments(call["function"].get("arguments"))}
            for number, call in enumerate(message.get("tool_calls") or [])
        ]  # fmt: skip
        return {
            "content": whole(_content(message.get("content"))),
            "reasoning": whole(str(message.get("reasoning_content") or message.get("reasoning") or "")),
            "refusal": whole(str(message.get("refusal") or "")),
            "tool_calls": calls,
            "finish_reason": whole(finish),
            "model": whole(str(reply.get("model") or "")),
            "fingerprint": whole(str(reply.get("system_fingerprint") or "")),
            "prompt_tokens": token_count(usage.get("prompt_tokens")),
            "completion_tokens": token_count(usage.get("completion_tokens")),
        }
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ChatError("server", "the reply is no chat completion") from None


def whole(text: str) -> str:
    """Text that UTF-8 can hold: halves of a surrogate pair, which JSON may spell, are replaced."""
    return text.encode("utf-8", "replace").decode()


def token_count(value: Any) -> int | None:
    """A count of tokens as a server sends it; None for what cannot be one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else None


def _arguments(value: Any) -> str:
    return whole(value if isinstance(value, str) else json.dumps(value or {}, ensure_ascii=False))


def _content(content: Any) -> str:
    """Text of a message: a string, nothing, or a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")
