"""What is said to a model: texts, pictures, tool calls and their results.

A picture stands in records as the SHA-256 of its source and the policy it is sent under; its pixels are encoded only
when they go over the wire, so an answer that is known already costs no encoding.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from unify_agent.files import digest
from unify_agent.interleave.segments import Unusable
from unify_agent.interleave.transforms import open_picture
from unify_agent.judging.answers import FunctionCall

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class PicturePolicy:
    """How pictures are sent: `longest` side in pixels (larger ones are made smaller, Lanczos), `format` png or jpeg."""

    longest: int = 1024
    format: Literal["png", "jpeg"] = "png"
    quality: int = 95

    def encode(self, picture: Image.Image) -> bytes:
        """An RGB picture as the bytes that are sent."""
        if max(picture.size) > self.longest:
            picture = picture.copy()
            picture.thumbnail((self.longest, self.longest), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        if self.format == "png":
            picture.save(buffer, "PNG")
        else:
            picture.save(buffer, "JPEG", quality=self.quality, subsampling=0)
        return buffer.getvalue()


PNG_1024 = PicturePolicy()


@dataclass(frozen=True)
class Picture:
    """A picture in a message. `digest` is the SHA-256 of `source`; without a source it can be looked up, not sent."""

    digest: str
    policy: PicturePolicy = PNG_1024
    source: Path | bytes | None = field(default=None, repr=False)

    @classmethod
    def of(cls, source: Path | bytes, policy: PicturePolicy = PNG_1024) -> Picture:
        """A picture from a file or from the bytes of one."""
        return cls(digest(source), policy, source)

    def data_uri(self) -> str:
        """The picture as it is sent. Raises `Unusable` when it does not decode, or is no longer the one of `digest`."""
        assert self.source is not None, "a picture that is sent has a source"
        name = str(self.source) if isinstance(self.source, Path) else "picture"
        try:
            data = self.source.read_bytes() if isinstance(self.source, Path) else self.source
        except OSError as error:
            raise Unusable("picture missing", f"{name} ({error.strerror})") from None
        if digest(data) != self.digest:
            raise Unusable("picture changed", name)
        opened = open_picture(data, name)
        return f"data:image/{self.policy.format};base64,{base64.b64encode(self.policy.encode(opened)).decode()}"


Part = str | Picture


@dataclass(frozen=True)
class Message:
    """One message. `calls`: what an assistant called; `call_id`: the call that a tool's message answers."""

    role: Role
    parts: tuple[Part, ...]
    calls: tuple[FunctionCall, ...] = ()
    call_id: str | None = None

    def _made(self, picture: Any) -> dict[str, Any]:
        content: Any = [
            {"type": "text", "text": part} if isinstance(part, str) else picture(part) for part in self.parts
        ]
        if all(isinstance(part, str) for part in self.parts):
            content = "\n".join(part for part in self.parts if isinstance(part, str))
        message: dict[str, Any] = {"role": self.role, "content": content}
        if self.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
                for call in self.calls
            ]
        if self.call_id is not None:
            message["tool_call_id"] = self.call_id
        return message

    def wire(self) -> dict[str, Any]:
        """The message in the chat protocol, pictures as data URIs."""
        return self._made(lambda part: {"type": "image_url", "image_url": {"url": part.data_uri()}})

    def record(self) -> dict[str, Any]:
        """The message as it is logged and cached: pictures by digest and policy."""
        return self._made(lambda part: {"type": "picture", "sha256": part.digest, "policy": asdict(part.policy)})


def system(text: str) -> Message:
    """Instructions."""
    return Message("system", (text,))


def user(*parts: Part) -> Message:
    """What the user says and shows, in order."""
    return Message("user", parts)


def assistant(text: str, calls: Sequence[FunctionCall] = ()) -> Message:
    """What the model said before."""
    return Message("assistant", (text,), tuple(calls))


def tool_result(call: FunctionCall, content: Any) -> Message:
    """What a tool answered to `call`: a text, or a value that becomes JSON."""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return Message("tool", (text,), (), call.id)
