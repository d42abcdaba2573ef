"""What a stage makes of a service's answer that is none: whether the task is to blame, or the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from data.build.contracts import Dropped, Stage
from unify_agent.judging import ChatError
from unify_agent.judging.transport import is_moderated

UNUSABLE = ("malformed", "truncated", "empty")
"""Kinds of what a model says to one question, however often it is asked."""


@contextmanager
def asking(stage: Stage, who: str, unusable: tuple[str, ...] = UNUSABLE) -> Iterator[None]:
    """Makes `Dropped` of the errors that this task would always meet; those of a service that does not work go on.

    refused: the content is not to the service's liking. `unusable`: kinds of errors for which the task is dropped, too.
    """
    try:
        yield
    except ChatError as error:
        if is_moderated(error):
            raise Dropped(stage, f"{who} refuses", error.detail) from None
        if error.kind in unusable:
            raise Dropped(stage, f"{who}: {error.kind}", error.detail) from None
        raise
