"""Whether a recaption is in the language of its request: the prompts ask for that, and this holds them to it.

Chinese characters are weighed against words of other letters. Foreign names don't count, nor what is to be read in the
picture: references (`image_1`), quoted texts, capitalised words in a Chinese text, and what the request or a title that
was found says itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from unify_agent.search.index import CJK

_QUOTED = re.compile(r'"[^"]*"|“[^”]*”|「[^」]*」|『[^』]*』|《[^》]*》')
_CHINESE = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]+")
_NEITHER = re.compile(r"[\u3040-\u30ff\uac00-\ud7af]")  # kana, hangul
_WORD = re.compile(rf"[^\W\d_{CJK}]+(?:['’-][^\W\d_{CJK}]+)*")
_REFERENCE = re.compile(r"image_\d+")


def in_language(text: str, language: str, names: Iterable[str] = ()) -> bool:
    """Whether at least half of a text is in `language`: `zh`, or `en` and whatever is written with letters.

    `names`: texts whose foreign words are no fault.
    """
    if language != "zh" and _NEITHER.search(text):
        return True
    known = "\n".join(names).casefold()
    text = _REFERENCE.sub(" ", text)
    unquoted = _QUOTED.sub(" ", text)
    if _CHINESE.search(unquoted) or _WORD.search(unquoted):  # else all of it is in quotes, and meant
        text = unquoted
    chinese, words = _CHINESE.findall(text), _WORD.findall(text)
    if language == "zh":
        spoken = set(_WORD.findall(known))
        foreign = sum(not word[0].isupper() and word.casefold() not in spoken for word in words)
        return sum(map(len, chinese)) >= foreign
    return len(words) >= sum(len(run) for run in chinese if run not in known)
