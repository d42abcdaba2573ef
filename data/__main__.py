"""`python -m data COMMAND ...`: one line a command, each in a module with `add_arguments` and `main`."""

from __future__ import annotations

import argparse
import importlib
import sys

from unify_agent import errors

COMMANDS = {
    "world": ("data.openmoji.world", "build the embedded world"),
    "base": ("data.openmoji.base", "put a pre-trained base model into the checkout"),
}


def main() -> int | None:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(prog="python -m data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((argument for argument in sys.argv[1:] if argument in COMMANDS), None)
    for name, (module, text) in COMMANDS.items():
        sub = commands.add_parser(name, help=text)
        if name == chosen:  # only the command that is asked for is imported
            importlib.import_module(module).add_arguments(sub)
    args = parser.parse_args()
    return importlib.import_module(COMMANDS[args.command][0]).main(args)


if __name__ == "__main__":
    sys.exit(errors.run(main))
