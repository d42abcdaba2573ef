"""Our own model draws: those who wait are drawn together, as many at a time as the image service may have calls.

torch comes in with the first picture, not before.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data.build.images import Kept, key_of
from data.build.spec import Image
from data.build.trajectories import with_pictures
from unify_agent.agent.episode import Episode
from unify_agent.agent.loop import Painter
from unify_agent.agent.options import size_of
from unify_agent.agent.record import png
from unify_agent.files import digest
from unify_agent.judging import Gate, Log, Spent


class OwnModel:
    """A model folder in BAGEL's layout, or a hub id. Whoever comes while a batch is drawn waits for the next one."""

    def __init__(self, settings: Image, folder: Path, log: Log, gate: Gate) -> None:
        self.name = Path(settings.own).name
        self._settings, self._kept, self._gate = settings, Kept(folder, log), gate
        self.usage = self._kept.usage
        self._lock, self._busy = threading.Lock(), threading.Lock()
        self._waiting: list[tuple[Episode, Future[np.ndarray]]] = []
        self._painter: Any = None

    def described(self) -> dict[str, Any]:
        return {**self._loaded().described(), "model": self.name}

    def close(self) -> None:
        self._painter = None

    def draw(self, episode: Episode, number: int, seed: int) -> Path:
        """As `Draws`."""
        record = {
            **self.described(), "request": episode.request, "seed": seed, "trial": number,
            "turns": digest(*(part for turn in episode.turns for part in (turn.input, turn.reply))),
            "references": [digest(each.hit.path) for each in episode.references],
        }  # fmt: skip
        key = key_of(record)
        if (known := self._kept.find(key)) is not None:
            return known
        with self._gate.attempt(Spent(pictures=1)) as spent:
            picture = self._drawn(replace(with_pictures(episode), seed=seed))
            spent.pictures = 1
        return self._kept.keep(key, png(picture), request=record)

    def _loaded(self) -> Any:
        with self._lock:
            if self._painter is None:
                from unify_agent.agent.load import load_policy

                self._painter, _ = load_policy(self._settings.own, size=size_of(self._settings.size))
            return self._painter

    def _drawn(self, episode: Episode) -> np.ndarray:
        job: Future[np.ndarray] = Future()
        with self._lock:
            self._waiting.append((episode, job))
        with self._busy:
            while not job.done():
                with self._lock:
                    most = self._settings.concurrency
                    batch, self._waiting = self._waiting[:most], self._waiting[most:]
                _settle(self._painter, batch)
        return job.result()


def _settle(painter: Painter, batch: Sequence[tuple[Episode, Future[np.ndarray]]]) -> None:
    """Draws a batch; what fails as a whole is drawn one by one, so that no picture takes others with it."""
    try:
        pictures = list(painter.draw([episode for episode, _ in batch]))
        if len(pictures) != len(batch):  # of whom they are nobody knows; whoever got none would wait for ever
            raise RuntimeError(f"the model drew {len(pictures)} pictures of {len(batch)} recaptions")
    except Exception as error:
        if len(batch) == 1:
            pictures = [error]
        else:
            for each in batch:
                _settle(painter, [each])
            return
    for (_, job), picture in zip(batch, pictures, strict=True):
        if isinstance(picture, Exception):
            job.set_exception(picture)
        else:
            job.set_result(picture)
