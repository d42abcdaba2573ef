"""The services that `benchmarks.build` asks: chat and images, answering after a while, in a process of their own.

Things are called by coined names that begin with `Qo`; whoever answers takes the name from what is asked. The answers
are the plainest that the stages accept.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import multiprocessing
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image

CONSONANTS, VOWELS = "bdfgklmnprst", "aeiou"
_NAME = re.compile(r"\bQo[a-z]{8}\b")
_SENTENCE = "At dawn {name} waits beside the ticket desk of a small railway station, wet from the rain."
_RECAPTION = (
    "At dawn {name} waits beside the wooden ticket desk of a small railway station, its coat wet from the rain, seen "
    "from a low angle in soft grey light. Puddles mirror the empty platform, a clock hangs above the door, and mist "
    "hides the far end of the rails. The final image completely preserves the round outline and the bright colour of "
    "the subject from image_1, and fully retains its surface and proportions from image_2."
)


def name_of(number: int) -> str:
    """The name of a thing."""
    letters = []
    for _ in range(4):
        number, consonant = divmod(number, len(CONSONANTS))
        number, vowel = divmod(number, len(VOWELS))
        letters.append(CONSONANTS[consonant] + VOWELS[vowel])
    return "Qo" + "".join(letters)


def _said(body: dict[str, Any]) -> str:
    """All text of a call."""
    found = []
    for message in body["messages"]:
        parts = message["content"]
        found += [parts] if isinstance(parts, str) else [part.get("text", "") for part in parts or ()]
    return "\n".join(found)


def _teach(body: dict[str, Any], name: str) -> dict[str, Any]:
    """The teacher: reads, looks for pictures, recaptions."""
    turns = sum(message["role"] == "assistant" for message in body["messages"])
    if turns < 2:
        call = {"name": ("text_search", "search_image")[turns], "arguments": json.dumps({"q": name})}
        return {
            "content": "I must look it up.",
            "tool_calls": [{"id": f"c{turns}", "type": "function", "function": call}],
        }
    return {"content": f"<think>Now I know it.</think><recaption>{_RECAPTION.format(name=name)}</recaption>"}


def _answer(body: dict[str, Any]) -> dict[str, Any]:
    found = _NAME.search(_said(body))
    name = found[0] if found else ""
    if body["model"] == "teacher":
        return _teach(body, name)
    values: dict[str, dict[str, Any]] = {
        "metadata": {"about": [1], "ambiguous": False, "visual": True, "own_knowledge": 1, "renown": 1,
                     "attributes": ["a rounded outline", "one colour all over"]},
        "prompts": {"prompt": _SENTENCE},
        "references": {"identity": 9, "salience": 8, "clarity": 9, "cleanliness": 9, "is_text_heavy": False,
                       "has_watermark": False},
        "verifier": {"identity": 9, "scene": 9, "soundness": 9, "reason": "the same"},
    }  # fmt: skip
    return {"content": json.dumps(values[body["model"]])}


def _picture() -> str:
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 60).convert("RGB").save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


class Server:
    """Answers each POST after `latency` seconds; any number at a time."""

    def __init__(self, latency: float) -> None:
        self.latency, self.calls = latency, 0

    async def serve(self, told: Any) -> None:
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        told.put(server.sockets[0].getsockname()[1])
        async with server:
            await server.serve_forever()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (head := await reader.readuntil(b"\r\n\r\n")) is not None:
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                sent = await reader.readexactly(int(length[1])) if length else b""
                path = head.split(b" ", 2)[1].decode()
                if path != "/count":
                    self.calls += 1
                    await asyncio.sleep(self.latency)
                data = json.dumps(self._respond(path, sent)).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                             b"content-length: %d\r\n\r\n%s" % (len(data), data))  # fmt: skip
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _respond(self, path: str, sent: bytes) -> dict[str, Any]:
        if path == "/count":
            return {"calls": self.calls}
        if path.startswith("/v1/images"):
            return {"data": [{"b64_json": _picture()}]}
        message = {"role": "assistant"} | _answer(json.loads(sent))
        return {
            "model": "local", "choices": [{"message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 500, "completion_tokens": 50},
        }  # fmt: skip


def _run(latency: float, told: Any) -> None:
    asyncio.run(Server(latency).serve(told))


@contextmanager
def serving(latency: float) -> Iterator[str]:
    """The address of a server that runs while the block does."""
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    process = context.Process(target=_run, args=(latency, told), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{told.get(timeout=60)}/v1"
    finally:
        process.terminate()
        process.join()
