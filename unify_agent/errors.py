"""One way to tell a person what was wrong.

Whatever comes from outside and is wrong raises a `UserError`: one line that says what, where (file, id, key)
and what to do. Entry points run through `run`, which prints that line and chooses the exit code; a traceback
is for our own mistakes only.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches

USAGE = 2
"""Exit code of a command that could not start: bad input, a missing file, an unknown key."""

STOPPED = 1
"""Exit code of a run that began well and cannot go on: a full disk, a loss that is not finite."""


class UserError(Exception):
    """Bad input, told in one line. `code` is the exit code that it asks for."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(" ".join(message.split()))
        self.code = code


def nearest(name: str, known: Sequence[str], count: int = 3) -> str:
    """`", did you mean 'a' or 'b'?"` for a misspelt name, or the known names when nothing is close."""
    close = get_close_matches(name, known, n=count, cutoff=0.5)
    if close:
        return ", did you mean " + " or ".join(repr(each) for each in close) + "?"
    return f"; known: {', '.join(sorted(known))}" if known else ""


def run(main: Callable[[], int | None]) -> int:
    """Run an entry point: `UserError` and a full disk become one line on stderr and an exit code."""
    try:
        return main() or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("interrupted: run the same command again to continue", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        print(f"error: {error.filename or 'a file'} cannot be written: {error.strerror}", file=sys.stderr)
        return USAGE
