"""Reading and repeating names: text-only pre-training samples about things that do not exist.

What a tiny model must be able to do before it can be taught to search: find the name in a request, find what a page
says that another name means, among pages about other things, and write it down letter by letter. Names are invented
anew for every sample, so there is nothing to memorise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from data.openmoji.categories import CATEGORIES
from data.openmoji.entities import Entity, coin_chinese, coin_english
from data.openmoji.pictures import COLOURS
from data.openmoji.scenes import Scene
from data.openmoji.teacher import THOUGHTS
from data.openmoji.words import document, recaption, request

LEADS = {
    "en": ("{name}", "It is {name}.", "The name is {name}.", "{name}: look it up.", ""),
    "zh": ("{name}", "它是{name}。", "名字是{name}。", "{name}：查一下。", ""),
}
QUESTIONS = {
    "en": ("{name}?", "What is {name}?", "Another name for {name}?", "Look up {name}."),
    "zh": ("{name}？", "{name}是什么？", "{name}又叫什么？", "查找{name}。"),
}
REPEAT = {"en": "Repeat: {names}", "zh": "重复：{names}"}
_LETTERS = "bcdfghjklmnpqrstvwxz"
_VOWELS = "aeiouy"


def _syllable(rng: np.random.Generator) -> str:
    first = _LETTERS[rng.integers(20)] if rng.random() < 0.85 else ""
    last = _LETTERS[rng.integers(20)] if rng.random() < 0.4 else ""
    second = _LETTERS[rng.integers(20)] if rng.random() < 0.15 else ""
    return first + second + _VOWELS[rng.integers(6)] + last


def invent(language: str, rng: np.random.Generator) -> str:
    """A name that nothing has: one to four words, or one to six characters, half of them rare ones.

    One in eight says a character, a syllable or a word twice, as real names do.
    """
    twice = rng.random() < 0.125
    if language == "zh":
        if rng.random() < 0.4:
            name = coin_chinese(rng)
        else:
            size = int(rng.integers(1, 7))
            name = "".join(chr(int(c)) for c in rng.integers(0x4E00, 0x9FA0, size=size))
        at = int(rng.integers(len(name)))
        return name[:at] + name[at] + name[at:] if twice else name
    if rng.random() < 0.3:
        return coin_english(rng)
    words = []
    for _ in range(1 + int(rng.choice(4, p=(0.45, 0.35, 0.15, 0.05)))):
        syllables = [_syllable(rng) for _ in range(int(rng.integers(1, 4)))]
        if twice and rng.random() < 0.5:
            syllables.append(syllables[-1])
        word = "".join(syllables)
        words.append(word.capitalize() if rng.random() < 0.25 else word)
    return " ".join([words[0], *words] if twice and len(words) < 3 else words)


class Names:
    """Names to copy: mostly invented, some of training entities, never one of a held-out entity."""

    def __init__(self, train: Sequence[Entity], held_out: Sequence[Entity]) -> None:
        self.train = list(train)
        self._never = {text.lower() for e in held_out for text in (*e.name.values(), *e.alias.values())}

    def pick(self, language: str, rng: np.random.Generator, known: float = 0.3) -> str:
        """One name; with chance `known` the name or alias of a training entity, else as often mixed as invented."""
        while True:
            if rng.random() < known:
                entity = self.train[int(rng.integers(len(self.train)))]
                name = (entity.name if rng.random() < 0.5 else entity.alias)[language]
            else:
                name = self._mixed(language, rng) if rng.random() < 0.5 else invent(language, rng)
            if not self.holds_held_out(name):
                return name

    def _mixed(self, language: str, rng: np.random.Generator) -> str:
        """Words, or characters, of several training names in one: real ones in an order that nothing has."""
        parts: list[str] = []
        for _ in range(1 + int(rng.choice(4, p=(0.15, 0.4, 0.3, 0.15)))):
            name = self.train[int(rng.integers(len(self.train)))].name[language]
            pieces = name.split() if language == "en" else list(name)
            parts.append(pieces[int(rng.integers(len(pieces)))])
            if rng.random() < 0.08:
                parts.append(parts[-1])
        return (" " if language == "en" else "").join(parts)

    def holds_held_out(self, name: str) -> bool:
        """Whether a held-out name is part of `name`, by the rule of `entities.contains_name`."""
        parts = list(name) if "\u4e00" <= name[0] <= "\u9fff" else re.findall(r"[a-z']+|[^a-z']", name.lower())
        for start in range(len(parts)):
            for stop in range(start + 1, len(parts) + 1):
                part = "".join(parts[start:stop])
                if part in self._never or part.removesuffix("s") in self._never:
                    return True
        return False

    def page(self, language: str, rng: np.random.Generator) -> tuple[str, str, str, str]:
        """A page about something invented: (alias, name, title, text)."""
        base = self.train[int(rng.integers(len(self.train)))]
        alias, name = self.pick(language, rng, known=0.0), self.pick(language, rng)
        colours = tuple(list(COLOURS)[int(k)] for k in rng.choice(len(COLOURS), 2, replace=False))
        entity = replace(
            base, name={language: name}, alias={language: alias}, colours=colours,
            category=list(CATEGORIES)[int(rng.integers(len(CATEGORIES)))],
        )  # fmt: skip
        title, text = document(entity, language, template=int(rng.integers(3)))
        return alias, name, title, text


def _query(name: str, language: str, rng: np.random.Generator) -> str:
    value = {"q": name} if rng.random() < 0.5 else {"q": name, "hl": language}
    return json.dumps(value, ensure_ascii=False)


def _pick(options: Sequence[str], rng: np.random.Generator) -> str:
    return options[int(rng.integers(len(options)))]


def _answer(name: str, language: str, turn: str, rng: np.random.Generator) -> str:
    """A query, most often after a sentence about the name; some of those are what the teacher says in that turn."""
    lead = _pick((*LEADS[language], *THOUGHTS[language][turn]), rng).format(name=name)
    return f"{lead}\n{_query(name, language, rng)}" if lead else _query(name, language, rng)


def from_request(names: Names, language: str, rng: np.random.Generator) -> tuple[str, str]:
    """A request -> the query for what it names."""
    name = names.pick(language, rng)
    return request(Scene.sample(rng), name, language, rng), _answer(name, language, "text", rng)


def from_pages(names: Names, language: str, rng: np.random.Generator) -> tuple[str, str]:
    """Pages, one to three, and a question about one of them -> the query for the name it gives."""
    pages = [names.page(language, rng) for _ in range(int(rng.integers(1, 4)))]
    alias, name, _, _ = pages[int(rng.integers(len(pages)))]
    listed = "\n".join(f"[{k}] {title}\n{text}" for k, (_, _, title, text) in enumerate(pages, 1))
    question = _pick(QUESTIONS[language], rng).format(name=alias)
    asked = f"{question}\n\n{listed}" if rng.random() < 0.5 else f"{listed}\n\n{question}"
    return asked, _answer(name, language, "image", rng)


def repeated(names: Names, language: str, rng: np.random.Generator) -> tuple[str, str]:
    """A list of names -> the same list."""
    chosen = [names.pick(language, rng) for _ in range(int(rng.integers(1, 4)))]
    return REPEAT[language].format(names=", ".join(chosen)), json.dumps(chosen, ensure_ascii=False)


def echoed(names: Names, language: str, rng: np.random.Generator) -> tuple[str, str]:
    """A list of one to eight names, short ones most often -> itself. Every token is to be copied, which is where
    copying is learned: over a few tokens first, then over many."""
    size = round(8 ** rng.random())
    text = ", ".join(names.pick(language, rng) for _ in range(size))
    return text, text


def rewritten(names: Names, language: str, rng: np.random.Generator) -> tuple[str, str]:
    """A request -> the scene that it describes, in the words of a recaption."""
    name, scene = names.pick(language, rng), Scene.sample(rng)
    return request(scene, name, language, rng), recaption(scene, name, 0, language)


TASKS: dict[str, Callable[[Names, str, np.random.Generator], tuple[str, str]]] = {
    "request": from_request, "pages": from_pages, "repeat": repeated, "rewrite": rewritten, "echo": echoed,
}  # fmt: skip
SHARES = {"request": 0.25, "pages": 0.35, "repeat": 0.05, "rewrite": 0.25, "echo": 0.1}


def sample(task: str, names: Names, rng: np.random.Generator) -> tuple[str, str]:
    """One (text given, text to write) of a task, in either language."""
    return TASKS[task](names, "en" if rng.random() < 0.5 else "zh", rng)


def copying_text(language: str) -> str:
    """All words that these samples use whatever name they are about."""
    sentences = [*LEADS[language], *QUESTIONS[language], REPEAT[language]]
    return "\n".join(each.replace("{names}", "|").replace("{name}", "|") for each in sentences)
