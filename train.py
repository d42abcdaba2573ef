"""Train: `python train.py +recipe=NAME [key=value ...]`, or the same under `torchrun --nproc-per-node N`.

`--cfg job` prints the composed configuration and stops, `plan=true` what the run would need (memory, time, network; on
any machine, docs/planning.md). The same command continues an interrupted run.
"""

from __future__ import annotations

import sys
from pathlib import Path

from unify_agent import errors
from unify_agent.training.compose import load_config, recipe_names, to_yaml

ROOT = Path(__file__).resolve().parent


def usage() -> str:
    names = ", ".join(recipe_names(ROOT / "recipes"))
    return (
        "usage: python train.py +recipe=NAME [key=value ...]\n"
        f"  recipes: {names}\n"
        "  python train.py +recipe=NAME --cfg job    print the composed configuration and stop\n"
        "  python train.py +recipe=NAME plan=true    print what the run would need and stop; plan=json for programs\n"
        "  torchrun --nproc-per-node N train.py +recipe=NAME    the same run on N processes\n"
        "  ... preflight=true    check machines, files and network for that run and stop\n"
        "  an interrupted run continues with the same command"
    )


def main() -> int:
    arguments = sys.argv[1:]
    if not arguments:
        print(usage(), file=sys.stderr)
        return errors.USAGE
    if "-h" in arguments or "--help" in arguments:
        print(usage())
        return 0
    show = "--cfg" in arguments
    overrides = [each for each in arguments if each not in ("--cfg", "--resolve") and not (show and each == "job")]
    flags = [each for each in overrides if each.startswith("-")]
    if flags:
        raise errors.UserError(f"unknown option {flags[0]}; settings are written key=value, python train.py --help")
    config = load_config(overrides, ROOT / "configs", ROOT / "recipes")
    if show:
        print(to_yaml(config), end="")
        return 0
    if config.plan != "false":
        from unify_agent.training.planning.command import show as show_plan

        return show_plan(config)
    if config.preflight:
        from unify_agent.training.preflight import preflight

        return preflight(config)
    if config.task == "vae":
        from unify_agent.training.vae_task import fit_vae

        return fit_vae(config)
    from unify_agent.training.trainer import fit

    return fit(config)


if __name__ == "__main__":
    sys.exit(errors.run(main))
