"""Union-find: things that belong together because a chain of reasons joins them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

Thing = TypeVar("Thing", int, str)


class Groups(Generic[Thing]):
    """Things that can be ordered, each on its own at first."""

    def __init__(self, things: Iterable[Thing]) -> None:
        self._parent: dict[Thing, Thing] = {thing: thing for thing in things}

    def find(self, thing: Thing) -> Thing:
        """The least thing of the group that it is in."""
        root = thing
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[thing] != root:
            self._parent[thing], thing = root, self._parent[thing]
        return root

    def join(self, one: Thing, two: Thing) -> None:
        """Makes one group of two."""
        low, high = sorted((self.find(one), self.find(two)))
        self._parent[high] = low

    def several(self) -> tuple[tuple[Thing, ...], ...]:
        """The groups of two or more, members in order, by their first."""
        found: dict[Thing, list[Thing]] = {}
        for thing in self._parent:
            found.setdefault(self.find(thing), []).append(thing)
        return tuple(tuple(each) for each in found.values() if len(each) > 1)
