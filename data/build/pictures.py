"""Stage 4: the picture of a trial (paper, equation 13), drawn from its recaption and the references alone."""

from __future__ import annotations

from pathlib import Path

from data.build import recaption
from data.build.asking import asking
from data.build.contracts import Task
from data.build.services import Services
from data.build.spec import Spec
from data.build.trajectories import seed_of
from unify_agent.agent.episode import Episode


def draw(task: Task, trajectory: Episode, number: int, spec: Spec, services: Services) -> Path:
    """The picture of trial `number` (from 1), which has a recaption and a seed of its own.

    Raises Dropped where a service refuses the content, or what a service that does not work raised.
    """
    episode = recaption.of_trial(task, trajectory, number, spec, services)
    with asking("picture", "the image service", unusable=()):
        return services.image.draw(episode, number, seed_of(task, spec, "picture", number))
