"""JSON as models really write it: read what is plainly meant, and say what was mended.

`first_value` reads one object or list from the beginning of a text, `function_call` a call in Python's notation.
Neither ever raises, whatever the text is.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable
from typing import Any

_DECODER = json.JSONDecoder()
_SMART = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'"})
_WIDE = str.maketrans({"：": ":", "，": ",", "｛": "{", "｝": "}", "［": "[", "］": "]"})
_STRING = r'"(?:[^"\\]|\\.)*"'
_STRING_OR_WIDE = re.compile(rf"{_STRING}|[：，｛｝［］]", re.DOTALL)
_STRING_OR_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRING_OR_BARE = re.compile(rf"{_STRING}|(?<=[{{,\s])([A-Za-z_]\w*)(?=\s*:)", re.DOTALL)
_STRING_OR_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_UNREADABLE = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)
"""What Python's own readers raise for text that they cannot read."""


def first_value(text: str, mended: list[str]) -> tuple[dict | list | None, str]:
    """The first JSON object or list of a text and what follows it; (None, text) when there is none to read."""
    try:
        value, end = _DECODER.raw_decode(text)
        return (value, text[end:]) if isinstance(value, dict | list) else (None, text)
    except _UNREADABLE:
        pass
    plain = text.translate(_SMART)
    start = min((at for at in (plain.find(sign) for sign in "{[｛［") if at >= 0), default=-1)
    if start < 0:
        return None, text
    if start > 0:
        found: list[str] = []
        value, rest = first_value(text[start:], found)
        if value is not None:
            mended += ["text before the call", *found]
        return value, rest if value is not None else text
    labels = ["typographic quotes"] if plain != text else []
    widened = _outside_strings(_STRING_OR_WIDE, plain, lambda sign: sign.translate(_WIDE))
    if widened != plain:
        labels.append("full-width punctuation")
    piece, closers, end = _balanced(widened)
    if closers[:1] in ('"', "'"):
        labels.append("missing closing quote")
    if closers:
        labels.append("missing closing brace")
    for change, label in _CHANGES:
        try:
            value = change(piece + closers)
        except _UNREADABLE:
            continue
        if isinstance(value, dict | list):
            mended += [*labels, *([label] if label else [])]
            return value, text[end:]
    return None, text


def function_call(text: str) -> dict[str, Any] | None:
    """The call in `text_search(q="owl", top_k=5)`, arguments by name and constant; None when it is no such thing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in strings
            call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
            return {
                "name": call.func.id,
                "arguments": {str(each.arg): ast.literal_eval(each.value) for each in call.keywords},
            }
    except _UNREADABLE:
        pass
    return None


def _outside_strings(pattern: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    """Changes the matches of a pattern whose first alternative is a string in double quotes; strings stay."""
    return pattern.sub(lambda found: found[0] if found[0][0] == '"' else change(found[0]), text)


def _without_commas(text: str) -> str:
    return _outside_strings(_STRING_OR_COMMA, text, lambda _: "")


def _as_it_is(text: str) -> Any:
    return json.loads(text)


def _loose_strings(text: str) -> Any:
    return json.loads(text, strict=False)


def _trailing_commas(text: str) -> Any:
    return json.loads(_without_commas(text), strict=False)


def _comments(text: str) -> Any:
    return json.loads(_without_commas(_outside_strings(_STRING_OR_COMMENT, text, lambda _: " ")), strict=False)


def _bare_keys(text: str) -> Any:
    quoted = _outside_strings(_STRING_OR_BARE, text, lambda word: f'"{word}"')
    return json.loads(_without_commas(quoted), strict=False)


def _python_literal(text: str) -> Any:
    words = {"true": "True", "false": "False", "null": "None"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes in strings
        return ast.literal_eval(re.sub(r"\b(true|false|null)\b", lambda word: words[word[0]], text))


_CHANGES = (
    (_as_it_is, ""),
    (_loose_strings, "line break in a string"),
    (_trailing_commas, "trailing comma"),
    (_comments, "comment"),
    (_bare_keys, "keys without quotes"),
    (_python_literal, "single quotes"),
)
"""What is tried, in order, and what a success is called."""


def _balanced(text: str) -> tuple[str, str, int]:
    """The leading bracketed piece of a text, the closers it lacks, and where it ends."""
    stack: list[str] = []
    quote, escaped, before = "", False, ""
    for at, char in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == quote:
                quote = ""
        elif char == '"' or (char == "'" and before in "{[:,"):
            quote = char
        elif char in "{[":
            stack.append("}" if char == "{" else "]")
        elif stack and char == stack[-1]:
            stack.pop()
            if not stack:
                return text[: at + 1], "", at + 1
        if not char.isspace():
            before = char
    return text.rstrip(), quote + "".join(reversed(stack)), len(text)
