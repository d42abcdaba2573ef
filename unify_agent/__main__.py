"""`python -m unify_agent COMMAND ...`: one line a command, each in a module with `add_arguments` and `main`."""

from __future__ import annotations

import sys

from unify_agent import errors
from unify_agent.commands import dispatch

COMMANDS = {
    "export": ("unify_agent.training.export_command", "write a run's weights as a complete model folder"),
}


def main() -> int | None:
    """Parse the command line and run the command."""
    return dispatch("unify_agent", str(__doc__), COMMANDS)


if __name__ == "__main__":
    sys.exit(errors.run(main))
