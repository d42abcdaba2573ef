"""Layout presets: from a trajectory to the documents that the model is trained on, and asked for.

All presets run through the turns: what the user side says carries no loss, what the assistant says does. The
references stand after the assistant turn that found them, before the last user turn. They differ in what the
picture is drawn from:

* `paper` (Appendix B): both references, VAE and ViT tokens alike, form one full block; the assistant's own
  recaption between its tags is the context. Drawn from the history cache, restricted to these.
* `released` (the public release): each picture block is separate, and the recaption is repeated as context text.
* `isolated`: references as in `paper`, repeated with the recaption as a document of their own, which may lie in
  another pack. Nothing of the search reaches the picture, not even through keys that have seen it. Drawn from a
  fresh context that holds exactly that document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from PIL import Image

from unify_agent.interleave.grammar import Grammar
from unify_agent.interleave.segments import Document, Drawing, Gap, Picture, Segment, Text, Unusable

Preset = Literal["paper", "released", "isolated"]
Part = Literal["whole", "agent", "generation"]
PARTS: dict[Preset, tuple[Part, ...]] = {
    "paper": ("whole",),
    "released": ("whole",),
    "isolated": ("agent", "generation"),
}
"""The documents that a preset makes of one trajectory."""
PRESETS: tuple[Preset, ...] = tuple(PARTS)
REFERENCES = "references"
"""Block name of the references, except in preset `released`."""


@dataclass(frozen=True)
class Pixels:
    """How pictures enter: a transform for each tower, PIL picture -> uint8 [H, W, 3]."""

    vae: Callable[[Image.Image], np.ndarray]
    vit: Callable[[Image.Image], np.ndarray]
    vae_patch: int = 16
    vit_patch: int = 14

    def seen(self, picture: Image.Image) -> Picture:
        """A picture that is only looked at: its ViT block."""
        return Picture(self.vit(picture), "vit", self.vit_patch)

    def reference(self, picture: Image.Image, number: int, joint: bool) -> tuple[Picture, Picture]:
        """The VAE block and the ViT block of reference `number` (from 1), in that order."""
        block = REFERENCES if joint else None
        return (
            Picture(self.vae(picture), "vae", self.vae_patch, f"reference_{number}.vae", block),
            Picture(self.vit(picture), "vit", self.vit_patch, f"reference_{number}.vit", block),
        )


@dataclass(frozen=True)
class Exchange:
    """One turn: the text of the user side as a record stores it, and the ids of the answer."""

    input: str
    response: tuple[int, ...]


def user_text(text: str, grammar: Grammar, name: str | None = None) -> Text:
    """A user turn: no loss, what lies inside the observation is untrusted."""
    return Text(grammar.encode_user(text), role="user", name=name)


def assistant_text(ids: Sequence[int], grammar: Grammar, final: bool) -> Text:
    """An assistant turn; the final one names its recaption, tags included."""
    spans = {}
    if final:
        found = grammar.between(ids, "recaption")
        if found is None:
            raise Unusable("no complete recaption in the last turn")
        spans = {"recaption": (found[0] + 1, found[1] + 1)}
    return Text(tuple(ids), loss=True, role="recaption" if final else "call", spans=spans)


def lay_out(
    name: str,
    exchanges: Sequence[Exchange],
    references: Sequence[Image.Image],
    target: Image.Image | None,
    *,
    grammar: Grammar,
    pixels: Pixels,
    preset: Preset = "paper",
    part: Part = "whole",
    context: Literal["recaption", "request"] = "recaption",
    copies: int = 1,
) -> Document:
    """One document of a trajectory, `name` being its id; `part`: which of the preset's.

    `target` may be None for the part `agent`, which draws nothing. `context="request"` trains the drawing "without
    recaption": it sees the first user turn instead. `copies` noises the target that many times over one context.
    Raises `Unusable` when something is missing.
    """
    if part not in PARTS[preset]:
        raise ValueError(f"layout {preset} makes no document {part!r} of a trajectory")
    if not exchanges:
        raise Unusable("no turns")
    shown: list[Segment] = []
    for number, picture in enumerate(references, 1):
        shown += pixels.reference(picture, number, joint=preset != "released")
    last = assistant_text(exchanges[-1].response, grammar, final=True)
    start, stop = last.spans["recaption"]
    recaption = Text(last.ids[start : stop - 2], role="context", name="recaption")
    segments: list[Segment]
    if part == "generation":
        text = recaption if context == "recaption" else user_text(exchanges[0].input, grammar, name="request")
        segments = [*shown, text]
    else:
        segments = []
        for number, exchange in enumerate(exchanges):
            final = number == len(exchanges) - 1
            if final:
                segments += shown
            segments.append(user_text(exchange.input, grammar, name="request" if number == 0 else None))
            segments.append(last if final else assistant_text(exchange.response, grammar, final=False))
        if preset == "released" and context == "recaption":
            segments[-1:] = [replace(last, spans={}), recaption]
    if part != "agent":
        assert target is not None
        names = [segment.name for segment in shown if isinstance(segment, Picture) and segment.name]
        segments.append(Drawing(pixels.vae(target), pixels.vae_patch, sees=(context, *names), copies=copies))
    return Document(name, tuple(segments))


def drop_conditions(
    document: Document, rng: np.random.Generator, preset: Preset, *, text: float, vit: float, vae: float
) -> Document:
    """Condition dropout for classifier-free guidance, each context item on its own (BAGEL: .1, .3, .3).

    In `released` a dropped item is removed; a removed picture still uses up its rope id, as in BAGEL. Otherwise it is
    hidden from the drawing only, so a recaption is never trained on pictures that are gone, and keeps its rope ids.
    """
    chance = {"vit": vit, "vae": vae}
    drawing = next((s for s in document.segments if isinstance(s, Drawing)), None)
    if drawing is None or drawing.sees is None:
        return document
    gone = set()
    for name in drawing.sees:
        if rng.random() < chance.get(name.rpartition(".")[2], text):
            gone.add(name)
    kept = tuple(name for name in drawing.sees if name not in gone)
    segments: list[Segment] = []
    for segment in document.segments:
        removed = preset == "released" and isinstance(segment, Text | Picture) and segment.name in gone
        if segment is drawing:
            segments.append(replace(drawing, sees=kept))
        elif removed and isinstance(segment, Picture):
            segments.append(Gap())
        elif not (removed and isinstance(segment, Text) and segment.role == "context"):
            segments.append(segment)
    return replace(document, segments=tuple(segments))
