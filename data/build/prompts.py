"""Stage 1: who does what in which scene (papers/unify_agent.txt, 4.1.1 and E.4).

What a prompt shows (its form) and how hard it is come from a plan, not from the model: within a category each stretch
of the list has every form at every difficulty once, in an order of chance. The model writes `{name}` where the name
belongs and code puts it in, so it is there exactly, whoever else has a name that begins like it.

A prompt is taken when code finds nothing wrong with it; else what is wrong is told and it is asked for anew, up to a
bound. A task's id is the entity's and `-p` with the number of the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from data.build.asking import asking
from data.build.contracts import CATEGORIES, Dropped, Entity, Task
from data.build.filling import FOLDER, fill, told
from data.build.names import in_language, normalised, own_language
from data.build.nearness import nearness, shingles
from data.build.services import Services
from data.build.spec import Spec
from data.build.verification import require_language
from unify_agent.agent.wording import load_words
from unify_agent.interleave.grammar import spell_tags
from unify_agent.interleave.randomness import generator
from unify_agent.judging import system, user
from unify_agent.judging.structured import Verdict

PLACE = "{name}"
MOST_TOKENS = 512
_MARKUP = re.compile(r"[<>{}\[\]|*`#\\]|https?:|www\.|image_\d", re.IGNORECASE)
_SMALL_WORDS = frozenset(
    "with from that this they them their have been were very into over under about than then also such some each and "
    "the for her his its has are was who which while where when".split()
)


class Written(Verdict):
    """What the model is asked for."""

    prompt: str


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Groups(_Strict):
    Character: str
    Object: str
    Scene: str


class Forms(_Strict):
    """What a prompt shows."""

    portrait: _Groups
    action: _Groups
    interaction: _Groups
    scenario: _Groups
    change: _Groups
    style: _Groups


class Difficulties(_Strict):
    """How hard it is."""

    direct: str
    composed: str
    demanding: str


class Openings(_Strict):
    """How its sentence is built."""

    name: str
    scene: str
    action: str


class _Phrases(_Strict):
    rubric: str
    ask: str
    none: str
    complaint: str
    difficulties: Difficulties
    openings: Openings
    forms: Forms


class _Length(_Strict):
    shortest: int = Field(ge=0)
    longest: int = Field(ge=1)


class _Limits(_Strict):
    tries: int = Field(ge=1, le=20)
    near: float = Field(gt=0, le=1)
    leak: float = Field(gt=0, le=1)
    en: _Length
    zh: _Length
    other: _Length


class Words(_Strict):
    """The words of a file, ours or a user's."""

    limits: _Limits
    en: _Phrases
    zh: _Phrases

    def length(self, language: str) -> _Length:
        """The bounds of a prompt in characters, its names not counted."""
        return {"en": self.limits.en, "zh": self.limits.zh}.get(language, self.limits.other)


FORMS, DIFFICULTIES, OPENINGS = (tuple(each.model_fields) for each in (Forms, Difficulties, Openings))
KINDS = tuple((form, difficulty) for form in FORMS for difficulty in DIFFICULTIES)


@dataclass(frozen=True)
class Wish:
    """What one prompt is to be: the plan's part of it."""

    id: str
    language: str
    form: str
    difficulty: str
    opening: str


@lru_cache(maxsize=8)
def words_of(path: Path | None) -> Words:
    """The words in a file, ours for None. Raises UserError that names file and key."""
    return load_words(path or FOLDER / "prompts.yaml", Words)


def make_tasks(entity: Entity, spec: Spec, services: Services) -> tuple[list[Task], list[tuple[Task, Dropped]]]:
    """The tasks of an entity (of one that is held out, one), and those of which no prompt could be taken, with why.

    Raises Dropped when that is all of them.
    """
    words = words_of(spec.prompts.words)
    tasks: list[Task] = []
    earlier: list[str] = []
    refused: list[tuple[Task, Dropped]] = []
    for wish in plan(entity, spec):
        task = Task(wish.id, entity, "", wish.language, wish.form, wish.difficulty)
        try:
            if entity.part != "benchmark":
                require_language(wish.language)
            text = _written(entity, wish, earlier, words, spec, services)
        except Dropped as fault:
            refused.append((task, fault))
        else:
            earlier.append(text)
            tasks.append(replace(task, prompt=text.replace(PLACE, entity.name(wish.language))))
    if refused and not tasks:
        raise refused[-1][1]
    return tasks, refused


