"""`python -m eval COMMAND ...`: one line a command, each in a module with `add_arguments` and `main`."""

from __future__ import annotations

import sys

from unify_agent import errors
from unify_agent.commands import dispatch

COMMANDS = {
    "openmoji": ("eval.openmoji.command", "measure a model on unseen things of the embedded world"),
    "world-agent": ("eval.world_agent.command", "can a model keep a world running, and foresee one?"),
    "demo": ("eval.openmoji.demo", "the whole paper in miniature, from nothing to a report"),
}


def main() -> int | None:
    """Parse the command line and run the command."""
    return dispatch("eval", str(__doc__), COMMANDS)


if __name__ == "__main__":
    sys.exit(errors.run(main))
