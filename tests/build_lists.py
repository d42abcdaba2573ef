"""Lists of entities, services that answer from functions, and small pictures: for tests of the stages of a build."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from data.build.contracts import Entity
from data.build.spec import Spec
from unify_agent.search.base import TextHit

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
    """A spec whose services are never opened."""
    services = {"teacher": {"url": "http://127.0.0.1:9", "model": "m"}, "image": {"own": "x"}}
    services["search"] = {"spec": "none"}
    given = {"file": tmp_path / "spec.yaml", "entities": tmp_path / entities, "out": tmp_path / "out"}
    return Spec.model_validate(given | {"services": services} | parts)


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