def plan(entity: Entity, spec: Spec) -> list[Wish]:
    """What the prompts of an entity are to be: a function of the seed and of its place in its category."""
    count = 1 if entity.part == "benchmark" else spec.prompts.per_entity
    languages = [each for each in spec.prompts.languages if each in entity.names] or [own_language(entity)]
    wishes = []
    for number in range(count):
        block, rank = divmod(entity.place * count + number, len(KINDS))
        order = generator(spec.seed, 0, "forms", entity.category, entity.part, block).permutation(len(KINDS))
        form, difficulty = KINDS[int(order[rank])]
        opening = OPENINGS[int(generator(spec.seed, 0, "opening", entity.id, number).integers(len(OPENINGS)))]
        language = languages[number % len(languages)]
        wishes.append(Wish(f"{entity.id}-p{number + 1}", language, form, difficulty, opening))
    return wishes


def _written(entity: Entity, wish: Wish, earlier: Sequence[str], words: Words, spec: Spec, services: Services) -> str:
    phrases = words.zh if wish.language == "zh" else words.en
    asked, complaint = _question(entity, wish, earlier, words, phrases), ""
    for number in range(words.limits.tries):
        said = [asked, fill(phrases.complaint, {"complaint": complaint})] if complaint else [asked]
        with asking("prompts", "the prompt model"):
            answer = services.chat("prompts").ask(
                [system(phrases.rubric), user(*said)], schema=Written, max_tokens=MOST_TOKENS,
                temperature=spec.chat("prompts").temperature, salt=f"{spec.seed} {wish.id} {number}",
            )  # fmt: skip
        assert isinstance(answer.parsed, Written), "what was asked for"
        text = " ".join(answer.parsed.prompt.split())
        complaint = wrong_with(text, entity, wish.language, earlier, words)
        if not complaint:
            return text
    raise Dropped(
        "prompts", "no prompt could be taken", f"{wish.id}: {words.limits.tries} tries, the last: {complaint}"
    )


def _question(entity: Entity, wish: Wish, earlier: Sequence[str], words: Words, phrases: _Phrases) -> str:
    group = next(group for group, members in CATEGORIES.items() if entity.category in members)
    length = words.length(wish.language)
    return fill(phrases.ask, {
        "entity": told(entity.name(wish.language)), "category": entity.category, "country": told(entity.country),
        "remark": told(entity.remark), "language": wish.language,
        "form": getattr(getattr(phrases.forms, wish.form), group),
        "difficulty": getattr(phrases.difficulties, wish.difficulty),
        "opening": getattr(phrases.openings, wish.opening),
        "shortest": length.shortest, "longest": length.longest,
        "looks": "; ".join(map(told, entity.attributes)) or phrases.none,
        "earlier": " / ".join(earlier) or phrases.none,
    })  # fmt: skip


# ---------------------------------------------------------------- what is wrong with a prompt


def wrong_with(text: str, entity: Entity, language: str, earlier: Sequence[str], words: Words) -> str:
    """Why a prompt cannot be taken, in words for whoever wrote it; "" when it can.

    text: one line with `{name}` in it, as are the entity's `earlier` ones.
    """
    limits, length = words.limits, words.length(language)
    times = text.count(PLACE)
    if not 1 <= times <= 2:
        return f"{PLACE} stands in it {times} times instead of once or twice"
    rest = " ".join(text.replace(PLACE, " ").split())
    if not length.shortest <= len(rest) <= length.longest:
        return f"it has {len(rest)} characters without the name, not {length.shortest} to {length.longest}"
    if _MARKUP.search(rest) or spell_tags(rest) != rest or not rest.isprintable():
        return "it holds markup, an address or the name of a reference"
    if not in_language(rest, language):
        return f"it is not wholly in the language {language}"
    if told_trait := next((each for each in entity.attributes if leaks(each, rest, limits.leak)), ""):
        return f"it tells what the entity looks like ({told_trait})"
    if any(nearness(shingles(rest), shingles(each.replace(PLACE, " "))) >= limits.near for each in earlier):
        return "it is nearly the same as an earlier one"
    return ""


def leaks(trait: str, text: str, share: float) -> bool:
    """Whether at least `share` of what a trait says stands in a text: of its words, in Chinese and the like of its
    pairs of characters. Words of one or two letters say nothing; an s at the end does not count."""
    said = _pieces(trait)
    return bool(said) and len(said & _pieces(text)) >= share * len(said)


def _pieces(text: str) -> set[str]:
    plain = normalised(text)
    dense = re.findall(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]+", plain)
    pairs = {run[at : at + 2] for run in dense for at in range(len(run) - 1)}
    words = re.findall(r"[^\W\d_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]{3,}", plain)
    return pairs | {word.removesuffix("s") for word in words if word not in _SMALL_WORDS}
