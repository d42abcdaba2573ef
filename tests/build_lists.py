"""Lists of entities, services that answer from functions, and small pictures: for tests of the stages of a build.

`describe_entity` and `write_prompt` are what a chat server may say for the roles `metadata` and `prompts`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from chat_server import texts
from PIL import Image

from data.build.contracts import Entity
from data.build.journal import JOURNAL, Journal, Outcome
from data.build.spec import Spec
from unify_agent.files import digest
from unify_agent.search.base import TextHit

SENTENCES = {
    "en": (
        "At dawn {name} waits beside the ticket desk of a small railway station, wet from the rain.",
        "Children run after {name} across a market square where the stalls are being taken down.",
        "In a workshop full of clocks, {name} stands on the bench while a lamp swings above it.",
        "Seen from below, {name} passes a row of lit windows as the first snow of the year falls.",
        "A linocut of {name} in a rowing boat, three gulls in front of a low evening sun.",
        "The crew of a ferry carries {name} over the gangway while the harbour lies in fog.",
        "{name} shares a bench with an old fisherman who mends his nets at noon.",
        "On the stage of an empty theatre {name} is rehearsing under one cold spotlight.",
    ),
    "zh": (
        "清晨，{name}在雨后的小车站售票处旁静静等候。",
        "集市正在收摊，孩子们追着{name}跑过广场。",
        "钟表作坊里，{name}立在工作台上，头顶的灯轻轻摇晃。",
        "仰视画面：初雪落下，{name}经过一排亮着灯的窗户。",
        "用木刻版画表现{name}坐在小船上，三只海鸥掠过低垂的夕阳。",
        "浓雾笼罩港口，船员们抬着{name}走过跳板。",
        "正午，{name}与补网的老渔夫同坐一条长凳。",
        "空荡的剧院舞台上，{name}在一束冷光下排练。",
    ),
}  # fmt: skip
"""Prompts of which no two are nearly the same."""
HEADER = ("index", "name_zh", "name_en", "country", "category", "remark")


def picture(path: Path, seed: int, size: int = 64) -> Path:
    """Writes a picture that looks like none of another seed; returns its path."""
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC).save(path)
    return path


def csv_list(path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = HEADER) -> Path:
    """Writes a CSV file; returns its path."""
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def spec(tmp_path: Path, entities: Path | str = "list.csv", **parts: Any) -> Spec:
    """A spec whose services are never opened; it takes entities without seeds."""
    services = {"teacher": {"url": "http://127.0.0.1:9", "model": "m"}, "image": {"own": "x"}}
    services["search"] = {"spec": "none"}
    given = {"file": tmp_path / "spec.yaml", "entities": tmp_path / entities, "out": tmp_path / "out"}
    without = {"verification": {"without_seeds": "references"}}
    return Spec.model_validate(given | {"services": services} | without | parts)


def write_journal(folder: Path, outcomes: Iterable[Outcome]) -> None:
    """The journal of a run folder."""
    with Journal(folder / JOURNAL) as journal:
        for each in outcomes:
            journal.append(each)


def entity(id: str = "owl", category: str = "mascot", **more: Any) -> Entity:
    """An entity with an English name."""
    return Entity(id, more.pop("names", {"en": "Brass Owl"}), category, **more)


class Asked:
    """Services: `hits` are what every text search finds; `answer(messages' text, schema)` gives what a model says."""

    def __init__(self, answer: Any, hits: list[TextHit] | None = None) -> None:
        self.answer, self.hits = answer, hits or []
        self.queries: list[tuple[str, str | None]] = []
        self.questions: list[str] = []
        self.salts: list[str] = []
        self.search = self

    def text_search(self, q: str, hl: str | None = None, top_k: int = 5) -> list[TextHit]:
        self.queries.append((q, hl))
        return self.hits

    def chat(self, role: str) -> Any:
        return SimpleNamespace(ask=self._ask)

    def _ask(self, messages: Any, *, schema: Any, max_tokens: int, temperature: float, salt: str = "") -> Any:
        self.questions.append("\n".join(str(part) for message in messages for part in message.parts))
        self.salts.append(salt)
        return SimpleNamespace(parsed=schema.model_validate(self.answer(self.questions[-1], len(self.questions))))


def describe_entity(body: dict[str, Any]) -> dict[str, Any]:
    """The metadata of anything: rare, and with a look of its own."""
    chinese = "搜索结果" in texts(body)
    traits = ["轮廓圆润", "通体一色"] if chinese else ["a rounded outline", "one colour all over"]
    return {"about": [1], "ambiguous": False, "visual": True, "own_knowledge": 1, "renown": 1, "attributes": traits}


def write_prompt(body: dict[str, Any]) -> dict[str, str]:
    """A prompt that is none of those which the question says were written already."""
    asked = texts(body)
    fresh = [each for each in SENTENCES["zh" if "画面内容" in asked else "en"] if each not in asked]
    return {"prompt": fresh[int(digest(asked)[:8], 16) % len(fresh)]}
