"""What names and ids are: how two names are the same, how an id becomes a file's name, which language a text is in.

Names are compared whole, never by prefix or part.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Container

from data.build.contracts import Entity

LONGEST_ID = 80
"""Bytes of a file name's part that is an id; longer ones are cut, and told apart by their digest."""
_ODD = re.compile(r"[^\w-]+")
_PLAIN = re.compile(r"[^\W_][\w-]*")
_RESERVED = re.compile(r"-(?:p\d+|[0-9a-f]{10})\Z")
_SCRIPTS = {
    "Han": r"\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af",
    "Kana": r"\u3041-\u309f\u30a0-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "Hangul": r"\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
    "Latin": r"A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff\uff21-\uff3a\uff41-\uff5a",
    "Cyrillic": r"\u0400-\u052f",
    "Greek": r"\u0370-\u03ff\u1f00-\u1fff",
    "Arabic": r"\u0600-\u06ff\u0750-\u077f",
    "Hebrew": r"\u0590-\u05ff",
    "Devanagari": r"\u0900-\u097f",
    "Thai": r"\u0e00-\u0e7f",
}
_LETTERS = {name: re.compile(f"[{ranges}]") for name, ranges in _SCRIPTS.items()}
_OF_LANGUAGE = {
    "zh": ("Han",), "ja": ("Kana", "Han"), "ko": ("Hangul", "Han"), "ru": ("Cyrillic",), "uk": ("Cyrillic",),
    "bg": ("Cyrillic",), "sr": ("Cyrillic", "Latin"), "el": ("Greek",), "ar": ("Arabic",), "fa": ("Arabic",),
    "ur": ("Arabic",), "he": ("Hebrew",), "hi": ("Devanagari",), "mr": ("Devanagari",), "ne": ("Devanagari",),
    "th": ("Thai",),
}  # fmt: skip
_GUESSES = {
    "Kana": "ja", "Hangul": "ko", "Han": "zh", "Cyrillic": "ru", "Greek": "el", "Arabic": "ar", "Hebrew": "he",
    "Devanagari": "hi", "Thai": "th",
}  # fmt: skip
_CHINESE = frozenset({
    "china", "cn", "chn", "prc", "people's republic of china", "mainland china", "hong kong", "hk", "hong kong sar",
    "macau", "macao", "mo", "taiwan", "tw", "中国", "中國", "中华人民共和国", "中国大陆", "大陆", "中国内地",
    "香港", "中国香港", "澳门", "澳門", "中国澳门", "台湾", "臺灣", "台灣", "中国台湾",
})  # fmt: skip
"""Countries and regions whose entities are asked for in Chinese."""
_NEVER_LATIN = frozenset({"zh", "ja", "ko"})


def normalised(name: str) -> str:
    """What two names share when they are the same: NFKC, case folded, one space between words, nothing invisible."""
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return " ".join("".join(c for c in text if unicodedata.category(c) != "Cf").split())


def safe_id(given: str, taken: Container[str] = ()) -> str:
    """A name for files that only this id has: letters, digits, `_` and `-`.

    An id that can be one stays as it is. Any other (slashes, dots, spaces, more than 80 bytes, another spelling of the
    same characters) gets what can stay of it and ten hex digits of its hash. So does one whose lower-case form is in
    `taken`, and one that ends as ours do: in `-p` and a number, or in ten hex digits.
    """
    plain = bool(_PLAIN.fullmatch(given)) and len(given.encode()) <= LONGEST_ID
    if plain and unicodedata.normalize("NFKC", given) == given and not _RESERVED.search(given):
        if given.casefold() not in taken:
            return given
    head = _ODD.sub("-", unicodedata.normalize("NFKC", given)).strip("-_")
    while len(head.encode()) > LONGEST_ID - 11:
        head = head[:-1]
    return f"{head.rstrip('-_') or 'id'}-{hashlib.sha256(given.encode()).hexdigest()[:10]}"


def guess_language(text: str) -> str:
    """The language of a name from its script alone: `en` for Latin letters, `zh` for Han without kana or hangul."""
    return next((language for script, language in _GUESSES.items() if _LETTERS[script].search(text)), "en")


def own_language(entity: Entity) -> str:
    """The language that an entity is asked for in: Chinese for a Chinese one (papers/unify_agent.txt, E.4), else
    English, as far as it has a name in it; else the language of its first name."""
    country = normalised(entity.country)
    chinese = any(part.strip() in _CHINESE for part in re.split(r"[,，/、;·()（）]", country))
    for language in ("zh", "en") if chinese else ("en",):
        if language in entity.names:
            return language
    return next(iter(entity.names))


def in_language(text: str, language: str) -> bool:
    """Whether a text is written in one language, as far as its script tells.

    Of its letters at least nine of ten are of the language's scripts; in Chinese, Japanese and Korean no word of two
    Latin letters or more stands beside them, in other languages no Han, kana or hangul.
    """
    language = language.partition("-")[0]
    wanted = _OF_LANGUAGE.get(language, ("Latin",))
    counts = {script: len(letters.findall(text)) for script, letters in _LETTERS.items()}
    total = sum(c.isalpha() for c in text)
    if not total or sum(counts[script] for script in wanted) < 0.9 * total:
        return False
    if language in _NEVER_LATIN:
        kana = counts["Kana"] if language == "zh" else 0
        return not re.search(f"[{_SCRIPTS['Latin']}]{{2}}", text) and not kana
    return not any(counts[script] for script in ("Han", "Kana", "Hangul") if script not in wanted)
