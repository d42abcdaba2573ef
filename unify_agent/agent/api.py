"""The agent in Python: the same loop as the command line, with typed results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unify_agent.agent.crew import Crew, Service, Setup, assemble
from unify_agent.agent.episode import Episode
from unify_agent.agent.judge import Judged
from unify_agent.agent.loop import Loop
from unify_agent.agent.record import Recorder, png, to_trajectory
from unify_agent.agent.requests import Request, check_references, request_of
from unify_agent.agent.story import thought_of
from unify_agent.datasets.trajectory import Trajectory
from unify_agent.errors import UserError, nearest
from unify_agent.files import write_bytes

Event = Callable[[Episode, str], None]


@dataclass(frozen=True)
class Drawing:
    """What became of a request.

    status: `ok`, `partial` or `failed`, for the `reason` (a key of `episode.STOPS`). picture: RGB, None when drawing
    failed. thoughts: one a turn. references: those that were drawn from, best first, with their source and licence.
    settings: everything needed to draw it again.
    """

    prompt: str
    status: str
    reason: str
    error: str
    picture: Image.Image | None
    recaption: str
    thoughts: tuple[str, ...]
    references: tuple[Judged, ...]
    settings: dict[str, Any]
    trajectory: Trajectory
    episode: Episode = dataclasses.field(repr=False)

    def save(self, path: Path | str) -> Path:
        """Writes the picture as PNG, its settings inside. Raises UserError when there is none."""
        if self.picture is None:
            raise UserError(f"{path}: there is no picture to save ({self.reason}: {self.error})", 1)
        write_bytes(path, png(self.picture, {"prompt": self.prompt, **self.settings}))
        return Path(path)

    def save_all(self, out: Path | str) -> Path:
        """Writes picture, references, trajectory and page below `out`, in the layout that training reads."""
        return Recorder(Path(out), self.trajectory.policy, pages=True).write(self.episode)


class UnifyAgent:
    """An agent that is ready to draw. `setup` says how it was made, `crew` who works in it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.crew: Crew = assemble(setup)

    @classmethod
    def from_pretrained(cls, model: str | Path, *, search: str = "", **changes: Any) -> UnifyAgent:
        """An agent from a model folder or a hub id. `search` as on the command line; without it nothing is searched.

        `changes`: fields of `Setup`. `endpoint` and `judge_endpoint` may be (URL, model). Raises UserError.
        """
        known = [field.name for field in dataclasses.fields(Setup)]
        for name in changes:
            if name not in known:
                raise UserError(f"UnifyAgent: {name} is not known{nearest(name, known)}")
        for name in ("endpoint", "judge_endpoint"):
            if isinstance(changes.get(name), tuple):
                changes[name] = Service(*changes[name])
        return cls(Setup(model=str(model), search=search, **({"tools": bool(search)} | changes)))

    def draw(
        self, prompt: str, *, references: Sequence[Path | str] = (), on_event: Event | None = None, **request: str
    ) -> Drawing:
        """One picture. `references`: up to two picture files, which are then drawn from without a search.

        `request`: id, language, ip_name, country or category, as in a file of prompts. `on_event`: see `Loop`.
        Raises UserError for a request that cannot be taken; what a search, a judge or an endpoint does wrong is in the
        result.
        """
        files = check_references([Path(each) for each in references], "references")
        made = request_of({"prompt": prompt, **request}, "prompt")
        return self._drawn([dataclasses.replace(made, references=files)], on_event)[0]

    def draw_many(self, prompts: Sequence[str], on_event: Event | None = None) -> list[Drawing]:
        """One picture for each prompt, all of them together."""
        requests = [request_of(prompt, f"prompt {number}") for number, prompt in enumerate(prompts, 1)]
        return self._drawn(requests, on_event)

    def _drawn(self, requests: Sequence[Request], on_event: Event | None) -> list[Drawing]:
        crew, episodes = self.crew, [self.setup.episode(request) for request in requests]
        Loop(crew.policy, crew.search, crew.judge, crew.words, on_event=on_event).run(episodes)
        return [self._result(*each) for each in zip(requests, episodes, strict=True)]

    def _result(self, request: Request, episode: Episode) -> Drawing:
        episode.settings |= self.crew.described(request)
        picture = episode.picture
        return Drawing(
            prompt=episode.request,
            status=episode.status,
            reason=episode.stop,
            error=episode.error or episode.fault,
            picture=Image.fromarray(picture) if isinstance(picture, np.ndarray) else None,
            recaption=episode.recaption,
            thoughts=tuple(thought_of(turn.reply) for turn in episode.turns),
            references=tuple(episode.references),
            settings=dict(episode.settings),
            trajectory=to_trajectory(episode, self.crew.policy.name),
            episode=episode,
        )
