"""The scripted teacher: it knows what every request means and drives the real loop over the real index.

It shows the four things that the model has to learn: to search only for what it does not know by heart, to search
pictures under the name that the text search gave, to search again when no picture is usable, and to write down what to
keep of the references and the scene that was asked for. What it says is made of few, short templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from data.openmoji.entities import Entity, keyed_random
from data.openmoji.scenes import Scene
from data.openmoji.words import recaption
from unify_agent.agent.episode import Episode
from unify_agent.agent.toolcalls import ToolCall, render_call
from unify_agent.agent.wording import reference_names

Kind = Literal["direct", "search", "closed_book"]
KINDS: tuple[Kind, ...] = ("direct", "search", "closed_book")
"""direct: a common thing by its name. search: a thing by its alias. closed_book: the same without any tool."""

THOUGHTS: dict[str, dict[str, tuple[str, ...]]] = {
    "en": {
        "direct": ("I know {name} well.", "{name}: I can draw this.", "Nothing is missing for {name}."),
        "closed_book": ("I cannot look up {name}.", "{name}: no search here."),
        "text": ("I do not know {name}.", "What is {name}?", "{name} is new to me."),
        "image": ("It is the {name}.", "So it means {name}.", "I need to see the {name}."),
        "again": ("None of them is good.", "I try a specimen."),
        "final": ("Keep the {name} of {names}.", "I use the {name} from {names}."),
        "none": ("There is no image of the {name}.", "I draw the {name} from words."),
    },
    "zh": {
        "direct": ("我了解{name}。", "{name}：可以直接画。", "画{name}不缺什么。"),
        "closed_book": ("无法查找{name}。", "{name}：不能搜索。"),
        "text": ("我不知道{name}。", "{name}是什么？", "没见过{name}。"),
        "image": ("它是{name}。", "原来是{name}。", "需要看看{name}。"),
        "again": ("都不能用。", "改搜标本。"),
        "final": ("保留{names}中的{name}。", "采用{names}的{name}。"),
        "none": ("没有{name}的图。", "凭描述画{name}。"),
    },
}
SPECIMEN = {"en": "{name} specimen", "zh": "{name}标本"}
"""The query of a second image search."""


def thought_text(language: str) -> str:
    """All words that the teacher's thoughts and queries use whatever they are about."""
    sentences = [each for group in THOUGHTS[language].values() for each in group]
    return "\n".join(each.replace("{names}", "|").replace("{name}", "|") for each in [*sentences, SPECIMEN[language]])


@dataclass(frozen=True)
class Task:
    """What the teacher knows of a request: the thing, the scene, and which kind of trajectory to show."""

    entity: Entity
    scene: Scene
    language: str
    kind: Kind

    @property
    def asked(self) -> str:
        """The name that the request uses."""
        return self.entity.name[self.language] if self.kind == "direct" else self.entity.alias[self.language]


class Teacher:
    """Says, for each episode, what a good agent would say next. `tasks` by episode id; `seed` varies the wording."""

    def __init__(self, tasks: Mapping[str, Task], seed: int = 0):
        self.tasks, self.seed = tasks, seed

    def say(self, episode: Episode) -> str:
        """The reply to the episode's input. Raises LookupError when the evidence does not say what the teacher says."""
        task, language = self.tasks[episode.id], episode.language
        name = task.entity.name[language]
        if task.kind != "search":
            return self._final(episode, task, task.kind, task.asked)
        if episode.final:
            return self._final(episode, task, "final" if episode.references else "none", name)
        if not episode.turns:
            return self._search(episode, "text", task.asked, ToolCall("text_search", {"q": task.asked, "hl": language}))
        if not any(name.lower() in hit.text.lower() for hit in episode.read):
            raise LookupError(f"{episode.id}: no document says that {task.asked} is {name}")
        if episode.image_searches == 0:
            return self._search(episode, "image", name, ToolCall("search_image", {"q": name, "hl": language}))
        query = SPECIMEN[language].format(name=name)
        return self._search(episode, "again", name, ToolCall("search_image", {"q": query, "hl": language}))

    def _thought(self, episode: Episode, kind: str, name: str) -> str:
        options = THOUGHTS[episode.language][kind]
        rng = keyed_random("thought", str(self.seed), episode.id, str(len(episode.turns)))
        chosen = options[int(rng.integers(len(options)))]
        names = reference_names(len(episode.references), episode.language)
        return f"<think>{chosen.replace('{names}', names).replace('{name}', name)}</think>\n"

    def _search(self, episode: Episode, kind: str, name: str, call: ToolCall) -> str:
        return self._thought(episode, kind, name) + render_call(call)

    def _final(self, episode: Episode, task: Task, kind: str, name: str) -> str:
        text = recaption(task.scene, name, len(episode.references), episode.language)
        return self._thought(episode, kind, name) + f"<recaption>{text}</recaption>"
