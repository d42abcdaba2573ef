"""What became of a build, item by item: every task, and every entity that came to no task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.build.contracts import Trial
from data.build.journal import JOURNAL, Outcome, read_journal
from unify_agent.datasets.trajectory import Trajectory, parse_trajectories

TRAIN = "train"
ITEMS = "items"


@dataclass(frozen=True)
class Item:
    """A task, or an entity without one (its `language` is empty). A task whose prompt was refused has none.

    state: done, dropped, failed, waiting or held_out, as in the journal; `left_out` for what is done and yet not in the
    training layout. references: file and what is known of where it came from. turns: of the trajectory; letters: of all
    its texts. Paths may be those of files that are gone.
    """

    id: str
    name: str
    category: str
    state: str
    language: str = ""
    form: str = ""
    difficulty: str = ""
    prompt: str = ""
    stage: str = ""
    reason: str = ""
    detail: str = ""
    recaption: str = ""
    picture: Path | None = None
    references: tuple[tuple[Path, Mapping[str, str]], ...] = ()
    seeds: tuple[Path, ...] = ()
    trials: tuple[Trial, ...] = ()
    turns: int = 0
    letters: int = 0

    @property
    def why(self) -> str:
        """Stage and reason of what was left out; "" of what was not."""
        return f"{self.stage}: {self.reason}" if self.stage and self.reason else self.reason or self.stage


def read_items(folder: Path) -> Iterator[Item]:
    """The items of a run folder, in the journal's order. Raises UserError for what does not parse."""
    entities: dict[str, Outcome] = {}
    for outcome in read_journal(folder / JOURNAL):
        if outcome.kind == "entity":
            entities[outcome.id] = outcome
    with_tasks: set[str] = set()
    for outcome in read_journal(folder / JOURNAL):
        if outcome.kind == "task":
            with_tasks.add(outcome.entity)
            yield _task(folder, outcome, entities.get(outcome.entity))
    for outcome in entities.values():
        if outcome.id not in with_tasks and outcome.state != "done":
            yield Item(state=outcome.state, **_common(outcome, outcome, ""))


def _common(outcome: Outcome, entity: Outcome | None, language: str) -> dict[str, Any]:
    """What tasks and entities have alike."""
    about = entity.about if entity else {}
    names: Mapping[str, str] = about.get("names", {})
    return {
        "id": outcome.id, "name": names.get(language) or next(iter(names.values()), ""),
        "seeds": tuple(map(Path, about.get("seeds", ()))),
        "category": outcome.about.get("category") or about.get("category", ""), "stage": outcome.stage,
        "reason": outcome.reason, "detail": outcome.detail,
    }  # fmt: skip


def _task(folder: Path, outcome: Outcome, entity: Outcome | None) -> Item:
    said = outcome.about
    language = said.get("language", "")
    common = _common(outcome, entity, language)
    state, made = str(outcome.state), {}
    if state == "done":
        place = folder / TRAIN / common["category"]
        record = place / "traj" / f"{outcome.id}_trajectory.json"
        if record.is_file():
            made = _made(place, parse_trajectories(record.read_text(encoding="utf-8"), record)[0])
        else:
            state = "left_out"
    trials = tuple(
        Trial(each["number"], folder / each["picture"], each["accepted"], each["reason"], each["scores"])
        for each in said.get("trials", ())
    )
    plan = {key: said.get(key, "") for key in ("prompt", "form", "difficulty")}
    return Item(state=state, language=language, trials=trials, **plan, **made, **common)


def _made(place: Path, record: Trajectory) -> dict[str, Any]:
    turns = record.turns_for_training()
    return {
        "recaption": record.recaption, "turns": len(turns),
        "letters": sum(len(turn.input) + len(turn.response_text) for turn in turns),
        "picture": place / record.generated_image if record.generated_image else None,
        "references": tuple((place / each.file, _origin(each.model_dump())) for each in record.references),
    }  # fmt: skip


def _origin(reference: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(reference[key]) for key in ("title", "source", "url", "author", "licence") if reference.get(key)}


def without_names(item: Item) -> str:
    """The prompt without the entity's name, which prompts of one pattern differ in."""
    return item.prompt.replace(item.name, " ") if item.name else item.prompt
