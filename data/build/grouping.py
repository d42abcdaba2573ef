"""Union-find: things that belong together because a chain of reasons joins them."""

from __future__ import annotations


class Groups:
    """`size` things, each on its own at first."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def find(self, thing: int) -> int:
        """The first thing, by number, of the group that it is in."""
        root = thing
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[thing] != root:
            self._parent[thing], thing = root, self._parent[thing]
        return root

    def join(self, one: int, two: int) -> None:
        """Makes one group of two."""
        low, high = sorted((self.find(one), self.find(two)))
        self._parent[high] = low

    def several(self) -> tuple[tuple[int, ...], ...]:
        """The groups of two or more, members in order, by their first."""
        found: dict[int, list[int]] = {}
        for thing in range(len(self._parent)):
            found.setdefault(self.find(thing), []).append(thing)
        return tuple(tuple(each) for each in found.values() if len(each) > 1)
