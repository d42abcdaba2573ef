"""What a build will take: calls, tokens and money of each service, before the first call and on the way.

Before anything has run the figures rest on `USUAL`, which is stated beside them. Once a good number of tasks has
ended, on what those took: the mean of a service over all tasks that ended, dropped ones and failed attempts included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from data.build.answers import Total
from data.build.gates import cost
from data.build.services import NAMES
from data.build.spec import Spec
from unify_agent.judging import Spent

ENOUGH = 20
"""Tasks that must have ended before their means are taken."""
TRIALS = 1.6
"""Drawings a task, in the mean."""


@dataclass(frozen=True)
class Usual:
    """What is taken for granted of a service: calls for an entity and for a task, tokens of a call, in and out."""

    entity: float
    task: float
    prompt: int = 0
    completion: int = 0


def usual(spec: Spec) -> dict[str, Usual]:
    """The assumptions, by service: two searches and a recaption a trajectory, every candidate judged, some drawings
    refused. A picture in a message counts as 800 tokens."""
    candidates = spec.references.candidates
    trials = min(TRIALS, spec.verification.trials)
    seen = 2 * 800
    return {
        "teacher": Usual(0, 3 + (trials - 1), 3000 + seen, 350),
        "metadata": Usual(1, 0, 250 * spec.metadata.results + 500, 200),
        "prompts": Usual(0, 1, 600, 80),
        "references": Usual(0, candidates, 600 + 800, 90),
        "verifier": Usual(0, trials, 500 + 3 * 800, 100),
        "image": Usual(0, trials),
        "search": Usual(1, 2),
    }


@dataclass(frozen=True)
class Job:
    """What is left to do: entities to describe, and tasks to bring to an end."""

    entities: int
    tasks: int


def estimate(spec: Spec, job: Job) -> dict[str, Total]:
    """By service, from `usual`."""
    found = {}
    for name, each in usual(spec).items():
        calls = each.entity * job.entities + each.task * job.tasks
        found[name] = _total(spec, name, calls, each.prompt * calls, each.completion * calls)
    return found


def measured(totals: Mapping[str, Total], ended: int, tasks: int) -> dict[str, Total]:
    """By service, from what the `ended` tasks took, for so many `tasks` more."""
    share = tasks / ended
    found = {}
    for name, total in totals.items():
        scaled = {key: value * share for key, value in asdict(total).items()}
        found[name] = Total(**{key: value if key == "money" else round(value) for key, value in scaled.items()})
    return found


def _total(spec: Spec, name: str, calls: float, prompt: float, completion: float) -> Total:
    paced = {"image": spec.services.image, "search": spec.services.search}.get(name) or spec.chat(name)  # type: ignore[arg-type]
    made = round(calls)
    spent = Spent(round(prompt), round(completion), made if name == "image" else 0)
    return Total(made, 0, spent.prompt, spent.completion, spent.pictures, cost(paced.price, spent, made))


def record(found: Mapping[str, Total]) -> dict[str, Any]:
    """As JSON: figures by service, and the money of all."""
    return {
        "services": {name: asdict(found[name]) for name in NAMES if name in found},
        "money": sum(total.money for total in found.values()),
    }
