"""Stage 0, second half: what an entity can be recognised by, from what a search finds (papers/unify_agent.txt, 4.1.1).

Left out are entities that are broken (nothing is found that speaks of them, the name means several things, they have no
look of their own) and those that are too common: where the model knew their look before it read anything, and what it
read says that they are known all over the world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from data.build.asking import asking
from data.build.contracts import Dropped, Entity
from data.build.filling import FOLDER, fill, told
from data.build.names import normalised, own_language
from data.build.services import Services
from data.build.spec import Spec
from unify_agent.agent.evidence import one_line
from unify_agent.agent.wording import load_words
from unify_agent.judging import system, user
from unify_agent.judging.structured import Verdict
from unify_agent.search.base import TextHit

MOST_TOKENS = 1024


class Metadata(Verdict):
    """What the model is asked for; see words/metadata.yaml."""

    about: list[int]
    ambiguous: bool
    visual: bool
    own_knowledge: int = Field(ge=0, le=10)
    renown: int = Field(ge=0, le=10)
    attributes: list[str]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Phrases(_Strict):
    rubric: str
    ask: str


class _Limits(_Strict):
    common: int = Field(ge=0, le=10)
    attributes: int = Field(ge=0)
    most: int = Field(ge=1)
    chars: int = Field(ge=1)
    title_chars: int = Field(ge=1)
    text_chars: int = Field(ge=1)


class Words(_Strict):
    """The words of a file, ours or a user's."""

    limits: _Limits
    en: _Phrases
    zh: _Phrases


@lru_cache(maxsize=8)
def words_of(path: Path | None) -> Words:
    """The words in a file, ours for None. Raises UserError that names file and key."""
    return load_words(path or FOLDER / "metadata.yaml", Words)


def describe(entity: Entity, spec: Spec, services: Services) -> Entity:
    """The entity with its attributes. Raises Dropped for one that is broken or too common, or that a model refuses."""
    words = words_of(spec.metadata.words)
    language = own_language(entity)
    hits = _search(entity, language, spec.metadata.results, services)
    if not hits:
        raise Dropped("entities", "no evidence", f"a search for {entity.name(language)} finds nothing")
    found = _ask(entity, hits, words, language, spec, services)
    return _kept(entity, found, len(hits), words.limits, spec.metadata.keep_common)


def _search(entity: Entity, language: str, results: int, services: Services) -> list[TextHit]:
    """Results for the name with the remark, else for each of the names alone."""
    name = entity.name(language)
    queries = [(f"{name} {one_line(entity.remark, 80)}".strip(), language), (name, language)]
    queries += [(other, code) for code, other in entity.names.items() if code != language]
    for query, code in dict.fromkeys(queries):
        if hits := services.search.text_search(query, hl=code, top_k=results)[:results]:
            return hits
    return []


def _ask(
    entity: Entity, hits: Sequence[TextHit], words: Words, language: str, spec: Spec, services: Services
) -> Metadata:
    limits, phrases = words.limits, words.zh if language == "zh" else words.en
    shown = "\n".join(
        f"[{number}] {one_line(hit.title, limits.title_chars)}: {one_line(hit.text, limits.text_chars)}"
        for number, hit in enumerate(hits, 1)
    )
    asked = fill(phrases.ask, {
        "entity": told(" / ".join(dict.fromkeys((entity.name(language), *entity.names.values())))),
        "category": entity.category, "country": told(entity.country), "remark": told(entity.remark), "results": shown,
    })  # fmt: skip
    with asking("entities", "the metadata model"):
        answer = services.chat("metadata").ask(
            [system(phrases.rubric), user(asked)], schema=Metadata, max_tokens=MOST_TOKENS,
            temperature=spec.chat("metadata").temperature,
        )  # fmt: skip
    assert isinstance(answer.parsed, Metadata), "what was asked for"
    return answer.parsed


def _kept(entity: Entity, found: Metadata, results: int, limits: _Limits, keep_common: bool) -> Entity:
    if not any(1 <= number <= results for number in found.about):
        raise Dropped("entities", "no evidence", f"none of {results} results speaks of it")
    if found.ambiguous:
        raise Dropped("entities", "ambiguous name", "the results show several things of this name")
    by_form = {normalised(text): text for each in found.attributes if (text := one_line(each, limits.chars))}
    if not found.visual or len(by_form) < limits.attributes:
        raise Dropped("entities", "not visual", f"{len(by_form)} traits by which it could be recognised")
    if min(found.own_knowledge, found.renown) >= limits.common and not keep_common:
        raise Dropped("entities", "too common", f"known {found.own_knowledge} of 10, renowned {found.renown} of 10")
    return replace(entity, attributes=tuple(by_form.values())[: limits.most])
