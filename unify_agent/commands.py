"""`python -m APP COMMAND ...`: an app is a table of commands, each in a module with `add_arguments` and `main`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping


def dispatch(app: str, about: str, commands: Mapping[str, tuple[str, str]]) -> int | None:
    """Parse the command line and run its command. `commands`: name -> (module, help).

    Only the module of the command that is asked for is imported.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {app}", description=about)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((argument for argument in sys.argv[1:] if argument in commands), None)
    for name, (module, text) in commands.items():
        sub = subparsers.add_parser(name, help=text)
        if name == chosen:
            importlib.import_module(module).add_arguments(sub)
    args = parser.parse_args()
    return importlib.import_module(commands[args.command][0]).main(args)
