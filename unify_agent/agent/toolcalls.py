"""Tool calls as text: written exactly as the release writes them, read as models really write them.

    <tool_call>
    {"name": "text_search", "arguments": {"q": "brass owl", "hl": "en", "top_k": 5}}
    </tool_call>

`parse_calls` mends what is plainly meant (code fences, single quotes, trailing commas, a missing close tag,
`parameters`, arguments as a JSON string, several calls, ...) and says what it mended. What is not plain is an
error with a sentence for the model, never a guess.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from unify_agent.errors import nearest

MAX_RESULTS = 20
MAX_QUERY = 256  # characters; longer queries are cut, and that is said


@dataclass(frozen=True)
class ToolCall:
    """One call: a tool's name and its arguments, checked against its schema; absent ones take the defaults."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Parsed:
    """What was read: `calls` in order, `mended` (one phrase each), `error` when a call was meant but not readable."""

    calls: tuple[ToolCall, ...] = ()
    mended: tuple[str, ...] = ()
    error: str | None = None


def _tool(name: str, description: str, properties: dict[str, dict]) -> dict:
    parameters = {"type": "object", "properties": properties, "required": ["q"]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS: dict[str, dict] = {
    "text_search": _tool(
        "text_search",
        "Look a name or topic up in text sources: who or what it is, other names, how it looks.",
        {
            "q": {"type": "string", "description": "What to look for"},
            "hl": {"type": "string", "description": "Language of the results, such as 'en' or 'zh'", "default": "en"},
            "top_k": {"type": "integer", "description": "How many results", "default": 5},
        },
    ),
    "search_image": _tool(
        "search_image",
        "Look for pictures of a thing, to use as references for its appearance.",
        {
            "q": {"type": "string", "description": "What the pictures should show"},
            "location": {"type": "string", "description": "Where to search from", "default": "United States"},
            "hl": {"type": "string", "description": "Language of the query", "default": "en"},
            "num": {"type": "integer", "description": "How many pictures", "default": 8},
        },
    ),
}
"""The two tools of appendix E.1: the paper's names, arguments and defaults; descriptions are ours."""

_OTHER_NAMES = {"query": "q", "keyword": "q", "keywords": "q", "lang": "hl", "language": "hl", "k": "top_k",
                "n": "num", "count": "num"}  # fmt: skip
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL | re.IGNORECASE)
_OPEN = re.compile(r"<tool_call>", re.IGNORECASE)
_CLOSE = re.compile(r"</tool_call>", re.IGNORECASE)
_FENCE = re.compile(r"```[A-Za-z_]*\s*(.*?)\s*(?:```|\Z)", re.DOTALL)
_SMART = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'"})
_DECODER = json.JSONDecoder()


def tools_block(names: Sequence[str] = tuple(TOOLS)) -> str:
    """The `<tools>` block of turn 0: a JSON array of function schemas, indent 2 (facts/agent.md section 1.3)."""
    schemas = json.dumps([TOOLS[name] for name in names], ensure_ascii=False, indent=2)
    return f"<tools>\n{schemas}\n</tools>"


def render_call(call: ToolCall) -> str:
    """The text of a call."""
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def parse_calls(reply: str) -> Parsed:
    """All calls in an assistant's reply. Calls inside a finished `<think>` block are thoughts and are not made."""
    text = _THOUGHT.sub(" ", reply)
    mended: list[str] = []
    bodies = _bodies(text, mended)
    if not bodies:
        bodies = _untagged(text, mended)
    calls: list[ToolCall] = []
    for body in bodies:
        for value in _objects(body, mended):
            if isinstance(value, str):
                return Parsed((), tuple(dict.fromkeys(mended)), value)
            outcome = _call(value, mended)
            if isinstance(outcome, str):
                return Parsed((), tuple(dict.fromkeys(mended)), outcome)
            calls.append(outcome)
    return Parsed(tuple(calls), tuple(dict.fromkeys(mended)))


def _bodies(text: str, mended: list[str]) -> list[str]:
    """What stands between the tags; a missing close tag ends at the next opening one or at the end."""
    bodies = []
    openings = list(_OPEN.finditer(text))
    for number, opening in enumerate(openings):
        limit = openings[number + 1].start() if number + 1 < len(openings) else len(text)
        closing = _CLOSE.search(text, opening.end(), limit)
        if closing is None:
            mended.append("missing </tool_call>")
        bodies.append(text[opening.end() : closing.start() if closing else limit])
    return bodies


def _untagged(text: str, mended: list[str]) -> list[str]:
    """A call without tags: a fenced block, or all of the reply from its first brace, that names one of the tools."""
    brace = text.find("{")
    blocks = _FENCE.findall(text) or ([text[brace:]] if brace >= 0 else [])
    named = [block for block in blocks if re.search(rf"""["'](?:{"|".join(TOOLS)})["']""", block)]
    if named:
        mended.append("missing <tool_call>")
    return named


