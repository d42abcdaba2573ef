"""Texts that are nearly the same, among hundreds of thousands.

Two texts are as near as their sets of character n-grams overlap (Jaccard): of two characters where they are Chinese,
Japanese or Korean, of five elsewhere, over letters and digits alone. Pairs are found by MinHash: 64 hashes in 16 bands
of four; what shares a band is compared exactly. So every pair that is told is one, and a pair of nearness s is missed
with probability (1 - s^4)^16: 1.2 % at 0.7, 0.02 % at 0.8. Of many texts in one band each is compared with the first
and with the eight before it, which keeps the work linear.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np

from data.build.names import normalised
from data.grouping import Groups
from unify_agent.interleave.randomness import generator

NEAR = 0.7
_BANDS, _ROWS, _BEFORE = 16, 4, 8
_DENSE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")


def shingles(text: str) -> np.ndarray:
    """Hashes (uint32, sorted, each once) of a text's n-grams; of the whole text where it is shorter than one."""
    plain = re.sub(r"[\W_]+", " ", normalised(text)).strip()
    size = 2 if 2 * len(_DENSE.findall(plain)) > len(plain) else 5
    grams = {plain[at : at + size] for at in range(max(len(plain) - size + 1, 1))}
    return np.unique(np.array([zlib.crc32(gram.encode()) for gram in grams], np.uint32))


def nearness(one: np.ndarray, two: np.ndarray) -> float:
    """The share that two sets of shingles have in common, 0 to 1."""
    common = len(np.intersect1d(one, two, assume_unique=True))
    return common / (len(one) + len(two) - common)


def find_near(texts: Sequence[str], at: float = NEAR) -> tuple[tuple[int, ...], ...]:
    """Groups of indices of texts of which a chain of pairs is at least so near, of two or more each."""
    groups = Groups(range(len(texts)))
    first: dict[str, int] = {}
    for number, text in enumerate(texts):
        groups.join(number, first.setdefault(normalised(text), number))
    kept = np.array(sorted(first.values()), np.int64)
    sets = [shingles(texts[number]) for number in kept]
    marks = np.array([_signature(each) for each in sets], np.uint32).reshape(-1, _BANDS, _ROWS)
    for band in range(_BANDS):
        keys = np.ascontiguousarray(marks[:, band]).view(f"V{4 * _ROWS}").ravel()
        _, bucket, counts = np.unique(keys, return_inverse=True, return_counts=True)
        order = np.argsort(bucket, kind="stable")
        starts = np.concatenate([[0], np.cumsum(counts)])
        for start, stop in zip(starts[:-1][counts > 1], starts[1:][counts > 1], strict=True):
            some = order[start:stop].tolist()
            for rank, one in enumerate(some):
                for two in dict.fromkeys((some[0], *some[max(0, rank - _BEFORE) : rank])):
                    a, b = int(kept[one]), int(kept[two])
                    if groups.find(a) != groups.find(b) and nearness(sets[one], sets[two]) >= at:
                        groups.join(a, b)
    return groups.several()


def _multipliers() -> tuple[np.ndarray, np.ndarray]:
    numbers = generator(0, 0, "minhash").integers(1 << 63, size=(2, _BANDS * _ROWS, 1), dtype=np.uint64)
    return numbers[0] | np.uint64(1), numbers[1]


_A, _B = _multipliers()


def _signature(found: np.ndarray) -> np.ndarray:
    """The least of each of 64 hashes over a set of shingles, uint32 [64]."""
    return ((_A * found.astype(np.uint64) + _B) >> np.uint64(32)).min(1).astype(np.uint32)
