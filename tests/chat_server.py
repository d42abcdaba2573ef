"""A local server that speaks the chat protocol and misbehaves on request. For tests of whatever talks to a model.

    with ChatServer(lambda body: {"score": 3}, plan=["429", "malformed"]) as server:
        client = ChatClient(Endpoint.parse(server.url, "judge"))

`answer` gets the decoded body of a call and returns a text, a value that becomes JSON, or a Reply. Faults come from
`plan` (used up in order, one a call; "ok" is none) and then from `fault(body, number)`, which returns a name or None:

    malformed fenced wordy truncated missing range strings empty thinking    what is done to a good answer
    429 500 401 404 html nochoice timeout drop                               what happens instead of one
    noschema                                                                 400 as long as a schema is asked for
"""

from __future__ import annotations

import base64
import json
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """An answer with all that a completion may hold. `tool_calls`: (name, arguments); the latter a text or a value."""

    text: str = ""
    tool_calls: list[tuple[str, Any]] = field(default_factory=list)
    finish_reason: str = ""
    reasoning: str = ""
    refusal: str = ""


def texts(body: dict[str, Any]) -> str:
    """All text of a call's messages."""
    found = []
    for message in body["messages"]:
        content = message["content"]
        found += [content] if isinstance(content, str) else [p["text"] for p in content if p["type"] == "text"]
    return "\n".join(found)


def pictures(body: dict[str, Any]) -> list[bytes]:
    """The bytes of all pictures of a call, in order."""
    parts = [p for m in body["messages"] if isinstance(m["content"], list) for p in m["content"]]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [base64.b64decode(url.split(",", 1)[1]) for url in urls]


def schema_name(body: dict[str, Any]) -> str:
    """The name of the schema that a call asks for, "" for none."""
    return body.get("response_format", {}).get("json_schema", {}).get("name", "")


def _numbers(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each, change) for each in value]
    return change(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _spoil(reply: Reply, fault: str) -> Reply:
    text = reply.text
    if fault == "malformed":
        return Reply(text.replace('"', "'")[:-1] or "{")
    if fault == "fenced":
        return Reply(f"```json\n{text}\n```")
    if fault == "wordy":
        return Reply(f"Let me see: {{so}} much to weigh.\n\n{text}\n\nI hope that helps {{you}}!")
    if fault == "truncated":
        return Reply(text[: len(text) // 2], finish_reason="length")
    if fault == "missing":
        value = json.loads(text)
        value.pop(next(reversed(value)))
        return Reply(json.dumps(value))
    if fault == "range":
        return Reply(json.dumps(_numbers(json.loads(text), lambda _: 99)))
    if fault == "strings":
        return Reply(json.dumps(_numbers(json.loads(text), str)))
    if fault == "thinking":
        return Reply(f'<think>Maybe {{"score": 0}}? No.</think>\n{text}')
    if fault == "empty":
        return Reply("")
    raise AssertionError(f"no fault {fault!r}")


class ChatServer:
    """Runs in threads of this process while the block lasts. `bodies`, `headers`: of the calls so far, in order.

    `served`: names that `/models` lists (None: 404); `key`: the only key that is let in; `retry_after`: of a 429.
    """

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], Any] = lambda body: "Yes.",
        *,
        plan: Iterable[str] = (),
        fault: Callable[[dict[str, Any], int], str | None] = lambda body, number: None,
        served: list[str] | None = None,
        key: str | None = None,
        retry_after: str = "0",
    ) -> None:
        self.answer, self.fault, self.served, self.key = answer, fault, served or ["judge"], key
        self.lists_models, self.retry_after = True, retry_after
        self.plan = deque(plan)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.most_at_once = self._at_once = 0
        self._lock, self._end = threading.Lock(), threading.Event()

    def __enter__(self) -> ChatServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.paths.append(self.path)
                if outer.key is not None and self.headers.get("Authorization") != f"Bearer {outer.key}":
                    self.send(401, {"error": {"message": f"bad key {self.headers.get('Authorization')}"}})
                elif outer.lists_models:
                    self.send(200, {"object": "list", "data": [{"id": name} for name in outer.served]})
                else:
                    self.send(404, {"error": {"message": "no such path"}})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    outer.paths.append(self.path)
                    outer.bodies.append(body)
                    outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                    number = len(outer.bodies)
                    fault = outer.plan.popleft() if outer.plan else outer.fault(body, number) or "ok"
                    outer._at_once += 1
                    outer.most_at_once = max(outer.most_at_once, outer._at_once)
                try:
                    outer._respond(self, body, fault)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True
                finally:
                    with outer._lock:
                        outer._at_once -= 1

            def send(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
                data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
                self.send_response(status)
                for name, text in {"Content-Length": str(len(data)), **(headers or {})}.items():
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def calls(self) -> int:
        """How many completions were asked for."""
        return len(self.bodies)

    def _respond(self, handler: Any, body: dict[str, Any], fault: str) -> None:
        auth = handler.headers.get("Authorization")
        if fault == "401" or (self.key is not None and auth != f"Bearer {self.key}"):
            return handler.send(401, {"error": {"message": f"Incorrect API key provided: {auth}"}})
        if fault == "noschema" and "response_format" in body:
            return handler.send(400, {"error": {"message": "response_format json_schema is not supported"}})
        if body["model"] not in self.served or fault == "404":
            return handler.send(404, {"error": {"message": f"The model {body['model']} does not exist"}})
        if fault == "429":
            return handler.send(429, {"error": {"message": "slow down"}}, {"Retry-After": self.retry_after})
        if fault == "500":
            return handler.send(500, {"error": {"message": "out of memory"}})
        if fault == "html":
            return handler.send(200, "<html>A gateway</html>")
        if fault == "nochoice":
            return handler.send(200, {"choices": []})
        if fault == "timeout":
            self._end.wait(30)
            return None
        if fault == "drop":
            handler.close_connection = True
            return None
        reply = self.answer(body)
        if not isinstance(reply, Reply):
            reply = Reply(reply if isinstance(reply, str) else json.dumps(reply, ensure_ascii=False))
        if fault not in ("ok", "noschema"):
            reply = _spoil(reply, fault)
        return handler.send(200, self._completion(body, reply))

    @staticmethod
    def _completion(body: dict[str, Any], reply: Reply) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.refusal:
            message["refusal"] = reply.refusal
        if reply.tool_calls:
            message["tool_calls"] = [
                {"id": f"call_{number}", "type": "function", "function": {
                    "name": name, "arguments": value if isinstance(value, str) else json.dumps(value)}}
                for number, (name, value) in enumerate(reply.tool_calls)
            ]  # fmt: skip
        finish = reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")
        return {
            "id": "1", "object": "chat.completion", "model": f"{body['model']}-2026", "system_fingerprint": "fp",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": len(texts(body)) // 4, "completion_tokens": max(1, len(reply.text) // 4)},
        }  # fmt: skip
