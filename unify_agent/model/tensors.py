"""Safetensors files: what they hold, read without their values, and one clear line for whatever is wrong with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from unify_agent.errors import UserError

FLOATS = ("F32", "BF16", "F16", "F64")
"""Safetensors' words for what weights may be stored as."""
_SHOWN = 20


class WeightsError(UserError):
    """Problems of one set of weights: a first line with their counts, then a line each.

    `problems`: kind ("missing", say) -> lines. Of each kind the first 20 are shown.
    """

    def __init__(self, where: Path | str, problems: Mapping[str, Sequence[str]]) -> None:
        counts = ", ".join(f"{len(lines)} {kind}" for kind, lines in problems.items() if lines)
        lines = [f"{where}: tensors: {counts}"]
        for kind, each in problems.items():
            lines += each[:_SHOWN]
            if len(each) > _SHOWN:
                lines.append(f"... and {len(each) - _SHOWN} more {kind}")
        super().__init__(lines[0])
        self.args = ("\n".join(lines),)


@dataclass(frozen=True)
class Stored:
    """A tensor in a file. `dtype` in safetensors' words."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def stored(file: Path) -> dict[str, Stored]:
    """What a safetensors file holds, without reading values.

    Raises:
        UserError: the file is absent, cut short or of another kind.
    """
    found = {}
    with opened(file) as tensors:
        for name in tensors.keys():
            part = tensors.get_slice(name)
            found[name] = Stored(file, tuple(part.get_shape()), part.get_dtype())
    return found


def read_tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; errors as `stored`."""
    with opened(file) as tensors:
        return {name: tensors.get_tensor(name) for name in tensors.keys()}


def opened(file: Path) -> Any:
    """The file, mapped: what is taken from it are file pages, not memory of the process; errors as `stored`."""
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        raise UserError(f"{file}: no such file of weights")
    try:
        return safe_open(file, "pt")
    except SafetensorError as error:
        raise UserError(f"{file}: not a whole safetensors file ({error}); fetch or write it again") from None
