"""Pictures that look alike among hundreds of thousands, without comparing each with each.

The rule is `unify_agent.search.pictures.alike`: proportions, at most 10 of 128 bits of a difference hash, 48 colour
values that differ by at most 16. `AXES` of the colour values, those that tell most about the others of a set, are cut
into cells 33 wide, in two ways that are 16 apart: in each of them two such pictures share a cell of one of the two. So
for each choice of ways the pictures are sorted by (cell, brightness), and each is compared with those that follow
within the difference in brightness that is possible. That finds every pair, unless a picture has more than `MOST` to be
compared with at once (thousands of nearly white ones, say): then only with the nearest in brightness, and `Alike.cut`
counts how often that was so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from data.progress import Progress
from unify_agent.interleave.segments import Unusable
from unify_agent.interleave.transforms import open_picture
from unify_agent.search.pictures import ALIKE_ASPECT, ALIKE_BITS, ALIKE_COLOUR, look_of

BYTES = 66
"""Of a packed look: 2 of aspect, 16 of bits, 48 of colours."""
MOST, FEW, AXES = 2048, 256, 6
_BLOCK = 1 << 18  # pairs that are compared at once
_VERSION = 1


def pack(look: np.ndarray) -> bytes:
    """What `look_of` returns, in `BYTES` bytes."""
    aspect, bits, colours = look[:1], look[1:129] != 0, look[129:]
    return aspect.astype("<i2").tobytes() + np.packbits(bits).tobytes() + colours.astype(np.uint8).tobytes()


@dataclass(frozen=True)
class Alike:
    """Groups of indices of pictures that look alike, of two or more each. `cut`: see the module; 0 is exact."""

    groups: tuple[tuple[int, ...], ...]
    cut: int


def find_alike(looks: Sequence[bytes]) -> Alike:
    """Groups among packed looks. A group holds whatever a chain of pairs joins."""
    if not looks:
        return Alike((), 0)
    packed, where = np.unique(np.frombuffer(b"".join(looks), np.uint8).reshape(-1, BYTES), axis=0, return_inverse=True)
    labels, cut = np.arange(len(packed)), 0
    for key in _keys(packed):
        labels, more = _joined(packed, key, labels)
        cut += more
    members: dict[int, list[int]] = {}
    for number, label in enumerate(labels[where.ravel()].tolist()):
        members.setdefault(label, []).append(number)
    return Alike(tuple(tuple(each) for each in members.values() if len(each) > 1), cut)


def _keys(packed: np.ndarray) -> Iterator[np.ndarray]:
    """By what pictures are sorted, time after time. A few are compared each with each."""
    if len(packed) <= FEW:
        yield np.zeros(len(packed), np.int64)
        return
    colours = packed[:, 18:]
    brightness = colours.sum(1, dtype=np.int64)
    values = colours[:, _telling(colours)].astype(np.int64)
    ways = [(values + shift) // (2 * ALIKE_COLOUR + 1) for shift in (0, ALIKE_COLOUR)]
    for chosen in product((0, 1), repeat=AXES):
        cell = np.zeros(len(packed), np.int64)
        for axis, way in enumerate(chosen):
            cell = cell * 16 + ways[way][:, axis]
        yield (cell << 16) + brightness


def _telling(colours: np.ndarray) -> list[int]:
    """Of 48 columns the `AXES` that vary most, each after what the ones before tell of it is taken away."""
    rest = colours[:: max(1, len(colours) // 20_000)].astype(np.float64)
    rest -= rest.mean(0)
    found: list[int] = []
    for _ in range(AXES):
        spread = (rest * rest).sum(0)
        spread[found] = -1.0
        found.append(int(spread.argmax()))
        axis = rest[:, found[-1]] / max(float(np.linalg.norm(rest[:, found[-1]])), 1e-9)
        rest -= np.outer(axis, axis @ rest)
    return found


def same_picture(one: bytes, two: bytes) -> bool:
    """Whether two packed looks are those of one picture."""
    return bool(_alike(*(np.frombuffer(look, np.uint8)[None] for look in (one, two)))[0])


def _joined(packed: np.ndarray, key: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, int]:
    """Labels in which pictures of near keys that look alike are one, and how many had too many to be compared with."""
    order = np.argsort(key, kind="stable")
    ranked = key[order]
    reach = np.searchsorted(ranked, ranked + ALIKE_COLOUR * 48, side="right") - np.arange(len(ranked)) - 1
    counts = np.minimum(reach, MOST)
    ends = np.cumsum(counts)
    start = 0
    while start < len(ranked):
        done = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + _BLOCK, side="right")))
        some = counts[start:stop]
        first = np.repeat(np.arange(start, stop), some)
        second = first + 1 + np.arange(len(first)) - np.repeat(np.cumsum(some) - some, some)
        one, two = order[first], order[second]
        apart = labels[one] != labels[two]
        one, two = one[apart], two[apart]
        same = _alike(packed[one], packed[two])
        if same.any():
            labels = _merged(labels, labels[one[same]], labels[two[same]])
        start = stop
    return labels, int((reach > MOST).sum())


def _merged(labels: np.ndarray, one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Labels in which `one[k]` and `two[k]` are the same."""
    size = int(labels.max()) + 1
    graph = coo_matrix((np.ones(len(one), np.int8), (one, two)), shape=(size, size))
    return connected_components(graph, directed=False)[1][labels]


