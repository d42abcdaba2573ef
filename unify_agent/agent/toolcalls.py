"""Tool calls as text: written exactly as the release writes them, read as models really write them.

    <tool_call>
    {"name": "text_search", "arguments": {"q": "brass owl", "hl": "en", "top_k": 5}}
    </tool_call>

`parse_calls` mends what is plainly meant (code fences, single quotes, trailing commas, a missing close tag,
`parameters`, arguments as a JSON string, other ways of naming a tool, several calls, ...) and says what it mended.
What is not plain is an error with a sentence for the model, never a guess. It never raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from unify_agent.agent.mending import first_value, function_call
from unify_agent.errors import nearest

MAX_RESULTS = 20
MAX_QUERY = 256  # characters; longer queries are cut, and that is said
MAX_PLACE = 80  # characters of a language or a place


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
_NAMED = re.compile(rf"<({'|'.join(TOOLS)})>\s*(\{{.*?)(?:</\1>|\Z)", re.DOTALL)
_INVOKE = re.compile(r"""<invoke\s+name=["']([^"'<>]*)["']\s*>(.*?)(?:</invoke>|\Z)""", re.DOTALL)
_PARAMETER = re.compile(r"""<parameter\s+name=["']([^"'<>]*)["']\s*>(.*?)</parameter>""", re.DOTALL)
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_NAME_KEYS = ("name", "tool", "function", "action", "tool_name")
_ARGUMENT_KEYS = ("parameters", "args", "input", "action_input")


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
        body = text[opening.end() : closing.start() if closing else limit]
        if closing is None and not body.strip() and limit < len(text):
            mended.append("<tool_call> twice")
            continue
        if closing is None:
            mended.append("missing </tool_call>")
        bodies.append(body)
    return bodies


def _untagged(text: str, mended: list[str]) -> list[Any]:
    """A call without our tags: `<text_search>{...}</text_search>`, `<invoke name="text_search">`, a fenced block, or
    all of the reply from its first brace, when that names one of the tools."""
    named = [(found[1], found[2]) for found in _NAMED.finditer(text)]
    if named:
        mended.append("the tool's name as a tag")
        return [_wrapped(name, body) for name, body in named]
    invoked = [(found[1], dict(_PARAMETER.findall(found[2]))) for found in _INVOKE.finditer(text)]
    if invoked:
        mended.append("<invoke> for <tool_call>")
        return [{"name": name, "arguments": given} for name, given in invoked]
    brace = text.find("{")
    blocks = _FENCE.findall(text) or ([text[brace:]] if brace >= 0 else [])
    found = [block for block in blocks if re.search(rf"""["'](?:{"|".join(TOOLS)})["']""", block)]
    if found:
        mended.append("missing <tool_call>")
    return list(found)


def _wrapped(name: str, body: str) -> Any:
    """A call from what stands in a tag of its name: the arguments, or all of the call."""
    value, rest = first_value(body.strip(), [])
    if isinstance(value, dict) and "name" not in value and not rest.strip():
        return {"name": name, "arguments": value}
    return body


def _objects(body: Any, mended: list[str]) -> list[Any]:
    """The JSON values in a body (several may follow one another); a string among them is an error."""
    if not isinstance(body, str):
        return [body]
    body = body.strip()
    fence = _FENCE.search(body)
    if fence and not body.startswith(("{", "[")):
        mended.append("code fence")
        body = fence[1]
    values: list[Any] = []
    while body:
        value, rest = first_value(body, mended)
        if value is None:
            if values:
                mended.append("text after the call")
                break
            written = function_call(body)
            if written is None:
                return [f"The tool call is not valid JSON: {_short(body)}"]
            mended.append("a call in brackets")
            value, rest = written, ""
        if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
            mended.append("calls inside 'tool_calls'")
            value = value["tool_calls"]
        values += value if isinstance(value, list) else [value]
        body = rest.lstrip(" \t\r\n,;")
    return values or ["The tool call is empty."]


def _call(value: Any, mended: list[str]) -> ToolCall | str:
    """A checked call from a JSON object, or the sentence that says what is wrong with it."""
    if not isinstance(value, dict):
        return f"A tool call is an object with name and arguments, not {_short(value)}"
    if isinstance(value.get("function"), dict):
        mended.append("call inside 'function'")
        value = value["function"]
    named = next((key for key in _NAME_KEYS if isinstance(value.get(key), str)), None)
    if named is None and len(value) == 1 and next(iter(value)) in TOOLS:
        mended.append("the tool's name as a key")
        ((name, arguments),) = value.items()
        value = {"arguments": arguments}
    elif named is None:
        return "The tool call has no name."
    else:
        name = value[named]
    plain = name.strip().lower().rpartition(".")[2]
    if name not in TOOLS and plain in TOOLS:
        mended.append(f"the name {_short(name)}")
        name = plain
    if name not in TOOLS:
        return f"There is no tool {_short(name)}{nearest(name, list(TOOLS))}"
    arguments = value.get("arguments")
    for key in _ARGUMENT_KEYS if arguments is None else ():
        if key in value:
            mended.append(f"'{key}' for 'arguments'")
            arguments = value[key]
            break
    if arguments is None and isinstance(value.get("q", value.get("query")), str):
        mended.append("arguments beside the name")
        arguments = {key: each for key, each in value.items() if key != named}
    if isinstance(arguments, str):
        inner, rest = first_value(arguments.strip(), mended)
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
            if isinstance(value, str) and re.fullmatch(r"\s*\d{1,9}\s*", value):
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
        elif (clean := _UNPRINTABLE.sub(" ", value)) != value:
            mended.append(f"unprintable characters in {known}")
            value = clean
        arguments[known] = value
    query = arguments.get("q", "").strip()
    if not query:
        return f"{name} needs a query q."
    if len(query) > MAX_QUERY:
        mended.append(f"query cut to {MAX_QUERY} characters")
    arguments["q"] = query[:MAX_QUERY]
    for key in ("hl", "location"):
        if len(arguments.get(key, "")) > MAX_PLACE:
            mended.append(f"{key} left out: too long")
            del arguments[key]
    return ToolCall(name, arguments)


def _short(value: Any) -> str:
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # a number of thousands of digits, something nested as deeply
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
