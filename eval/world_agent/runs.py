"""A run's folder: who played what under which rules, and the records that scores and replays are made from.

run.json          case, tier, player, settings; digests of engine, case and prompts; the served model
case/             the case's files as they were played
turns.jsonl       what the player said, turn by turn
log.jsonl         the engine's log
snapshots/        the frozen state of each round
judgments.jsonl   verdicts as the judge gave them
score.json        made from the above alone
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unify_agent.errors import UserError
from unify_agent.files import digest, read_json, write_bytes, write_json

HERE = Path(__file__).parent
FORMAT = 2


def source_digest(*patterns: str) -> str:
    """Digest of the package's own files that match, by name and content."""
    found = sorted({path for pattern in patterns for path in HERE.glob(pattern)})
    return digest(*(part for path in found for part in (path.relative_to(HERE).as_posix(), path)))


@dataclass
class RunFolder:
    """One run on disk. `identity`: everything that makes it this run; `served` is learnt while it runs."""

    path: Path
    identity: dict[str, Any]

    def open(self, case_files: list[Path]) -> None:
        """Begin the run, or go on with it. Raises UserError when the folder holds another run."""
        file = self.path / "run.json"
        if file.is_file():
            there = read_json(file, "run")
            served = there.pop("served", None)
            if there != self.identity:
                keys = sorted(key for key in {**there, **self.identity} if there.get(key) != self.identity.get(key))
                raise UserError(f"{file}: holds another run (other {', '.join(keys)}); choose another --out")
            self.served = served
            return
        for each in case_files:
            write_bytes(self.path / "case" / each.name, each.read_bytes())
        self.served = None
        write_json(file, {**self.identity, "served": None})

    def serve(self, model: str) -> None:
        """Note the served model. Raises UserError when it is another than before."""
        if not model or model == self.served:
            return
        if self.served is not None:
            raise UserError(
                f"{self.path}: the server now answers as {model!r}, before as {self.served!r}; begin a new run"
            )
        self.served = model
        write_json(self.path / "run.json", {**self.identity, "served": model})


def read_run(path: Path) -> dict[str, Any]:
    """`run.json` of a folder. Raises UserError."""
    run = read_json(path / "run.json", "run (give the folder that holds run.json)")
    if not isinstance(run, dict) or run.get("format") != FORMAT or run.get("track") not in ("maintain", "deduce"):
        raise UserError(f"{path / 'run.json'}: not a run of this benchmark, format {FORMAT}")
    return run


def case_file(path: Path, run: dict[str, Any]) -> Path:
    """The case's file as it was played."""
    language = run["language"]
    translated = path / "case" / f"{run['case']}.{language}.yaml"
    return translated if translated.is_file() else path / "case" / f"{run['case']}.yaml"


def find_runs(paths: list[Path]) -> list[Path]:
    """Run folders at or below these. Raises UserError when there is none."""
    found = sorted({file.parent for path in paths for file in path.glob("**/run.json")})
    if not found:
        raise UserError(f"{', '.join(map(str, paths))}: no run here (no run.json)")
    return found