def _objects(body: str, mended: list[str]) -> list[Any]:
    """The JSON values in a body (several may follow one another); a string among them is an error."""
    body = body.strip()
    fence = _FENCE.search(body)
    if fence:
        mended.append("code fence")
        body = fence[1]
    values: list[Any] = []
    while body:
        value, rest = _first_value(body, mended)
        if value is None:
            if values:
                mended.append("text after the call")
                break
            return [f"The tool call is not valid JSON: {_short(body)}"]
        values += value if isinstance(value, list) else [value]
        body = rest.lstrip(" \t\r\n,;")
    return values or ["The tool call is empty."]


def _first_value(body: str, mended: list[str]) -> tuple[Any, str]:
    """The first JSON value of a body and the text after it; (None, body) when there is none to read."""
    try:
        value, end = _DECODER.raw_decode(body)
        return (value, body[end:]) if isinstance(value, dict | list) else (None, body)
    except json.JSONDecodeError:
        pass
    start = min((at for at in (body.find("{"), body.find("[")) if at >= 0), default=-1)
    if start < 0:
        return None, body
    if start > 0:
        value, rest = _first_value(body[start:], mended)
        if value is not None:
            mended.append("text before the call")
        return value, rest
    piece, closers, end = _balanced(body.translate(_SMART))
    if body.translate(_SMART) != body:
        mended.append("typographic quotes")
    if closers:
        mended.append("missing closing brace")
    for change, label in ((_as_is, ""), (_no_trailing_commas, "trailing comma"), (_python_literal, "single quotes")):
        try:
            value = change(piece + closers)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, dict | list):
            if label:
                mended.append(label)
            return value, body[end:]
    return None, body


def _as_is(text: str) -> Any:
    return json.loads(text, strict=False)


def _no_trailing_commas(text: str) -> Any:
    return json.loads(re.sub(r",(\s*[}\]])", r"\1", text), strict=False)


def _python_literal(text: str) -> Any:
    text = re.sub(r"\b(true|false|null)\b", lambda word: {"true": "True", "false": "False"}.get(word[0], "None"), text)
    return ast.literal_eval(text)


def _balanced(text: str) -> tuple[str, str, int]:
    """The leading bracketed piece of a text, the closers it lacks, and where it ends."""
    stack: list[str] = []
    quote, escaped = "", False
    for at, char in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == quote:
                quote = ""
        elif char == '"' or (char == "'" and text[:at].rstrip()[-1:] in "{[:,"):
            quote = char
        elif char in "{[":
            stack.append("}" if char == "{" else "]")
        elif stack and char == stack[-1]:
            stack.pop()
            if not stack:
                return text[: at + 1], "", at + 1
    return text.rstrip(), quote + "".join(reversed(stack)), len(text)


def _call(value: Any, mended: list[str]) -> ToolCall | str:
    """A checked call from a JSON object, or the sentence that says what is wrong with it."""
    if not isinstance(value, dict):
        return f"A tool call is an object with name and arguments, not {_short(value)}"
    if isinstance(value.get("function"), dict):
        mended.append("call inside 'function'")
        value = value["function"]
    name = value.get("name", value.get("tool", value.get("function")))
    if not isinstance(name, str):
        return "The tool call has no name."
    if name not in TOOLS:
        return f"There is no tool {_short(name)}{nearest(name, list(TOOLS))}"
    arguments = value.get("arguments")
    if arguments is None and "parameters" in value:
        mended.append("'parameters' for 'arguments'")
        arguments = value["parameters"]
    if isinstance(arguments, str):
        inner, rest = _first_value(arguments.strip(), mended)
        if not isinstance(inner, dict) or rest.strip():
            return f"The arguments of {name} are not a JSON object."
        mended.append("arguments as a string")
        arguments = inner
    if not isinstance(arguments, dict):
        return f"The arguments of {name} are not a JSON object."
    return _checked(name, arguments, mended)


def _checked(name: str, given: dict[str, Any], mended: list[str]) -> ToolCall | str:
    properties = TOOLS[name]["function"]["parameters"]["properties"]
    arguments: dict[str, Any] = {}
    for key, value in given.items():
        known = key if key in properties else _OTHER_NAMES.get(str(key).lower())
        if known is None or known not in properties or known in arguments:
            mended.append(f"unknown argument {_short(key)} left out")
            continue
        if known != key:
            mended.append(f"'{key}' for '{known}'")
        if value is None:
            continue
        if properties[known]["type"] == "integer":
            if isinstance(value, str) and value.strip().isdecimal():
                mended.append(f"{known} as a string")
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
                return f"{known} of {name} must be a whole number."
            bounded = int(min(max(value, 1), MAX_RESULTS))
            if bounded != value:
                mended.append(f"{known} brought to {bounded}")
            value = bounded
        elif not isinstance(value, str):
            return f"{known} of {name} must be a string."
        arguments[known] = value
    query = arguments.get("q", "").strip()
    if not query:
        return f"{name} needs a query q."
    if len(query) > MAX_QUERY:
        mended.append(f"query cut to {MAX_QUERY} characters")
    arguments["q"] = query[:MAX_QUERY]
    return ToolCall(name, arguments)


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
