"""Random numbers that depend on a key alone: not on rank, worker, order or what was drawn before."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, epoch: int, *key: object) -> np.random.Generator:
    """A counter-based generator (Philox) for (seed, epoch, key); parts of the key differ by `repr`."""
    digest = hashlib.blake2b(repr((seed, epoch, *key)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, dtype=np.uint64)))
