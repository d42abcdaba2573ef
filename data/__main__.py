"""`python -m data COMMAND ...`: one line a command, each in a module with `add_arguments` and `main`."""

from __future__ import annotations

import sys

from unify_agent import errors
from unify_agent.commands import dispatch

COMMANDS = {
    "world": ("data.openmoji.world", "build the embedded world"),
    "check": ("data.check", "read every sample and say which cannot be used, and why"),
    "explain": ("data.explain", "one sample: segments, losses, who sees whom"),
    "stats": ("data.stats", "lengths, pictures, tags, languages, predicted packs"),
    "pack": ("data.pack", "turn a folder of trajectories into sharded parquet"),
    "unpack": ("data.unpack", "turn sharded parquet back into the folder"),
    "index": ("data.index", "make a search index of your own texts and pictures"),
    "build": ("data.build.command", "make trajectories of your own list of names"),
    "base": ("data.openmoji.base", "put a pre-trained base model into the checkout"),
}


def main() -> int | None:
    """Parse the command line and run the command."""
    return dispatch("data", str(__doc__), COMMANDS)


if __name__ == "__main__":
    sys.exit(errors.run(main))
