"""A policy without a model: functions that say and draw. The teacher of the embedded world and the tests are such."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from unify_agent.agent.episode import Episode
from unify_agent.agent.loop import Reply


class ScriptedPolicy:
    """`say` gives the reply to an episode's input, `paint` its picture (uint8 [H, W, 3])."""

    def __init__(self, say: Callable[[Episode], str], paint: Callable[[Episode], np.ndarray], name: str = "scripted"):
        self.name, self._say, self._paint = name, say, paint

    def reply(self, episodes: Sequence[Episode]) -> list[Reply | Exception]:
        return [Reply(self._say(episode)) for episode in episodes]

    def draw(self, episodes: Sequence[Episode]) -> list[np.ndarray | Exception]:
        return [self._paint(episode) for episode in episodes]
