"""What is generated for a benchmark: the agent with its book open or closed, the ablations of the paper's Table 5, and
the training-free injection study of its section 3.2.

    full, closed_book, no_text_search, ...   the agent, as in eval/openmoji/variants.py
    prompt_only                              drawn from the prompt, no agent (with the base model: the baseline)
    with_text                                the prompt with background text appended
    with_references                          the prompt and two true pictures
    with_both                                all of them

Background text is the data set's own (T2I-FactualBench's text knowledge), else what the search index says of the name.
True pictures are the support set where there is one (KiTTEN), else the first two references, which the judge sees too,
as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eval.benchmarks.base import Item
from eval.openmoji.variants import VARIANTS
from unify_agent.agent.episode import AgentOptions, Episode
from unify_agent.agent.judge import Judged, Verdict
from unify_agent.errors import UserError, nearest
from unify_agent.interleave.segments import Unusable
from unify_agent.search.base import ImageHit, SearchBackend

TEXTS = 3
"""Results of a text search whose text is appended."""
REFERENCES = 2
INJECTIONS = {
    "prompt_only": (False, False), "with_text": (True, False), "with_references": (False, True),
    "with_both": (True, True),
}  # fmt: skip
"""Name -> (text, references)."""
AGENTS: dict[str, AgentOptions] = {
    name: variant.options
    for name, variant in VARIANTS.items()
    if variant.group in ("agent", "ablation") and not variant.base
}
NAMES = (*AGENTS, *INJECTIONS)


@dataclass(frozen=True)
class Study:
    """One variant by name. Raises UserError for one that there is not."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise UserError(f"--variant {self.name!r} is not known{nearest(self.name, NAMES)}")

    @property
    def speaks(self) -> bool:
        """Whether the agent thinks before it draws."""
        return self.name in AGENTS

    def searches(self, item: Item) -> bool:
        """Whether the item cannot be drawn without something to search in."""
        if self.speaks:
            return AGENTS[self.name].tools
        return INJECTIONS[self.name][0] and not item.extra.get("knowledge")

    def episode(self, item: Item, language: str, seed: int, search: SearchBackend) -> Episode:
        """The item as the loop takes it; for an injection it holds all that is drawn from.

        Raises UserError when there is nothing to inject.
        """
        name = str(item.extra.get("ip_name") or item.extra.get("entity") or "")
        country = str(item.extra.get("country") or "")
        episode = Episode(
            id=item.place.rsplit("/", 1)[-1], request=item.prompt, language=language, name=name, category=item.category,
            country=country, seed=seed, options=AGENTS.get(self.name, AgentOptions()),
        )  # fmt: skip
        if not self.speaks:
            text, references = INJECTIONS[self.name]
            background = self._text(item, name, language, search) if text else ""
            episode.recaption = f"{item.prompt}\n{background}" if background else item.prompt
            episode.references = _references(item) if references else []
            episode.stop = "direct"
        return episode

    @staticmethod
    def _text(item: Item, name: str, language: str, search: SearchBackend) -> str:
        if knowledge := item.extra.get("knowledge"):
            return str(knowledge)
        hits = search.text_search(name or item.prompt, language, TEXTS)
        if not hits:
            raise UserError(f"{item.id}: no background text is found for {name or item.prompt!r}")
        return "\n".join(hit.text for hit in hits)


def _references(item: Item) -> list[Judged]:
    paths: tuple[Path, ...] = (item.support or item.references)[:REFERENCES]
    if not paths:
        raise UserError(f"{item.id}: the data set has no true picture to inject")
    made = []
    for path in paths:
        hit = ImageHit(path.stem, path.stem, path.resolve(), 0, 0, "data set", "")
        try:
            made.append(Judged(hit, hit.open(), Verdict(0.0, "good", True)))
        except Unusable as error:
            raise UserError(f"{item.id}: {path}: {error.reason}") from None
    return made
