"""The part of a long text that answers a question: whole paragraphs, the most telling ones first."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from unify_agent.search.index import holds, normalise, pieces, words

SEEN = 200_000
"""Characters of a page that are looked at."""
_PARAGRAPHS = re.compile(r"\n\s*\n|\n(?=#{1,6} )")
_SENTENCES = re.compile(r"(?<=[.!?。！？])\s*|\n")


def passages(text: str, limit: int) -> Iterator[str]:
    """The text in pieces of at most `limit` characters, cut between paragraphs, else sentences, else anywhere."""
    held = ""
    for part in _parts(text, limit):
        if held and len(held) + 2 + len(part) > limit:
            yield held
            held = ""
        held = f"{held}\n\n{part}" if held else part
    if held:
        yield held


def _parts(text: str, limit: int) -> Iterator[str]:
    for paragraph in _PARAGRAPHS.split(text):
        paragraph = paragraph.strip()
        if len(paragraph) <= limit:
            if paragraph:
                yield paragraph
            continue
        held = ""
        for sentence in _SENTENCES.split(paragraph):
            for start in range(0, len(sentence), limit):
                piece = sentence[start : start + limit].strip()
                if held and len(held) + 1 + len(piece) > limit:
                    yield held
                    held = ""
                held = f"{held} {piece}".strip()
        if held:
            yield held


def excerpt(text: str, q: str, limit: int, piece: int = 300) -> str:
    """At most `limit` characters of `text`: the passages that hold most of the words of `q`, the best first.

    Rare words weigh more. Without any of the words: the beginning of the text.
    """
    asked = pieces(words(normalise(q)))
    parts = list(passages(text[:SEEN], min(piece, limit)))
    plain = [normalise(part) for part in parts]
    found = [[holds(part, word) for word in asked] for part in plain]
    weights = [math.log(1 + len(parts) / (1 + sum(row[k] > 0 for row in found))) for k in range(len(asked))]
    score = [sum(weight * value for weight, value in zip(weights, row, strict=True)) for row in found]
    chosen, length = [], 0
    for number in sorted(range(len(parts)), key=lambda k: (-score[k], k)):
        if length + len(parts[number]) > limit:
            break
        chosen.append(parts[number])
        length += len(parts[number]) + 2
    return "\n\n".join(chosen)