def _alike(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """`unify_agent.search.pictures.alike` of rows of packed looks."""
    aspects = [np.ascontiguousarray(each[:, :2]).view("<i2")[:, 0].astype(np.int64) for each in (one, two)]
    near = np.abs(aspects[0] - aspects[1]) <= ALIKE_ASPECT * np.maximum(np.maximum(*aspects), 1)
    differing = np.bitwise_count(one[:, 2:18] ^ two[:, 2:18]).sum(1)
    colours = np.abs(one[:, 18:].astype(np.int16) - two[:, 18:]).max(1)
    return near & (differing <= ALIKE_BITS) & (colours <= ALIKE_COLOUR)


def look_at(path: Path) -> bytes:
    """The packed look of a picture file. Raises `Unusable` for what is none, in words."""
    if path.is_dir():
        raise Unusable("a folder", "name the pictures in it")
    try:
        return pack(look_of(open_picture(path)))
    except Unusable as fault:
        if fault.reason == "picture missing":
            raise Unusable("no such file") from None
        with path.open("rb") as file:
            page = file.read(512).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"<"
        raise Unusable("a web page and not a picture" if page else fault.reason) from None
    except OSError as error:
        raise Unusable("cannot be read", error.strerror or "") from None


class Looks:
    """Looks of picture files, kept in a file of lines (`cache`) by path, size and time, so that each is read once."""

    def __init__(self, cache: Path | None = None) -> None:
        self._cache, self._known = cache, dict[tuple[str, int, int], bytes]()
        if cache is not None and cache.is_file():
            with cache.open("rb") as file:
                for line in file:
                    with suppress(ValueError, TypeError):  # a line that a kill broke off
                        version, name, size, modified, look = json.loads(line)
                        if version == _VERSION and len(look) == 2 * BYTES:
                            self._known[name, size, modified] = bytes.fromhex(look)

    def of(self, paths: Iterable[Path], threads: int = 4) -> dict[Path, bytes | Unusable]:
        """The look of each file, or why it has none. Faults are not kept: they may be mended."""
        found: dict[Path, bytes | Unusable] = {}
        missing: list[tuple[Path, tuple[str, int, int]]] = []
        for path in dict.fromkeys(paths):
            try:
                stat = path.stat()
            except OSError:
                found[path] = Unusable("no such file")
                continue
            key = (str(path.resolve()), stat.st_size, stat.st_mtime_ns)
            if key in self._known:
                found[path] = self._known[key]
            else:
                missing.append((path, key))
        if not missing:
            return found
        with ThreadPoolExecutor(threads) as pool, Progress("looking at", len(missing), "pictures") as progress:
            for start in range(0, len(missing), 256):
                part = missing[start : start + 256]
                looks = list(pool.map(_look_or_fault, [path for path, _ in part]))
                self._keep([(key, look) for (_, key), look in zip(part, looks, strict=True) if isinstance(look, bytes)])
                found |= dict(zip((path for path, _ in part), looks, strict=True))
                progress.advance(len(part))
        return found

    def _keep(self, looks: list[tuple[tuple[str, int, int], bytes]]) -> None:
        self._known |= dict(looks)
        if self._cache is not None and looks:
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            lines = "".join(f"{json.dumps([_VERSION, *key, look.hex()])}\n" for key, look in looks)
            with self._cache.open("ab") as file:
                file.write(f"\n{lines}".encode())  # a fresh line after one that a kill broke off


def _look_or_fault(path: Path) -> bytes | Unusable:
    try:
        return look_at(path)
    except Unusable as fault:
        return fault
