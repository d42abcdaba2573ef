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

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

from data.build.answers import Answers, Total
from data.build.gates import Lane, Metered
from data.build.spec import Budget, Paced, Role, Spec
from unify_agent.judging import ChatClient, Endpoint, Gate, Spent
from unify_agent.judging.pace import Pace
from unify_agent.search.base import ImageHit, SearchBackend, TextHit
from unify_agent.search.recorded import Recording, Replay
from unify_agent.search.registry import open_backend

Hit = TypeVar("Hit", TextHit, ImageHit)
BACKOFF = 1.0
"""Seconds of the first wait before another attempt of a chat service."""
NAMES: tuple[str, ...] = (*get_args(Role), "image", "search")


class MeteredSearch:
    """A back end behind a gate: what a recording asks when it does not know the answer."""

    def __init__(self, inner: SearchBackend, gate: Gate) -> None:
        self.inner, self.name, self._gate = inner, inner.name, gate

    def text_search(self, q: str, hl: str | None = None, top_k: int = 5) -> list[TextHit]:
        return self._asked(lambda: self.inner.text_search(q, hl, top_k))

    def search_image(self, q: str, location: str | None = None, hl: str | None = None, num: int = 8) -> list[ImageHit]:
        return self._asked(lambda: self.inner.search_image(q, location, hl, num))

    def _asked(self, ask: Callable[[], list[Hit]]) -> list[Hit]:
        with self._gate.attempt(Spent()):
            return ask()


class CountedSearch:
    """A back end that counts what it is asked."""

    def __init__(self, inner: SearchBackend) -> None:
        self.inner, self.name, self.questions = inner, inner.name, 0
        self._lock = threading.Lock()

    def text_search(self, q: str, hl: str | None = None, top_k: int = 5) -> list[TextHit]:
        self._count()
        return self.inner.text_search(q, hl, top_k)

    def search_image(self, q: str, location: str | None = None, hl: str | None = None, num: int = 8) -> list[ImageHit]:
        self._count()
        return self.inner.search_image(q, location, hl, num)

    def _count(self) -> None:
        with self._lock:
            self.questions += 1


class Services:
    """The services of a run that writes into `folder`:

        folder/calls.sqlite    answers of chat and image services, what they took
        folder/searches/       answers of the search (unify_agent/search/recorded.py)
        folder/pictures/       what the image service drew, under the SHA-256 of the content (data/build/images.py)

    Raises UserError: a key that is not set, a folder that another process writes, a search that is not there.
    """

    def __init__(self, spec: Spec, folder: Path) -> None:
        self.spec, self.folder = spec, folder
        self._clients: dict[Role, ChatClient] = {}
        self._paces: dict[Role, Pace] = {}
        self._image: Any = None
        self._opening = threading.Lock()
        self.log = Answers(folder / "calls.sqlite")
        try:
            self._gates = self._lanes()
            self.search = self._searching()
            for role in get_args(Role):
                self._clients[role] = self._chatting(role)
        except BaseException:
            self.log.close()
            raise

    def chat(self, role: Role) -> ChatClient:
        """Who answers for a role. One client a role, the same one each time."""
        return self._clients[role]

    def gate(self, name: str) -> Metered:
        """The gate of a service, by its name in the spec: for clients that are not made here."""
        return self._gates[name]

    @property
    def image(self) -> Any:
        """Who draws: `data.build.images.open_image(spec, folder, log, gate)`, opened when it is first asked for.

        Its `draw` returns the path of a picture in folder/pictures; a picture that was drawn before for the same
        model, prompt, references (by content), size, seed and trial is not drawn again. It has `usage.cached`.
        """
        with self._opening:
            if self._image is None:
                from data.build.images import open_image

                self._image = open_image(self.spec, self.folder, self.log, self.gate("image"))
            return self._image

    def totals(self) -> dict[str, Total]:
        """What each service took in all runs into this folder, by its name in the spec."""
        return {name: gate.total for name, gate in self._gates.items()}

    def cached(self) -> dict[str, int]:
        """How often in this run an answer was known already, by service."""
        found = {str(role): client.usage.cached for role, client in self._clients.items()}
        found["search"] = max(0, self.search.questions - self._searched)
        found["image"] = 0 if self._image is None else self._image.usage.cached
        return found

    def budgets(self) -> dict[str, Budget]:
        """The budget of each service; those that are the same as another share it."""
        return {name: gate.budget for name, gate in self._gates.items()}

    def stop(self) -> None:
        """No further attempt is made: calls under way end with what they have."""
        for gate in self._gates.values():
            gate.lane.stop()
        for client in self._clients.values():
            client.stop()

    def close(self) -> None:
        """Closes all connections and files."""
        for client in self._clients.values():
            client.close()
        if self._image is not None:
            self._image.close()
        self.log.close()

    def __enter__(self) -> Services:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _searched(self) -> int:
        """Questions of this run that went to the back end."""
        return self._gates["search"].total.calls - self._searched_before

    def _lanes(self) -> dict[str, Metered]:
        spec, spent = self.spec, self.log.spent()
        totals = {name: spent.get(name, Total()) for name in NAMES}
        self._searched_before = totals["search"].calls
        overall = threading.Semaphore(spec.services.concurrency) if spec.services.concurrency else None
        roots: dict[str, str] = {role: spec.root(role) for role in get_args(Role)} | {
            name: name for name in ("image", "search")
        }
        paced: dict[str, Paced] = {role: spec.chat(role) for role in get_args(Role)}
        paced |= {"image": spec.services.image, "search": spec.services.search}
        lanes: dict[str, Lane] = {}
        for root in dict.fromkeys(roots.values()):
            taken = Total()
            for name, other in roots.items():
                if other == root:
                    taken.add(totals[name])
            lanes[root] = Lane(root, paced[root], taken, spec.patience, overall)
        return {
            name: Metered(name, lanes[roots[name]], paced[name].price, self.log, totals[name]) for name in NAMES
        }

    def _chatting(self, role: Role) -> ChatClient:
        given = self.spec.chat(role)
        endpoint = Endpoint.parse(
            given.url, given.model, key_env=given.key_env, timeout=given.timeout, extra=given.extra
        )
        pace = self._paces.setdefault(self.spec.root(role), Pace(None, BACKOFF))
        return ChatClient(endpoint, given.concurrency, given.attempts, self.log, gate=self.gate(role), pace=pace)

    def _searching(self) -> CountedSearch:
        given = self.spec.services.search
        options: dict[str, object] = {"cache": self.folder / "fetched"} if _is_live(given.spec) else {}
        inner = open_backend(given.spec, **(options | given.options))
        if isinstance(inner, Replay):
            return CountedSearch(MeteredSearch(inner, self.gate("search")))
        metered = MeteredSearch(inner, self.gate("search"))
        return CountedSearch(Recording(self.folder / "searches", metered, given.spec))


def _is_live(spec: str) -> bool:
    return spec.partition(":")[0] in ("serper", "wikipedia")
