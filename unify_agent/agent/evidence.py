"""Observations: what the tools found, as bounded text between the observation tags.

What a page says is text twice over (pitfall: prompt injection). `Grammar.encode_user` encodes everything between the
tags without special tokens; and for whoever reads the record with another tokenizer, an endpoint for instance, a tag
or a marker of ours in it is broken by a space of no width. Besides it is bounded, and each entry is brought to one line
so that it cannot pass for several.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from unify_agent.agent.judge import Judged
from unify_agent.agent.wording import Prompts
from unify_agent.interleave.grammar import SPELLED
from unify_agent.search.base import TextHit, well_formed

_TAG = re.compile(r"<(?=\||/?\s*(?:observation|tool_call|tools|think|recaption)\b)", re.IGNORECASE)


def one_line(text: str, limit: int) -> str:
    """At most `limit` characters on one line, tags broken, cut at a word where there is one, with a mark when cut."""
    text = _TAG.sub(SPELLED, " ".join(well_formed(text).split()))
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    space = head.rfind(" ")
    return (head[:space] if space > limit // 2 else head).rstrip() + "…"


def text_evidence(hits: Sequence[TextHit], prompts: Prompts, language: str) -> str:
    """Entries `[k] Title`, the summary on the next line, blank lines between them (facts/agent.md section 1.3)."""
    limits, words = prompts.limits, prompts.phrases(language)
    if not hits:
        return words.no_results
    separator = "\n" if prompts.group_titles else "\n\n"
    return separator.join(
        f"[{number}] {one_line(hit.title, limits.title_chars)}\n{one_line(hit.text, limits.text_chars)}"
        for number, hit in enumerate(hits[: limits.text_results], 1)
    )


def image_evidence(judged: Sequence[Judged], prompts: Prompts, language: str) -> str:
    """What the image search found and what the judge says of each candidate.

    Long form: `[k] Title: verdict` a line. Short form (`group_titles`): a title once, then its verdicts in order.
    """
    limits, words = prompts.limits, prompts.phrases(language)
    if not judged:
        return words.no_pictures
    shown = [
        (one_line(each.hit.title, limits.title_chars), getattr(words.verdicts, each.verdict.reason))
        for each in judged[: limits.images]
    ]
    if not prompts.group_titles:
        return "\n".join(f"[{number}] {title}: {verdict}" for number, (title, verdict) in enumerate(shown, 1))
    comma = "，" if language == "zh" else ", "
    return "\n".join(
        f"{title}: {comma.join(verdict for _, verdict in group)}" for title, group in groupby(shown, lambda s: s[0])
    )


def observation(parts: Sequence[str], prompts: Prompts, language: str, failed: bool = False) -> str:
    """The tool text of a turn: the header that says whether it worked, then its parts, bounded."""
    words = prompts.phrases(language)
    header = words.error_header if failed else words.header
    text = "\n\n".join(part for part in parts if part)[: prompts.limits.observation_chars]
    return f"{header}\n{text}" if header else text


def user_turn(tool_text: str, instruction: str) -> str:
    """The input of the turn after a tool: the observation, then what to do next."""
    return f"<observation>\n{tool_text}\n</observation>\n\n{instruction}"
