"""What every attempt over the wire passes: whoever owns several clients counts, slows and stops them here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol


@dataclass
class Spent:
    """What an attempt takes: tokens of the request and of the reply, pictures drawn."""

    prompt: int = 0
    completion: int = 0
    pictures: int = 0


class Gate(Protocol):
    """`with gate.attempt(most) as spent:` around an attempt; `most` is what it may take.

    Entering may wait, and may raise to forbid it. Within, `spent` is filled with what it took; an exception that
    leaves the block is an attempt that failed.
    """

    def attempt(self, most: Spent) -> AbstractContextManager[Spent]: ...


class Open:
    """A gate that lets everything through and counts nothing."""

    def attempt(self, most: Spent) -> AbstractContextManager[Spent]:
        return nullcontext(Spent())
