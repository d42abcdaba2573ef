"""`python -m eval COMMAND ...`: one line a command, each in a module with `add_arguments` and `main`."""

from __future__ import annotations

import argparse
import importlib
import sys

from unify_agent import errors

COMMANDS = {
    "openmoji": ("eval.openmoji.command", "measure a model on unseen things of the embedded world"),
    "demo": ("eval.openmoji.demo", "the whole paper in miniature, from nothing to a report"),
}


def main() -> int | None:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(prog="python -m eval", description=__doc__)
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
