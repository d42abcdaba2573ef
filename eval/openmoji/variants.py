"""What is compared: the agent, the paper's ablations (Table 5), controls, and stages on their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from data.openmoji.entities import Entity
from data.openmoji.words import parse_recaption, recaption
from unify_agent.agent.episode import AgentOptions, Episode
from unify_agent.agent.judge import Judged, Verdict
from unify_agent.errors import UserError, nearest
from unify_agent.search.index import Index

Group = Literal["agent", "ablation", "control", "stage"]


def without_identity(text: str) -> str:
    """A recaption without the part that says what to keep of the references: only the scene is left."""
    said = parse_recaption(text)
    if said.scene is not None and said.name is not None:
        return recaption(said.scene, said.name, len(said.references), said.language, identity=False)
    kept = [each for each in _sentences(text) if not re.search(r"image_\d", each)]
    return "".join(kept).strip() or text


def without_scene(text: str) -> str:
    """A recaption without the part that describes the scene: only what to keep of the references is left."""
    said = parse_recaption(text)
    if said.scene is not None and said.name is not None:
        return recaption(said.scene, said.name, len(said.references), said.language, composition=False)
    kept = [each for each in _sentences(text) if re.search(r"image_\d", each)]
    return "".join(kept).strip() or text


def _sentences(text: str) -> list[str]:
    return re.findall(r"[^.。]+[.。]?\s*", text)


@dataclass(frozen=True)
class Variant:
    """One row of a table. `speaker` says who thinks and searches: the fine-tuned model, nobody, or the teacher.

    base: the model before fine-tuning draws. shuffle: the references are another thing's. paper: the row's
    "Overall" in the paper's Table 5, for comparison of the order.
    """

    name: str
    title: str
    group: Group
    options: AgentOptions = field(default_factory=AgentOptions)
    speaker: Literal["model", "nobody", "teacher"] = "model"
    base: bool = False
    shuffle: bool = False
    paper: float | None = None


VARIANTS: dict[str, Variant] = {
    each.name: each
    for each in (
        Variant("full", "full agent", "agent", paper=73.2),
        Variant("closed_book", "closed book: nothing to search with", "agent", AgentOptions(tools=False)),
        Variant("base", "base model without fine-tuning", "ablation", speaker="nobody", base=True, paper=50.9),
        Variant("no_text_search", "without text search", "ablation", AgentOptions(text_search=False), paper=65.4),
        Variant("no_image_search", "without image search", "ablation", AgentOptions(image_search=False), paper=56.2),
        Variant("no_recaption", "without recaption", "ablation", AgentOptions(recaption=False), paper=62.9),
        Variant("no_identity", "recaption without its identity part", "ablation",
                AgentOptions(edit_recaption=without_identity), paper=67.7),
        Variant("no_scene", "recaption without its scene part", "ablation",
                AgentOptions(edit_recaption=without_scene), paper=68.2),
        Variant("no_vae", "recaption written without VAE tokens", "ablation",
                AgentOptions(hide_while_recaptioning="vae"), paper=71.2),
        Variant("no_vit", "recaption written without ViT tokens", "ablation",
                AgentOptions(hide_while_recaptioning="vit"), paper=61.4),
        Variant("shuffled", "references of another thing", "control", shuffle=True),
        Variant("drawing_alone", "drawing alone: true references, teacher's recaption", "stage", speaker="teacher"),
    )
}  # fmt: skip
ABLATIONS = tuple(name for name, each in VARIANTS.items() if each.group == "ablation")


def select(names: Sequence[str]) -> list[Variant]:
    """Variants by name, in the table's order. Raises UserError for an unknown one."""
    for name in names:
        if name not in VARIANTS:
            raise UserError(f"unknown variant {name!r}{nearest(name, list(VARIANTS))}")
    return [each for name, each in VARIANTS.items() if name in names]


class Shuffle:
    """Replaces an episode's references by the good pictures of another entity: a control, so labels may choose."""

    def __init__(self, entities: Sequence[Entity], index: Index) -> None:
        half = len(entities) // 2 or 1
        self._partner = {e.id: entities[(k + half) % len(entities)].id for k, e in enumerate(entities)}
        self._index = index
        self._pictures: dict[str, list[str]] = {}
        for image_id in index.image_ids():
            label = index.labels(image_id)
            if label.get("kind") == "good":
                self._pictures.setdefault(label["entity"], []).append(image_id)

    def __call__(self, episode: Episode, chosen: list[Judged]) -> list[Judged]:
        """As many references as were chosen, where the partner has as many."""
        entity = episode.id.split("-", 1)[1].rsplit("-", 1)[0]
        result = []
        for image_id in self._pictures.get(self._partner[entity], [])[: len(chosen)]:
            hit = self._index.image(image_id)
            result.append(Judged(hit, hit.open(), Verdict(0.0, "good", True)))
        return result or chosen
