"""Every sentence of the embedded world, in English and Chinese, and the way back from a sentence to what it says.

A request is read by the very templates that wrote it. A recaption is read leniently, phrase by phrase, because
a model writes it: what can be found counts, and `missing` lists the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from data.openmoji.categories import CATEGORIES
from data.openmoji.entities import COMMON, Entity
from data.openmoji.pictures import COLOURS
from data.openmoji.scenes import BACKGROUNDS, CORNERS, PLACES, ROTATIONS, SIZES, Scene

_ZH_COLOURS = dict(
    zip(COLOURS, "黑色 白色 灰色 红色 橙色 黄色 绿色 蓝色 紫色 粉色 棕色 米色".split(), strict=True)
)
WORDS: dict[str, dict[str, dict[str, str]]] = {
    "en": {
        "background": {b: b for b in BACKGROUNDS},
        "place": dict(
            zip(PLACES, ("in the centre", "on the left", "on the right", "at the top", "at the bottom"), strict=True)
        ),
        "size": {s: s for s in SIZES},
        "rotation": {r: r for r in ROTATIONS},
        "corner": {c: c for c in CORNERS},
        "companion": {code: en for code, (en, _) in COMMON.items()},
    },
    "zh": {
        "background": {b: _ZH_COLOURS[b] for b in BACKGROUNDS},
        "place": dict(zip(PLACES, "在中间 在左边 在右边 在上方 在下方".split(), strict=True)),
        "size": dict(zip(SIZES, "小号 大号".split(), strict=True)),
        "rotation": dict(zip(ROTATIONS, "端正 向左倾斜 向右倾斜".split(), strict=True)),
        "corner": dict(zip(CORNERS, "左上角 右上角 左下角 右下角".split(), strict=True)),
        "companion": {code: zh for code, (_, zh) in COMMON.items()},
    },
}
"""language -> attribute -> value of `Scene` -> its word."""

REQUESTS = {
    "en": (
        "Draw {name} on a {background} background, {size}, {place}{rotation}{companion}.",
        "Please paint a {size} {name} {place} of a {background} picture{rotation}{companion}.",
        "I want a picture of {name}: {size}, {place}{rotation}, {background} background{companion}.",
        "Show me {name} {place}, {size}{rotation}, on plain {background}{companion}.",
        "A {background} picture with {name} {place}, {size}{rotation}{companion}, please.",
    ),
    "zh": (
        "画{name}，{background}背景，{size}，{place}{rotation}{companion}。",
        "请在{background}背景上画{name}，{size}，{place}{rotation}{companion}。",
        "我想要一张{name}的图，{background}背景，{size}，{place}{rotation}{companion}。",
        "给我画一个{size}的{name}，{place}，{background}背景{rotation}{companion}。",
    ),
}
DOCUMENTS = {
    "en": (
        "{alias} is another name for the {name}. It is a {category} in {colours}.",
        "{alias} is what some people call the {name}, a {category} that is mainly {colours}.",
        "The {name} is also called {alias}. Its main colours are {colours}; it is a {category}.",
    ),
    "zh": (
        "{alias}就是{name}，属于{category}，主要颜色是{colours}。",
        "{alias}是{name}的别名，颜色以{colours}为主，属于{category}。",
        "{name}又叫{alias}，是{colours}的{category}。",
    ),
}
IDENTITY = {
    "en": "The {name} from {references} keeps its shape, colours and details.",
    "zh": "{references}中的{name}保持形状、颜色和细节。",
}
COMPOSITION = {
    "en": "{subject} is {size}, {rotation}, {place}, on a plain {background} background{companion}.",
    "zh": "{subject}是{size}，{rotation}，{place}，纯{background}背景{companion}。",
}
_JOIN = {"en": " and ", "zh": "和"}
_IT = {"en": "It", "zh": "它"}
CAPTION = COMPOSITION
"""A caption is the scene part of a recaption, said of the thing that is seen."""


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _said(scene: Scene, language: str) -> dict[str, str]:
    words = WORDS[language]
    return {key: words[key][getattr(scene, key)] for key in ("background", "place", "size", "rotation")}


def _companion(scene: Scene, language: str, lead: str) -> str:
    if scene.companion is None or scene.corner is None:
        return ""
    thing = WORDS[language]["companion"][scene.companion]
    corner = WORDS[language]["corner"][scene.corner]
    return f"{lead}{_article(thing)} in the {corner} corner" if language == "en" else f"{lead}{corner}有{thing}"


# ---------------------------------------------------------------- requests


def request(scene: Scene, alias_or_name: str, language: str, rng: np.random.Generator) -> str:
    """What a user asks for. An upright drawing is not mentioned."""
    template = REQUESTS[language][int(rng.integers(len(REQUESTS[language])))]
    said = _said(scene, language)
    comma = ", " if language == "en" else "，"
    said["rotation"] = "" if scene.rotation == "upright" else comma + said["rotation"]
    companion = _companion(scene, language, ", with " if language == "en" else "，")
    return template.format(name=alias_or_name, companion=companion, **said)


@dataclass(frozen=True)
class Request:
    """What a request asks for."""

    name: str
    scene: Scene
    language: str


def _choices(language: str, key: str) -> str:
    words = sorted(WORDS[language][key].values(), key=len, reverse=True)
    return f"(?P<{key}>{'|'.join(map(re.escape, words))})"


@lru_cache
def _request_patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    result = []
    for language, templates in REQUESTS.items():
        parts = {key: _choices(language, key) for key in ("background", "place", "size")}
        rotation, thing, corner = (_choices(language, key) for key in ("rotation", "companion", "corner"))
        if language == "en":
            parts |= {"rotation": f"(?:, {rotation})?", "companion": f"(?:, with an? {thing} in the {corner} corner)?"}
            parts["name"] = "(?P<name>[^,.:]+?)"
        else:
            parts |= {"rotation": f"(?:，{rotation})?", "companion": f"(?:，{corner}有{thing})?"}
            parts["name"] = "(?P<name>[^，。]+?)"
        for template in templates:
            result.append((language, _pattern(template, parts)))
    return tuple(result)


def _pattern(template: str, parts: Mapping[str, str]) -> re.Pattern[str]:
    """What reads a template: every {key} as the expression `parts[key]`."""
    return re.compile(re.sub(r"\\\{(\w+)\\\}", lambda found: parts[found[1]], re.escape(template)))


def _value(language: str, key: str, word: str) -> str:
    """The value whose word, found by `_choices`, this is."""
    return next(value for value, said in WORDS[language][key].items() if said == word)


def parse_request(text: str) -> Request | None:
    """The request that `request` wrote, or None for any other text."""
    for language, pattern in _request_patterns():
        found = pattern.fullmatch(text.strip())
        if found:
            said = {key: _value(language, key, found[key]) for key in WORDS[language] if found[key] is not None}
            return Request(found["name"], Scene(**said), language)
    return None


# ---------------------------------------------------------------- recaptions


def recaption(
    scene: Scene, name: str, references: int, language: str, identity: bool = True, composition: bool = True
) -> str:
    """The text that a picture is drawn from: what must stay as in the references, then the scene.

    Without references, or without `identity`, the scene part names the thing itself.
    """
    parts = []
    named = identity and references > 0
    if named:
        listed = _JOIN[language].join(f"image_{k}" for k in range(1, references + 1))
        parts.append(IDENTITY[language].format(name=name, references=listed))
    if composition:
        subject = _IT[language] if named else f"The {name}" if language == "en" else name
        companion = _companion(scene, language, "; " if language == "en" else "；")
        said = _said(scene, language)
        parts.append(COMPOSITION[language].format(subject=subject, companion=companion, **said))
    if not parts:
        parts.append(f"The {name}." if language == "en" else f"{name}。")
    return (" " if language == "en" else "").join(parts)


def caption(scene: Scene, name: str, language: str) -> str:
    """A description of a picture."""
    return recaption(scene, name, 0, language)


@dataclass(frozen=True)
class Recaption:
    """What a recaption says; None where it says nothing, or nothing that can be read."""

    references: tuple[int, ...]
    name: str | None
    background: str | None
    place: str | None
    size: str | None
    rotation: str | None
    companion: str | None
    corner: str | None
    language: str

    @property
    def missing(self) -> tuple[str, ...]:
        """Attributes that every complete recaption states and this one does not."""
        return tuple(k for k in ("name", "background", "place", "size", "rotation") if getattr(self, k) is None)

    @property
    def scene(self) -> Scene | None:
        """The scene when nothing of it is missing."""
        if set(self.missing) - {"name"}:
            return None
        keys = ("background", "place", "size", "rotation", "companion", "corner")
        return Scene(**{key: getattr(self, key) for key in keys})

    def complete(self, references: int) -> bool:
        """Whether nothing is missing and exactly the references 1..`references` are named."""
        return not self.missing and self.references == tuple(range(1, references + 1))


_NAMED = {
    "en": (re.compile(r"[Tt]he ([^.,;:]+?) from image_\d"), re.compile(r"^The ([^.,;:]+?) is\b")),
    "zh": (re.compile(r"image_\d中的([^，。；]+?)保持"), re.compile(r"^([^，。；]+?)是")),
}


def parse_recaption(text: str) -> Recaption:
    """What a recaption names, in either language. Never fails; see `Recaption.missing`."""
    text = text.strip()
    language = "zh" if re.search(r"[\u4e00-\u9fff]", text) else "en"
    references = tuple(sorted({int(number) for number in re.findall(r"image_(\d{1,2})", text)}))
    name = next((found[1] for pattern in _NAMED[language] if (found := pattern.search(text))), None)
    if name in ("它", "It"):
        name = None
    text = text.replace(name, "|", 1) if name else text  # a name may hold such words itself
    around = {"background": ("", " background" if language == "en" else "背景")}
    said: dict[str, str | None] = {}
    for key in ("background", "place", "size", "rotation"):
        before, after = around.get(key, ("", ""))
        border = r"\b" if language == "en" else ""
        found = re.search(border + before + _choices(language, key) + after + border, text)
        said[key] = _value(language, key, found[key]) if found else None
    thing, corner = _choices(language, "companion"), _choices(language, "corner")
    found = re.search(f"{thing} in the {corner} corner" if language == "en" else f"{corner}有{thing}", text)
    for key in ("companion", "corner"):
        said[key] = _value(language, key, found[key]) if found else None
    return Recaption(references, name, language=language, **said)


# ---------------------------------------------------------------- documents


def colour_words(colours: tuple[str, ...], language: str) -> str:
    """`("green", "brown")` -> `green and brown` or 绿色和棕色."""
    words = colours if language == "en" else [_ZH_COLOURS[c] for c in colours]
    return _JOIN[language].join(words)


def document(entity: Entity, language: str, template: int | None = None) -> tuple[str, str]:
    """Title and text of the page that says what an alias means."""
    options = DOCUMENTS[language]
    number = int(entity.id.split("-")[0], 16) if template is None else template
    category = CATEGORIES[entity.category][0 if language == "en" else 1]
    text = options[number % len(options)].format(
        alias=entity.alias[language], name=entity.name[language],
        category=category, colours=colour_words(entity.colours, language),
    )  # fmt: skip
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text) if language == "en" else text
    return entity.alias[language], text[0].upper() + text[1:]


def fixed_text(language: str) -> str:
    """All words that sentences use whatever they are about, for the check that no held-out name is among them."""
    sentences = [
        *REQUESTS[language], *DOCUMENTS[language], IDENTITY[language], COMPOSITION[language],
        *(pair[0 if language == "en" else 1] for pair in CATEGORIES.values()),
        *(_ZH_COLOURS.values() if language == "zh" else COLOURS),
        *(word for words in WORDS[language].values() for word in words.values()),
    ]  # fmt: skip
    return "\n".join(re.sub(r"\{\w+\}", "|", sentence) for sentence in sentences)
