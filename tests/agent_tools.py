"""What the agent's tests share: a search back end in memory, a judge that reads file names, scripted episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from unify_agent.agent.episode import AgentOptions, Episode
from unify_agent.agent.judge import Judged, Verdict
from unify_agent.agent.loop import Loop
from unify_agent.agent.scripted import ScriptedPolicy
from unify_agent.agent.toolcalls import ToolCall, render_call
from unify_agent.agent.wording import load_prompts
from unify_agent.search.base import ImageHit, TextHit

PAGE = TextHit("Velmora", "Velmora is another name for the kiwi fruit.", "corpus:1")
TEXT_CALL = render_call(ToolCall("text_search", {"q": "Velmora", "hl": "en"}))
IMAGE_CALL = render_call(ToolCall("search_image", {"q": "kiwi fruit", "hl": "en"}))
AGAIN_CALL = render_call(ToolCall("search_image", {"q": "kiwi fruit specimen", "hl": "en"}))
FINAL = "<think>Keep it.</think>\n<recaption>The kiwi fruit from image_1 on red.</recaption>"


class MemorySearch:
    """Answers every query with the same pages, and pictures by query; keeps what it was asked."""

    name = "memory"

    def __init__(self, pictures: dict[str, list[ImageHit]], pages: tuple[TextHit, ...] = (PAGE,)):
        self.pages, self.pictures, self.asked = pages, pictures, []

    def text_search(self, q, hl=None, top_k=5):
        self.asked.append(("text_search", q, hl, top_k))
        return list(self.pages[:top_k])

    def search_image(self, q, location=None, hl=None, num=8):
        self.asked.append(("search_image", q, hl, num))
        return self.pictures.get(q, [])[:num]


class NameJudge:
    """The verdict is the part of the id before the dash; later candidates score less."""

    name = "names"

    def judge(self, subject, candidates):
        reasons = [hit.id.split("-")[0] for hit, _ in candidates]
        return [
            Judged(hit, picture, Verdict(9.0 - k if reason == "good" else 0.0, reason, reason == "good"))
            for k, ((hit, picture), reason) in enumerate(zip(candidates, reasons, strict=True))
        ]


def hits(folder: Path, *names: str) -> list[ImageHit]:
    """Pictures on disk, each of one colour, titled "kiwi fruit"."""
    found = []
    for name in names:
        path = folder / f"{name}.png"
        Image.new("RGB", (40, 48), (len(name) * 9 % 256, sum(map(ord, name)) % 256, 60)).save(path)
        found.append(ImageHit(name, "kiwi fruit", path, 40, 48, f"page of {name}", "CC0"))
    return found


def replies(*texts: str) -> Callable[[Episode], str]:
    """A script: the k-th reply in turn k, the last one from then on."""
    return lambda episode: texts[min(len(episode.turns), len(texts) - 1)]


def run(script, search, *, options: AgentOptions | None = None, language: str = "en", **more) -> Episode:
    """One episode through the loop, drawn as a grey picture."""
    made = Episode("one", "Draw Velmora on red.", language=language, options=options or AgentOptions(), **more)
    loop_of(script, search).run([made])
    return made


def loop_of(script, search, prompts: str = "compact", **more) -> Loop:
    policy = ScriptedPolicy(script, lambda episode: np.full((32, 32, 3), 128, np.uint8))
    return Loop(policy, search, NameJudge(), load_prompts(prompts), **more)
