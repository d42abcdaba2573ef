"""PicWorld, judged by PW-Agent (papers/picworld.txt; facts/benchmarks.md sections 1.6 and 2).

The data set is a file of JSON lines `{id, prompt, domain, category}`, pictures are `<id>.png`; scores run from 0 to 10.
The total is the mean over prompts, as the paper's table has it (facts/agent.md section 7.7).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field

from eval.benchmarks.base import Ask, Benchmark, Dataset, Item, Marks, Measure, Unresolved, read_records
from eval.pwagent.checklists import Checklist, Checklists
from eval.pwagent.roles import DIRECT, JUDGER, PERCEPTOR, TEMPLATES, Conclusion, Direct, Perception
from eval.pwagent.scoring import WEIGHTS, Fact, NoStateFacts, Options, Scores, score
from unify_agent.judging import Picture, system, user

TOLERANCE = 0.1
"""The judger's own layers may differ by so much before its arithmetic counts as different: it may round."""


class _Prompt(BaseModel):
    model_config = ConfigDict(extra="ignore", coerce_numbers_to_str=True)

    id: str = Field(min_length=1)
    prompt: str = Field(min_length=1)
    domain: str = ""
    category: str = "all"


class PicWorld(Benchmark):
    """Four roles; with `direct=on` the single-step judge is asked too, to compare their spreads (section 4.3)."""

    name = "picworld"
    title = "PicWorld"
    paper = "picworld"
    measures = (
        Measure("score", "PW-Score", 0, 10),
        Measure("s1", "S1 adherence", 0, 10),
        Measure("s2", "S2 realism", 0, 10),
        Measure("s3", "S3 nuance", 0, 10),
        Measure("direct", "Direct judge", 0, 10),
    )
    macro = True
    templates = TEMPLATES
    options: ClassVar[Mapping[str, tuple[str, ...] | float]] = {
        "fact_unit": ("question", "expectation"), "confidence": ("min", "mean"), "gate": ("on", "off"),
        "direct": ("off", "on"), "foundation": 6.0, "bonus": 1.0, "bonus_cap": 4.0, "inconsistency": 2.0,
    }  # fmt: skip

    def __init__(self, options: Mapping[str, str | float] | None = None) -> None:
        super().__init__(options)
        self.rules = Options(**cast(Any, {k: v for k, v in self.chosen.items() if k != "direct"}))
        self.checklists = Checklists(Path("checklists.jsonl"))

    def official(self, path: Path, references: Path | None) -> Dataset:
        file = path / "picworld.jsonl" if path.is_dir() else path
        items = tuple(
            Item(record.id, record.prompt, record.category, record.domain, place=record.id)
            for record in read_records(file, _Prompt)
        )
        return Dataset("picworld", items)

    def applies(self, item: Item, measure: str) -> bool:
        return measure != "direct" or self.chosen["direct"] == "on"

    def keep_in(self, path: Path) -> None:
        self.checklists = Checklists(path)

    def copy_kept(self, path: Path, items: Sequence[Item]) -> None:
        self.checklists.copy_to(path, items)

    def kept(self, items: Sequence[Item]) -> dict[str, str]:
        return {"checklists": self.checklists.sha256(items)}

    def judge(self, item: Item, picture: Picture, ask: Ask) -> Marks:
        checklist = self.checklists.of(item, ask.aside())
        facts, seen = self._perceived(checklist, picture, ask)
        said = json.dumps([each | {"id": fact.id} for each, fact in zip(seen, facts, strict=True)], ensure_ascii=False)
        concluded = ask("judger", [system(JUDGER), user(f"Facts: {said}", picture)], Conclusion, 2048)
        try:
            scores = score(facts, concluded.bonuses, concluded.inconsistencies, self.rules)
        except NoStateFacts:
            raise Unresolved("no_state_fact", "the item's check-list has no question about a state") from None
        detail = {
            "facts": [each | {"id": fact.id, "gated": fact.gated} for each, fact in zip(seen, facts, strict=True)],
            "bonuses": [each.model_dump() for each in concluded.bonuses],
            "inconsistencies": [each.model_dump() for each in concluded.inconsistencies],
            "void": list(scores.void),
        }
        values: dict[str, float] = {"score": scores.pw, "s1": scores.s1, "s2": scores.s2, "s3": scores.s3}
        if self.chosen["direct"] == "on":
            direct = ask("direct", [system(DIRECT), user(f"Prompt: {item.prompt}", picture)], Direct)
            layers = (direct.layer_1_adherence_score, direct.layer_2_realism_score, direct.layer_3_nuance_score)
            values["direct"] = sum(w * s for w, s in zip(WEIGHTS, layers, strict=True))
        return Marks(values, _differs(concluded, scores), scores.flags, detail)

    def _perceived(self, checklist: Checklist, picture: Picture, ask: Ask) -> tuple[list[Fact], list[dict[str, Any]]]:
        """The facts, and what was seen of each. A failed Existence question closes the gate of its expectation."""
        facts, seen, closed = [], [], set()
        for name, number, expectation, question in checklist.numbered():
            about = {"expectation": expectation.expectation, "rationale": expectation.rationale,
                     "importance": expectation.importance, "type": question.type,
                     "question": question.text}  # fmt: skip
            if question.type == "State" and number in closed:
                facts.append(Fact(name, number, question.type, expectation.importance, False, 1.0, gated=True))
                seen.append(about | {"satisfied": False, "confidence": 1.0, "answer": "not asked: the thing is absent"})
                continue
            found = ask(f"perceptor {name}", [system(PERCEPTOR), user(picture, question.text)], Perception, 512)
            facts.append(Fact(name, number, question.type, expectation.importance, found.verdict, found.confidence))
            seen.append(about | {"satisfied": found.verdict, "confidence": found.confidence, "answer": found.answer})
            if question.type == "Existence" and not found.verdict and self.rules.gate == "on":
                closed.add(number)
        return facts, seen


def _differs(concluded: Conclusion, scores: Scores) -> tuple[str, ...]:
    claimed = {
        "layer 1": (concluded.layer_1_adherence_score, scores.s1),
        "layer 2": (concluded.layer_2_realism_score, scores.s2),
        "layer 3": (concluded.layer_3_nuance_score, scores.s3),
    }
    return tuple(name for name, (theirs, ours) in claimed.items() if abs(theirs - ours) > TOLERANCE)
