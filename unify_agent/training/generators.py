"""The states of a process's random generators, as tensors a checkpoint can hold.

What belongs to a sample has generators of its own, keyed by the sample; these are the global ones, which a source of
one's own, or dropout, may draw on.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def states(device: torch.device) -> dict[str, Tensor]:
    """Name -> state: torch's on the CPU and on a GPU `device`, NumPy's and Python's."""
    version, words, gauss = random.getstate()
    drawn = np.random.get_state(legacy=False)
    words_drawn, position = drawn["state"]["key"].tolist(), drawn["state"]["pos"]
    found = {
        "torch": torch.get_rng_state(),
        "python": _tensor([version, *words, gauss is not None, gauss or 0.0]),
        "numpy": _tensor([*words_drawn, position, drawn["has_gauss"], drawn["gauss"]]),
    }
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def restore(found: Mapping[str, Tensor], device: torch.device) -> None:
    """Put back what `states` returned for the same kind of device."""
    torch.set_rng_state(found["torch"])
    version, *words, has_gauss, gauss = found["python"].tolist()
    random.setstate((int(version), tuple(map(int, words)), gauss if has_gauss else None))
    *key, position, has_gauss, cached = found["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(key, dtype=np.uint32), int(position), int(has_gauss), cached))
    if device.type == "cuda":
        torch.cuda.set_rng_state(found["cuda"], device)


def _tensor(numbers: list[float]) -> Tensor:
    """float64 holds all their words (32 bits) exactly."""
    return torch.tensor(numbers, dtype=torch.float64)
