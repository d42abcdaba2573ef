"""What `plan=true` and `plan=json` print."""

from __future__ import annotations

import json
import os

from unify_agent.training.config import Config
from unify_agent.training.planning.fitting import refuse
from unify_agent.training.planning.plan import plan
from unify_agent.training.planning.report import as_json, lines


def show(config: Config) -> int:
    """Prints the plan, once however many ranks ask; returns 0. Raises UserError, after printing, when it can't fit."""
    if int(os.environ.get("RANK", "0")):
        return 0
    made = plan(config)
    executed = None
    if config.planning.dry_run:
        from unify_agent.training.planning.dryrun import dry_run

        executed = dry_run(made)
    if config.plan == "json":
        print(json.dumps(as_json(made) | ({"dry_run": executed.as_json()} if executed else {}), indent=2))
    else:
        print("\n".join((*lines(made), *(executed.lines(made) if executed else ()))))
    refuse(made)
    return 0
