"""What the user side says: prompts as data (`prompts/*.yaml`), in English and Chinese.

A file of the same keys can replace ours, for a checkpoint that was trained with other words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from unify_agent.agent.toolcalls import tools_block
from unify_agent.errors import UserError, nearest
from unify_agent.interleave.grammar import spell_tags

FOLDER = Path(__file__).parent / "prompts"
LANGUAGES = ("en", "zh")
_Kind = TypeVar("_Kind", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Verdicts(_Strict):
    """The words for a judge's reasons."""

    good: str
    spare: str
    blurred: str
    tiny: str
    watermark: str
    text: str
    other: str
    duplicate: str
    unreadable: str


class Phrases(_Strict):
    """One language's words; see prompts/full.yaml for what each is.

    other_language: sends a recaption back that is in another language; without it none is.
    """

    header: str
    error_header: str
    first: str
    first_without_tools: str
    next: str
    again: str
    final: str
    final_none: str
    no_results: str
    no_pictures: str
    tool_error: str
    no_call: str
    other_language: str = ""
    verdicts: Verdicts


class Limits(_Strict):
    """How much an observation may hold, in entries and characters."""

    text_results: int
    text_chars: int
    title_chars: int
    images: int
    observation_chars: int


class Defaults(_Strict):
    """What stands for arguments that a call leaves out."""

    top_k: int
    num: int


class _File(_Strict):
    limits: Limits
    defaults: Defaults
    group_titles: bool
    en: Phrases
    zh: Phrases


@dataclass(frozen=True)
class Prompts:
    """The words of one prompt file; `name` is what exports and records store."""

    name: str
    file: _File

    @property
    def limits(self) -> Limits:
        return self.file.limits

    @property
    def defaults(self) -> Defaults:
        return self.file.defaults

    @property
    def group_titles(self) -> bool:
        """Observations of image searches name a title once and list its verdicts."""
        return self.file.group_titles

    def phrases(self, language: str) -> Phrases:
        """The words in `language`; English for a language that the file lacks."""
        return self.file.zh if language == "zh" else self.file.en

    def first(self, request: str, language: str, tools: bool = True) -> str:
        """The input of turn 0. Without `tools` the model is told that there is nothing to search with.

        Tags that a request holds are spelled out: it says what to draw, and nothing else.
        """
        words = self.phrases(language)
        template = words.first if tools else words.first_without_tools
        tools_text = tools_block() if "{tools}" in template else ""
        return template.replace("{tools}", tools_text).replace("{request}", spell_tags(request))

    def final(self, count: int, language: str) -> str:
        """The instruction of the last turn, with `count` references."""
        words = self.phrases(language)
        return words.final.replace("{names}", reference_names(count, language)) if count else words.final_none


class Questions(_Strict):
    """One language's words for judging pictures; see prompts/judging.yaml."""

    rubric: str
    ask: str
    look: str
    identity: str
    salience: str
    clarity: str
    cleanliness: str


class Judging(_Strict):
    """How pictures are judged, in both languages."""

    en: Questions
    zh: Questions

    def phrases(self, text: str) -> Questions:
        """The words in the language of what is looked for."""
        return self.zh if language_of(text) == "zh" else self.en


def load_judging(file: Path | str = FOLDER / "judging.yaml") -> Judging:
    """The words for judging, ours or from a file of the same keys. Raises UserError that names file and key."""
    return load_words(Path(file), Judging)


def language_of(text: str) -> str:
    """`zh` for a text with Chinese characters (and no Japanese or Korean ones), else `en`."""
    if re.search(r"[\u3040-\u30ff\uac00-\ud7af]", text):
        return "en"
    return "zh" if re.search(r"[\u3400-\u9fff\uf900-\ufaff]", text) else "en"


def reference_names(count: int, language: str) -> str:
    """How the references are called: `image_1 and image_2`, in Chinese `image_1和image_2`."""
    return ("和" if language == "zh" else " and ").join(f"image_{k}" for k in range(1, count + 1))


def load_prompts(name: str | Path) -> Prompts:
    """Prompts by name (`full`, `compact`) or from a YAML file. Raises UserError that names file and key."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = FOLDER / f"{name}.yaml"
        known: Sequence[str] = sorted(each.stem for each in FOLDER.glob("*.yaml") if each.stem != "judging")
        if name not in known:
            raise UserError(f"prompts '{name}' are not known{nearest(str(name), known)}")
    return Prompts(path.stem if path.parent == FOLDER else str(name), load_words(path, _File))


def load_words(path: Path, kind: type[_Kind]) -> _Kind:
    """A YAML file of words as `kind`. Raises UserError that names file and key."""
    try:
        return kind.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UserError(f"{path}: no such prompt file") from None
    except OSError as fault:
        raise UserError(f"{path}: cannot be read ({fault.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as fault:
        raise UserError(f"{path}: not YAML ({fault})") from None
    except ValidationError as fault:
        first = fault.errors()[0]
        raise UserError(f"{path}: {'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from None
