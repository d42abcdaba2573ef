"""Pictures from fixed prompts while a run trains, drawn by inference's own code with the averaged weights.

    RUN/samples/step_0000100/1.png ...    one for each prompt, from the same noise every time

The prompt is the picture's whole context, as when it is drawn directly. Where weights are sharded every rank draws the
same pictures: each forward pass gathers a block from all of them, so all must make the same calls, and a rank with
nothing to draw would have to wait anyway.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from unify_agent import files
from unify_agent.errors import UserError
from unify_agent.generation.drawing import grid_of_size
from unify_agent.generation.sampler import SamplerSettings
from unify_agent.generation.session import Session
from unify_agent.model.bagel import Bagel
from unify_agent.model.loading import DTYPES
from unify_agent.training.assembly import Assembly
from unify_agent.training.config import Config, SamplesConfig
from unify_agent.training.ema import Ema
from unify_agent.training.parallel import World
from unify_agent.training.parallelize import callable_in_parts

PROMPTS = "prompts.json"
"""File beside the pictures: their prompts, in order."""


@dataclass(frozen=True)
class Sample:
    """A drawn picture, uint8 [H, W, 3], and the file it is in."""

    prompt: str
    path: Path
    picture: np.ndarray


class Samples:
    """Draws after the steps that `config.logging.samples` names. Raises UserError for prompts or a size it cannot."""

    def __init__(self, config: Config, parts: Assembly, model: Bagel, ema: Ema, world: World) -> None:
        self.config, self.options = config, config.logging.samples
        self.parts, self.model, self.ema, self.world = parts, model, ema, world
        self.folder = Path(config.output) / "samples"
        side = config.data.vae_transform.max
        self.size: tuple[int, int] = self.options.size or (side, side)
        self.prompts: list[str] = []
        if self.options.every is not None:
            self.prompts = read_prompts(self.options)
            grid_of_size(parts.start.shape, *self.size)

    def due(self, done: int) -> bool:
        """Whether to draw after `done` steps."""
        every = self.options.every
        return every is not None and (done % every == 0 or done == self.config.steps)

    def draw(self, done: int) -> list[Sample]:
        """A picture of each prompt after `done` steps, written by the first rank. A collective."""
        numbers = range(len(self.prompts))
        seeds = [self.options.seed + number for number in numbers]
        grammar, paper = self.parts.grammar, self.config.layout == "paper"
        settings = SamplerSettings(steps=self.options.steps, text_scale=self.options.text_scale)
        dtype = DTYPES[self.config.parallel.dtype]
        self.model.eval()
        try:
            with self.ema.applied(), callable_in_parts(self.model):
                rows = len(self.prompts)
                session = Session(
                    self.model, self.parts.vae, grammar, self.parts.pixels, rows=rows, seeds=seeds, dtype=dtype
                )
                session.add_text(numbers, [grammar.encode(prompt) for prompt in self.prompts])
                pictures = session.draw(numbers, [None] * rows, [self.size] * rows, settings, seeds, keep_rope=paper)
        finally:
            self.model.train()
        folder = self.folder / f"step_{done:07d}"
        found = [
            Sample(prompt, folder / f"{number}.png", picture)
            for number, (prompt, picture) in enumerate(zip(self.prompts, pictures, strict=True), 1)
        ]
        if self.world.main:
            files.write_json(folder / PROMPTS, self.prompts)
            for sample in found:
                buffer = io.BytesIO()
                Image.fromarray(sample.picture).save(buffer, "PNG")
                files.write_bytes(sample.path, buffer.getvalue())
        return found


def read_prompts(options: SamplesConfig) -> list[str]:
    """The prompts of the configuration, then those of its file. Raises UserError when there are none."""
    prompts = list(options.prompts)
    if options.file is not None:
        try:
            lines = Path(options.file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"logging.samples.file={options.file}: cannot be read ({error})") from None
        prompts += [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise UserError(f"logging.samples.file={options.file}: holds no prompt; write one a line")
    return prompts
