"""What the stages ask with. Every answer is kept by what was asked, on the disk before it is used; all is counted.

    with Services(spec, folder) as services:
        services.chat("teacher").ask([user("...")], schema=..., max_tokens=...)      # unify_agent.judging.ChatClient
        services.search.search_image("Mount Fuji", num=8)                            # any SearchBackend, recorded
        services.image.draw(...)                                                     # data/build/images.py

All of it may be used from many threads. A stage does not catch `OverBudget` and `Halted` (they are no `Exception`),
lets ChatError and SearchError of a service that does not work go (the pipeline marks the task as failed, to be tried
again by a later run) and raises `Dropped` for what is to be left out for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from data.build.spec import Role, Spec
from unify_agent.judging import ChatClient
from unify_agent.search.base import SearchBackend


class Log(Protocol):
    """Where answers are kept: `CallLog` of unify_agent.judging is one, the build's own (bounded in memory) another."""

    def find(self, key: str) -> dict[str, Any] | None:
        """The answer under this key (a SHA-256 in hex), as it was kept."""

    def append(self, record: dict[str, Any]) -> None:
        """Keeps a record with `key`, and `answer` or `error` (JSON); it is on the disk when this returns."""


class Gate(Protocol):
    """What an attempt over the wire passes: slots, rate, budget, counters.

        with gate.attempt(prompt_tokens, completion_tokens, pictures) as spent:
            ...ask...
            spent(prompt_tokens, completion_tokens, pictures)     # what it took; not called: a failed attempt

    `attempt` is entered with what the attempt may take at most. Raises OverBudget before anything is asked. An
    exception that leaves the block is counted; one that says that the key is wrong, or that the service has been down
    for long, leaves it as `Halted`.
    """

    @contextmanager
    def attempt(self, prompt: int = 0, completion: int = 0, pictures: int = 0) -> Iterator[Any]: ...


class Services:
    """The services of a run that writes into `folder`:

        folder/calls.sqlite    answers of chat and image services, what they took
        folder/searches/       answers of the search (unify_agent/search/recorded.py)
        folder/pictures/       what the image service drew, under the SHA-256 of the content (data/build/images.py)
    """

    spec: Spec
    folder: Path
    log: Log
    search: SearchBackend

    def __init__(self, spec: Spec, folder: Path) -> None:
        raise NotImplementedError

    def chat(self, role: Role) -> ChatClient:
        """Who answers for a role. One client a role, the same one each time."""
        raise NotImplementedError

    def gate(self, name: str) -> Gate:
        """The gate of a service, by its name in the spec: for clients that are not made here."""
        raise NotImplementedError

    @property
    def image(self) -> Any:
        """Who draws: `data.build.images.open_image(spec, folder, log, gate)`, opened when it is first asked for.

        Its `draw` returns the path of a picture in folder/pictures; a picture that was drawn before for the same
        model, prompt, references (by content), size, seed and trial is not drawn again.
        """
        raise NotImplementedError
