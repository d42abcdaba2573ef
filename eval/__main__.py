"""`python -m eval COMMAND ...`: one line a command, each in a module with `add_arguments` and `main`."""

from __future__ import annotations

import sys

from unify_agent import errors
from unify_agent.commands import dispatch

COMMANDS = {
    "check": ("eval.check", "find what is wrong with data, pictures or judge before anything is asked"),
    "generate": ("eval.generate", "let the agent draw a benchmark: open or closed book, ablations, injections"),
    "score": ("eval.score", "judge a folder of pictures on a benchmark"),
    "rescore": ("eval.rescore", "compute a run's report anew from what the judge answered"),
    "report": ("eval.report", "one page for one or several runs, beside the papers' rows if wished"),
    "compare": ("eval.compare", "two runs on the same items: differences, tests, flips"),
    "papers": ("eval.papers.arithmetic", "the papers' own tables, checked"),
    "openmoji": ("eval.openmoji.command", "measure a model on unseen things of the embedded world"),
    "world-agent": ("eval.world_agent.command", "can a model keep a world running, and foresee one?"),
    "demo": ("eval.openmoji.demo", "the whole paper in miniature, from nothing to a report"),
}


def main() -> int | None:
    """Parse the command line and run the command."""
    return dispatch("eval", str(__doc__), COMMANDS)


if __name__ == "__main__":
    sys.exit(errors.run(main))
