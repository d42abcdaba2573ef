"""Runs variants over tasks, a chunk (variant, seed) at a time, and keeps each chunk as soon as it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from data.openmoji.entities import Entity, load_entities
from data.openmoji.pictures import Drawings, drawings_path
from data.openmoji.scenes import Composer
from data.openmoji.teacher import Task as TeacherTask
from data.openmoji.teacher import Teacher
from eval.openmoji import store
from eval.openmoji.tasks import Task, chosen, common_tasks, unseen_tasks
from eval.openmoji.variants import Shuffle, Variant
from eval.stages import say
from unify_agent.agent.episode import Episode, Exchange
from unify_agent.agent.judge import Judge, LabelJudge
from unify_agent.agent.loop import Loop, Policy, Reply
from unify_agent.agent.pixeljudge import PixelJudge
from unify_agent.agent.wording import Prompts
from unify_agent.errors import UserError
from unify_agent.files import digest
from unify_agent.search.index import Index

Say = Callable[[str], None]


class World:
    """A built world: its entities, its index, and the exact picture of every scene."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.entities = load_entities(self.folder)
        self.index = Index.open(self.folder / "search")
        self.drawings = Drawings.load(drawings_path(self.folder))
        self.compose = Composer(self.drawings)
        self.by_id = {entity.id: entity for entity in self.entities}
        self.fingerprint = digest(self.folder / "entities.json", *sorted((self.folder / "corpus").glob("*.jsonl")))[:16]

    def entity_of(self, image_id: str) -> str | None:
        """What a candidate picture really shows."""
        return self.index.labels(image_id).get("entity")

    def named(self, subject: str) -> str | None:
        """The entity that a name in either language names."""
        wanted = subject.casefold()
        found = (e.id for e in self.entities if wanted in (e.name["en"].casefold(), e.name["zh"]))
        return next(found, None)


class Duet:
    """One speaks, the other draws: the teacher's words with the model's hand."""

    def __init__(self, speaker: Policy, painter: Policy) -> None:
        self.name = f"{speaker.name}+{painter.name}"
        self._speaker, self._painter = speaker, painter

    def reply(self, episodes: Sequence[Episode]) -> Sequence[Reply | Exception]:
        return self._speaker.reply(episodes)

    def draw(self, episodes: Sequence[Episode]) -> Sequence[np.ndarray | Exception]:
        return self._painter.draw(episodes)


class TeacherVoice:
    """The scripted teacher as a policy that can speak but not draw."""

    name = "teacher"

    def __init__(self, tasks: Sequence[Task], entities: dict[str, Entity]) -> None:
        self._teacher = Teacher({t.id: TeacherTask(entities[t.entity], t.scene, t.language, "search") for t in tasks})

    def reply(self, episodes: Sequence[Episode]) -> list[Reply | Exception]:
        replies: list[Reply | Exception] = []
        for episode in episodes:
            try:
                replies.append(Reply(self._teacher.say(episode)))
            except LookupError as fault:
                replies.append(fault)
        return replies

    def draw(self, episodes: Sequence[Episode]) -> Sequence[np.ndarray | Exception]:
        raise TypeError("the teacher does not draw")


def _ask_plainly(episode: Episode) -> None:
    """Puts the request where a caption stands: how a model without the agent draws from a prompt."""
    reply = f"<recaption>\n{episode.request}\n</recaption>"
    episode.turns.append(Exchange(episode.request, reply))
    episode.recaption, episode.stop = episode.request, "direct"


