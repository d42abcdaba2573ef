"""An item's page: the request, what was thought, searched, found and judged, the recaption, and the picture.

It is made from the record alone and points to the pictures beside it (`../images`, `../intermediate`), so a page is
small. Every text passes `escape`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from unify_agent.agent.toolcalls import parse_calls
from unify_agent.datasets.trajectory import Trajectory, Turn
from unify_agent.page import badge, escape, page, table, tag

REASONS = {
    "good": "good", "spare": "good, not needed", "blurred": "blurred", "tiny": "too small", "watermark": "watermark",
    "text": "mostly text", "other": "another thing", "duplicate": "same picture", "unreadable": "not readable",
}  # fmt: skip
ENDINGS = {
    "direct": "nothing was missing", "grounded": "drawn with references", "text_only": "drawn from what was read",
    "no_reference": "no picture was usable as a reference",
    "other_language": "the recaption is not in the language of the request",
    "search_limit": "still searching at the limit",
    "bad_calls": "too many replies without a call or a recaption", "no_recaption": "no complete recaption",
    "search_failed": "a search did not answer", "policy_error": "the model failed", "draw_error": "drawing failed",
}  # fmt: skip


def thought_of(reply: str) -> str:
    """What a reply says before it acts."""
    found = re.search(r"<think>(.*?)(?:</think>|$)", reply, re.DOTALL)
    text = found[1] if found else re.split(r"<tool_call>|<recaption>", reply)[0]
    return " ".join(text.split())


def call_text(call: Mapping[str, Any]) -> str:
    """A tool call in words."""
    name = {"text_search": "text search", "search_image": "picture search"}.get(call["name"], call["name"])
    return f"{name}: {call['arguments'].get('q', '')}"


def candidate(uri: str | None, title: str, reason: str, score: float, *, chosen: bool, usable: bool) -> str:
    """A picture that was found, with its verdict, as a list item."""
    shown = f'<img src="{escape(uri)}" alt="">' if uri else ""
    kind = "chosen" if chosen else "" if usable else "no"
    words = "chosen" if chosen else REASONS.get(reason, reason)
    return f'<li class="{kind}">{shown}{escape(title)}<br>{escape(words)} · {score:.1f}</li>'


def turn_card(
    reply: str,
    calls: Sequence[Mapping[str, Any]],
    observation: str,
    candidates: Sequence[str],
    notes: Sequence[str] = (),
    discarded: Sequence[str] = (),
) -> str:
    """One turn: its thought, its calls, what they found, notes on it, and the replies that it was drawn again for.

    `candidates` are list items.
    """
    searches = {call["name"] for call in calls}
    title = (
        "Search for pictures"
        if "search_image" in searches
        else "Search in texts"
        if searches
        else "Rewrite the request"
    )
    parts = [f"<h4>{title}</h4>"]
    thought = thought_of(reply)
    if thought:
        parts.append(f'<p class="thought">“{escape(thought)}”</p>')
    parts += [f'<div><span class="call">{escape(call_text(call))}</span></div>' for call in calls]
    if candidates:
        parts.append(f'<ul class="candidates">{"".join(candidates)}</ul>')
    elif observation:
        parts.append(f'<div class="evidence">{escape(observation.strip())}</div>')
    told = [*notes, *(f"drawn again, discarded: {each[:300]}" for each in discarded)]
    parts += [f'<div class="explain">{escape(note)}</div>' for note in told]
    return f'<div class="turn">{"".join(parts)}</div>'


def story(record: Trajectory) -> str:
    """The page of a record."""
    turns = [_turn(record, turn) for turn in record.turns]
    if record.recaption:
        turns.append(f'<div class="turn"><h4>Recaption</h4><p class="recaption">{escape(record.recaption)}</p></div>')
    ending = ENDINGS.get(record.stop, record.stop)
    good = record.generated_image is not None and not record.error
    told = badge(good, ending, ending) + (f" {escape(record.error)}" if record.error else "")
    pictures = "".join(
        _figure(f"../{reference.file}", f"reference {number}", _origin(reference.source, reference.licence))
        for number, reference in enumerate(record.references, 1)
    )
    drawn = _figure(f"../{record.generated_image}", "the picture", "") if record.generated_image else ""
    facts = table(["", ""], [[escape(name), escape(value)] for name, value in record.options.items()], 0)
    body = (
        '<article class="card example"><div class="ask">'
        f'<q>{escape(record.image_prompt)}</q><span class="who">{escape(record.ip_name)}</span></div>'
        f'<div class="body"><div class="talk">{"".join(turns)}</div>'
        f'<div class="outcome">{drawn}<div class="pair">{pictures}</div></div></div></article>'
        f"<details><summary>How it was made</summary>{tag('div', facts, 'card')}</details>"
    )
    return page(record.ip_index, f"<p>{told}</p>", body)


def _turn(record: Trajectory, turn: Turn) -> str:
    extra = turn.model_extra or {}
    calls = extra.get("tool_calls") or [
        {"name": call.name, "arguments": call.arguments} for call in parse_calls(turn.response_text).calls
    ]
    chosen = {(reference.model_extra or {}).get("id") for reference in record.references}
    items = [
        candidate(
            f"../intermediate/{record.ip_index}/tmp/{each['path']}", each.get("title", ""), each["reason"],
            each["score"], chosen=good and each.get("id") in chosen, usable=good,
        )
        for each in extra.get("image_judge_results", [])
        for good in [each["reason"] == "good"]
    ]  # fmt: skip
    notes = [f"read: {each['title']} ({each['source']})" for each in extra.get("text_results", [])]
    notes += [f"mended: {each}" for each in extra.get("mended", [])]
    notes += [extra["tool_error"]] if extra.get("tool_error") else []
    discarded = [each["response_text"] for each in extra.get("discarded", [])]
    return turn_card(turn.response_text, calls, turn.tool_output or "", items, notes, discarded)


def _figure(source: str, title: str, caption: str) -> str:
    return (
        f'<figure style="min-width: 0; overflow-wrap: anywhere"><img src="{escape(source)}" alt="{escape(title)}">'
        f"<figcaption><b>{escape(title)}</b>{caption}</figcaption></figure>"
    )


def _origin(source: str, licence: str) -> str:
    """Where a picture came from; an address is a link only when it is a web address."""
    text = escape(source)
    if re.match(r"https?://", source):
        text = f'<a rel="noreferrer" href="{escape(source)}">{text}</a>'
    return text + (f"<br>{escape(licence)}" if licence else "")
