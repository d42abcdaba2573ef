"""Where a run's numbers and pictures go: metrics.jsonl always, Weights & Biases and TensorBoard where asked for."""

from __future__ import annotations

import json
import netrc
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from unify_agent import files
from unify_agent.errors import STOPPED, UserError
from unify_agent.training.config import Config
from unify_agent.training.metrics import read
from unify_agent.training.samples import Sample

WANDB_ID = "wandb_id"
"""File of the run folder with the run's id there."""


class RunLog:
    """Appends a row for every step. Rows after `done` finished steps are dropped: they are trained again.

    `ids`: ids of the run at services, as a checkpoint kept them.
    """

    def __init__(self, config: Config, done: int, ids: dict[str, str]) -> None:
        self.folder = Path(config.output)
        self.path = self.folder / "metrics.jsonl"
        kept = [each for each in read(self.path) if each["step"] <= done]
        files.write_text(self.path, "".join(json.dumps(each) + "\n" for each in kept))
        self.file = open(self.path, "ab", buffering=0)
        self.ids = dict(ids)
        self.wandb = self._start_wandb(config) if config.logging.wandb else None
        self.tensorboard = self._start_tensorboard(done) if config.logging.tensorboard else None

    def write(self, values: dict[str, Any]) -> None:
        """Raises UserError when the row cannot be written."""
        line = json.dumps(values).encode() + b"\n"
        try:
            if self.file.write(line) < len(line):
                raise OSError("the disk is full")
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror or error})", STOPPED) from None
        numbers = {key: value for key, value in values.items() if isinstance(value, int | float)}
        if self.wandb is not None:
            self.wandb.log(numbers, step=values["step"])
        if self.tensorboard is not None:
            for key, value in numbers.items():
                self.tensorboard.add_scalar(key, value, values["step"])

    def pictures(self, samples: Sequence[Sample], step: int) -> None:
        """Show the pictures drawn after `step`; call it before the step's row is written."""
        if self.wandb is not None:
            import wandb

            pictures = [wandb.Image(each.picture, caption=each.prompt) for each in samples]
            self.wandb.log({"samples": pictures}, step=step)
        if self.tensorboard is not None:
            for number, each in enumerate(samples, 1):
                self.tensorboard.add_image(f"samples/{number}", each.picture, step, dataformats="HWC")

    def close(self) -> None:
        self.file.close()
        if self.wandb is not None:
            self.wandb.finish()
        if self.tensorboard is not None:
            self.tensorboard.close()

    def _start_wandb(self, config: Config) -> Any:
        try:
            import wandb
        except ImportError:
            raise UserError("logging.wandb=true needs the package wandb: pip install wandb") from None
        file = self.folder / WANDB_ID
        if file.exists():
            self.ids["wandb"] = file.read_text(encoding="utf-8")
        elif "wandb" not in self.ids:
            self.ids["wandb"] = secrets.token_hex(4)
        files.write_text(file, self.ids["wandb"])
        online = "WANDB_MODE" in os.environ or has_wandb_key()
        try:
            return wandb.init(
                project=config.logging.project,
                dir=str(self.folder),
                id=self.ids["wandb"],
                resume="allow" if online else None,  # an offline run says its id when it is uploaded
                config=asdict(config),
                mode=None if online else "offline",
                settings=wandb.Settings(console="off"),
            )
        except wandb.errors.Error as error:
            raise UserError(f"logging.wandb=true: {error}; WANDB_MODE=offline keeps the run here for later") from None

    def _start_tensorboard(self, done: int) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "logging.tensorboard=true needs the extra: pip install 'unify-agent[tensorboard]'"
            ) from None
        return SummaryWriter(str(self.folder / "tensorboard"), purge_step=done + 1)


def has_wandb_key() -> bool:
    """Whether `wandb login`, or the environment, has left a key."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