class _Progress:
    """A line on a terminal that says how far a chunk is; nothing elsewhere."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total, self._counts = title, total, {"reply": 0, "done": 0, "drawn": 0}
        self.shown = Console(stderr=True).status(title)

    def tell(self, episode: Episode, what: str) -> None:
        """An event of the loop."""
        if what in self._counts:
            self._counts[what] += 1
            turns, done, drawn = self._counts.values()
            self.shown.update(f"{self._title}: {turns} turns, {done} of {self._total} recaptioned, {drawn} drawn")


class Runner:
    """Runs and keeps chunks.

    policy_of: a policy from a model folder, called at most once for each. `key` identifies the model and how it draws,
    so that a chunk made with another model is made again.
    """

    def __init__(
        self,
        world: World,
        out: Path,
        model: Path,
        base: Path | None,
        policy_of: Callable[[Path], tuple[Policy, Prompts, str]],
        count: int,
        say: Say = say,
        batch: int = 100,
    ) -> None:
        self.world, self.out, self.model, self.base, self.say, self.batch = world, Path(out), model, base, say, batch
        self.entities = chosen(world.entities, count)
        self._policy_of = policy_of
        self._loaded: dict[Path, tuple[Policy, Prompts, str]] = {}

    @property
    def model_key(self) -> str:
        """Identity of the fine-tuned model and of how it speaks and draws."""
        return self._load(self.model)[2]

    def tasks(self, variant: Variant, seed: int) -> list[Task]:
        """What a chunk asks for; the full agent is asked about common things besides."""
        tasks = unseen_tasks(self.entities, seed)
        return tasks + common_tasks(self.world.entities, seed) if variant.name == "full" else tasks

    def chunk(self, variant: Variant, seed: int) -> store.Chunk:
        """A finished chunk from the disk, or a new one."""
        tasks = self.tasks(variant, seed)
        policy, prompts, model_key = self._load(self._folder(variant))
        key = digest(model_key, self.world.fingerprint, variant.name, str(seed), *(t.request for t in tasks))[:16]
        kept = store.load(self.out, variant.name, seed, key)
        if kept is not None:
            self.say(f"{variant.name}, seed {seed}: done before ({kept.seconds:.0f} s)")
            return kept
        started = time.monotonic()
        judge: Judge = PixelJudge()
        if variant.speaker == "teacher":
            policy = Duet(TeacherVoice(tasks, self.world.by_id), policy)
            judge = LabelJudge(self.world.index.labels, self.world.named)
        options = variant.options
        if variant.shuffle:
            options = replace(options, replace_references=Shuffle(self.entities, self.world.index))
        episodes = [
            Episode(id=t.id, request=t.request, language=t.language, name=t.name, seed=1000 * seed + k, options=options)
            for k, t in enumerate(tasks)
        ]
        stages = {"think": 0.0, "draw": 0.0}
        progress = _Progress(f"{variant.name}, seed {seed}", len(episodes))
        loop = Loop(policy, self.world.index, judge, prompts, on_event=progress.tell)
        with progress.shown:
            for first in range(0, len(episodes), self.batch):
                part = episodes[first : first + self.batch]
                begun = time.monotonic()
                if variant.speaker == "nobody":
                    for episode in part:
                        _ask_plainly(episode)
                else:
                    loop.think(part)
                thought = time.monotonic()
                loop.draw(part)
                stages["think"] += thought - begun
                stages["draw"] += time.monotonic() - thought
        broken = [e for e in episodes if e.error]
        if len(broken) == len(episodes):
            raise UserError(f"{variant.name}, seed {seed}: every request failed, the first with {broken[0].error}", 1)
        made = store.Chunk(
            tuple(store.from_episode(e, self.world.folder) for e in episodes),
            tuple(e.picture for e in episodes),
            round(time.monotonic() - started, 2),
            {name: round(seconds, 2) for name, seconds in stages.items()},
        )
        store.save(self.out, variant.name, seed, key, made)
        failed = f", {len(broken)} failed" if broken else ""
        self.say(f"{variant.name}, seed {seed}: {len(episodes)} requests in {made.seconds:.0f} s{failed}")
        return made

    def _folder(self, variant: Variant) -> Path:
        if not variant.base:
            return self.model
        if self.base is None or not self.base.is_dir():
            raise UserError(f"variant base: no model before fine-tuning in {self.base}; give --base DIR")
        return self.base

    def _load(self, folder: Path) -> tuple[Policy, Prompts, str]:
        if folder not in self._loaded:
            self._loaded[folder] = self._policy_of(folder)
        return self._loaded[folder]
