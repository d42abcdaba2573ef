"""Ask the agent for pictures: it thinks, searches, rewrites and draws.

    python infer.py --prompt "Draw Velmora on a red background, small, on the left."
    python infer.py --prompts requests.jsonl --model DIR --search index:DIR --out DIR
    python infer.py --prompts requests.csv --gpus 8 --shard 2/4
    python infer.py --demo

A file of prompts is JSON (a list of texts or objects, or an object of objects by id, as the release's ip_data), JSON
lines, CSV, parquet, or plain text with a request a line. Objects hold image_prompt (or prompt) and may hold id,
language, ip_name, country, category, references. Each item ends as ok, partial or failed in OUT/summary.jsonl; the same
command again goes on where it was stopped. Exit codes: 0 all are ok, 3 some are not, 2 the command was wrong, 4 a
service is down.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from unify_agent.agent import command
from unify_agent.errors import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return command.main(arguments, str(__doc__))


if __name__ == "__main__":
    sys.exit(run(main))
