"""What the tiny base model and its autoencoder are trained on: training entities only, made up as training asks.

Tasks of `PretrainSource` (`shares` sum to 1):

* `reference`: one or two reference pictures, a recaption that names them, one scene picture. The end of a
  trajectory, laid out by the same preset, without the search before it. Names are random, so that the picture has to
  come from the references.
* `common`: a common thing by its name, without references.
* `caption`: a picture as the ViT sees it, and the sentence that describes it.
* `copying`: text only, see `copying.py`.

In layout `isolated` a sample with a request is two: one that is asked and recaptions, one that draws.

No agent trajectory: nothing here thinks, calls a tool or reads an observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from data.openmoji import copying
from data.openmoji.corpus import clean
from data.openmoji.entities import SEED, Entity, load_entities
from data.openmoji.pictures import Drawings, cropped, drawings_path
from data.openmoji.scenes import BACKGROUNDS, Composer, Scene, paste, sprite
from data.openmoji.words import caption, recaption, request
from unify_agent.datasets.sources import Source, SourceContext
from unify_agent.errors import UserError
from unify_agent.files import digest
from unify_agent.interleave.grammar import Grammar
from unify_agent.interleave.layout import PARTS, Part, Preset, assistant_text
from unify_agent.interleave.segments import Document, Drawing, Gap, Picture, Segment, Text

SHARES = {"reference": 0.46, "common": 0.08, "caption": 0.06, "copying": 0.4}
COPIES = {"reference": 6, "common": 4}
WORLD = "outputs/world"
VERSION = 3

_LONGEST = {"asked": 42, "recaption": 66, "caption": 60}
"""The most ids of a text; whatever turns out longer is drawn anew."""
_LONGEST_COPIED = {
    "request": (42, 32), "pages": (168, 36), "repeat": (52, 52), "rewrite": (42, 54), "echo": (72, 72),
}  # fmt: skip
"""The same of (given, answer) in copying."""


@dataclass(frozen=True)
class _Kind:
    """What an index fixes of its sample."""

    task: str
    copying: str = ""
    references: int = 0
    asked: bool = False
    part: Part = "whole"


class PretrainSource(Source):
    """Samples by (seed, index, chance): the index fixes the task, the generator everything else.

    `size`: samples of an epoch; `shares`: of each task (a missing task gets none); `copies`: noised copies of a
    drawing for `reference` and `common`; `known`: chance that a reference sample uses a training entity's own name;
    `asked`: chance that a request stands before a drawing's recaption, which is then trained; `hidden`: chance that the
    references are left out, their rope ids kept, as guidance's second context has it.
    """

    def __init__(
        self,
        context: SourceContext,
        path: str | None = None,
        name: str = "pretrain",
        size: int = 20000,
        seed: int = 0,
        shares: Mapping[str, float] | None = None,
        copies: Mapping[str, int] | None = None,
        known: float = 0.5,
        asked: float = 0.4,
        hidden: float = 0.0,
    ) -> None:
        self.name, self.context, self.size, self.seed = name, context, size, seed
        self.known, self.asked, self.hidden = known, asked, hidden
        self.shares, self.copies = dict(shares or SHARES), COPIES | dict(copies or {})
        unknown = (set(self.shares) - set(SHARES)) | (set(self.copies) - set(COPIES))
        if unknown:
            raise UserError(f"{name}: no task {sorted(unknown)[0]!r}; tasks: {', '.join(SHARES)}")
        if abs(sum(self.shares.values()) - 1) > 1e-6:
            raise UserError(f"{name}: shares sum to {sum(self.shares.values()):g}, not to 1")
        world = Path(path or WORLD)
        self.entities = load_entities(world, "train")
        self.common = [e for e in self.entities if e.common]
        held_out = [e for e in load_entities(world) if e.split != "train"]
        self.names = copying.Names(self.entities, held_out)
        self.drawings = Drawings.load(drawings_path(world))
        self._compose = Composer(self.drawings)
        self._kinds = self._deal()
        self._world = digest(world / "entities.json")[:16]

    def _deal(self) -> list[_Kind]:
        """What every index is: shares are exact, the order is mixed."""
        kinds: list[_Kind] = []
        for task, share in self.shares.items():
            count = round(share * self.size)
            if task == "copying":
                for sub, part in copying.SHARES.items():
                    kinds += [_Kind(task, sub)] * round(part * count)
            else:
                asked = round(self.asked * count) if task in COPIES else 0
                for number in range(count):
                    references = (1 if number % 10 < 3 else 2) if task == "reference" else 0
                    kinds.append(_Kind(task, references=references, asked=number < asked))
        kinds = (kinds + [kinds[-1]] * self.size)[: self.size]
        order = np.random.Generator(np.random.Philox(key=[self.seed, SEED])).permutation(len(kinds))
        return [replace(kinds[k], part=part) for k in order for part in self._parts(kinds[k])]

    def _parts(self, kind: _Kind) -> tuple[Part, ...]:
        """The documents of a sample. Without a request there is no more to it than the one that draws."""
        parts = PARTS[self.context.preset] if kind.task in COPIES else ("whole",)
        return parts if kind.asked else parts[-1:]

    # ---- what packing asks

    @property
    def fingerprint(self) -> str:
        chances = (self.known, self.asked, self.hidden)
        parts = (self.size, self.seed, self.shares, self.copies, chances, _LONGEST | _LONGEST_COPIED, VERSION)
        return digest(self.context.fingerprint, self._world, repr(parts))[:16]

    def ids(self) -> list[str]:
        return [f"{kind.task}_{index}" for index, kind in enumerate(self._kinds)]

    @cached_property
    def _picture_slots(self) -> tuple[int, int]:
        vae, vit = self.context.pixels.reference(Image.new("RGB", (64, 64)), 1, joint=True)
        return vae.slots, vit.slots

    def slots(self, index: int) -> int:
        kind, (vae, vit) = self._kinds[index], self._picture_slots
        if kind.task == "copying":
            return sum(_LONGEST_COPIED[kind.copying]) + 4
        if kind.task == "caption":
            return vit + _LONGEST["caption"] + 2
        recaptions = 2 if self.context.preset == "released" and kind.asked else 1
        asked = kind.asked and kind.part != "generation"
        texts = recaptions * (_LONGEST["recaption"] + 2) + asked * (_LONGEST["asked"] + 2)
        drawings = self.copies[kind.task] if kind.part != "agent" else 0
        return texts + kind.references * (vae + vit) + drawings * vae

    def pairs(self, index: int) -> int:
        slots, kind = self.slots(index), self._kinds[index]
        if kind.task not in self.copies or kind.part == "agent":
            return slots * (slots + 1) // 2
        vae = self._picture_slots[0]
        past = slots - self.copies[kind.task] * vae
        return past * (past + 1) // 2 + self.copies[kind.task] * vae * (past + vae)

    # ---- building

    def document(self, index: int, rng: np.random.Generator) -> Document:
        """The sample at `index`; the same generator state gives the same document."""
        kind = self._kinds[index]
        build = {"caption": self._captioned, "copying": self._copied}.get(kind.task, self._drawn)
        return Document(f"{kind.task}_{index}", tuple(build(kind, rng)))

    def _ids(self, text: str) -> tuple[int, ...]:
        return self.context.grammar.encode_untrusted(text)

    def _copied(self, kind: _Kind, rng: np.random.Generator) -> list[Segment]:
        most_given, most_answer = _LONGEST_COPIED[kind.copying]
        while True:
            given, answer = map(self._ids, copying.sample(kind.copying, self.names, rng))
            if len(given) <= most_given and len(answer) <= most_answer:
                return [Text(given, role="user"), Text(answer, loss=True, role="copying")]

    def _captioned(self, kind: _Kind, rng: np.random.Generator) -> list[Segment]:
        pixels = self.context.pixels
        while True:
            entity, language, scene = self._thing(kind, rng), _language(rng), Scene.sample(rng)
            ids = self._ids(caption(scene, entity.name[language], language))
            if len(ids) <= _LONGEST["caption"]:
                seen = Image.fromarray(self._compose(scene, entity.id))
                picture = Picture(pixels.vit(seen), "vit", pixels.vit_patch)
                return [picture, Text(ids, loss=True, role="caption")]

    def _drawn(self, kind: _Kind, rng: np.random.Generator) -> list[Segment]:
        grammar, pixels, preset = self.context.grammar, self.context.pixels, self.context.preset
        while True:
            entity, language = self._thing(kind, rng), _language(rng)
            scene = Scene.sample(rng, avoid=entity.id)
            name = entity.name[language] if kind.task == "common" else self._name(entity, language, rng)
            asked = self._ids(request(scene, name, language, rng))
            ids = _tagged(self._ids(recaption(scene, name, kind.references, language)), grammar)
            if len(asked) <= _LONGEST["asked"] and len(ids) <= _LONGEST["recaption"]:
                break
        segments: list[Segment] = [Text(asked, role="user")] if kind.asked and kind.part != "generation" else []
        hidden = rng.random() < self.hidden and kind.part != "agent"
        for number in range(1, kind.references + 1):
            shown = Image.fromarray(reference_picture(self.drawings[entity.id], number, rng))
            pair = pixels.reference(shown, number, joint=preset != "released")
            segments += [Gap() for _ in pair] if hidden else pair
        segments += _recaption_segments(ids, grammar, preset, kind)
        if kind.part == "agent":
            return segments
        named = [segment.name for segment in segments if isinstance(segment, Picture) and segment.name]
        target = pixels.vae(Image.fromarray(self._compose(scene, entity.id)))
        sees = ("recaption", *named)
        return [*segments, Drawing(target, pixels.vae_patch, sees=sees, copies=self.copies[kind.task])]

    def _thing(self, kind: _Kind, rng: np.random.Generator) -> Entity:
        common = kind.task == "common" or (kind.task == "caption" and rng.random() < 0.5)
        group = self.common if common else self.entities
        return group[int(rng.integers(len(group)))]

    def _name(self, entity: Entity, language: str, rng: np.random.Generator) -> str:
        if rng.random() < self.known:
            return (entity.name if rng.random() < 0.8 else entity.alias)[language]
        return self.names.pick(language, rng, known=0.0)


def _language(rng: np.random.Generator) -> str:
    return "en" if rng.random() < 0.5 else "zh"


def _tagged(ids: tuple[int, ...], grammar: Grammar) -> tuple[int, ...]:
    line = grammar.encode("\n")
    return (grammar.tag_ids["<recaption>"], *line, *ids, *line, grammar.tag_ids["</recaption>"])


def _recaption_segments(tagged: tuple[int, ...], grammar: Grammar, preset: Preset, kind: _Kind) -> list[Segment]:
    """The recaption as the documents of a trajectory hold it; see `layout.lay_out`."""
    whole = assistant_text(tagged, grammar, final=True)
    if preset == "paper":
        return [Text(whole.ids, loss=kind.asked, role="recaption", spans=whole.spans)]
    start, stop = whole.spans["recaption"]
    context = Text(whole.ids[start : stop - 2], role="context", name="recaption")
    trained = Text(whole.ids, loss=True, role="recaption")
    if kind.part == "agent":
        return [trained]
    return [trained, context] if kind.asked and kind.part == "whole" else [context]


def reference_picture(rgba: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    """One of the two good candidates that the index has: uint8 [128, 128, 3]."""
    longest, background = ((52, (255, 255, 255)), (44, (236, 236, 236)))[(number + int(rng.integers(2))) % 2]
    return clean(rgba, longest, background)


# ---------------------------------------------------------------- the autoencoder's pictures


class Pictures:
    """Pictures for the autoencoder: `batch(step, size)` -> uint8 [size, 64, 64, 3], a pure function of the step.

    Half are scenes, a quarter reference pictures, a quarter drawings that were turned, mirrored, squeezed,
    recoloured and crowded, so that drawings it has never seen fare well too. Step -1 gives scenes and references
    of *validation* entities, which are never trained on; test entities never appear.
    """

    def __init__(self, world: str = WORLD, seed: int = 0, side: int = 64) -> None:
        self.seed, self.side = seed, side
        self.drawings = Drawings.load(drawings_path(world))
        self.train = [e.id for e in load_entities(world, "train")]
        self.held_out = [e.id for e in load_entities(world, "val")]
        self._compose = Composer(self.drawings, side)
        self._alone: dict[tuple[str, int], np.ndarray] = {}

    def _reference(self, code: str, rng: np.random.Generator) -> np.ndarray:
        longest, tone = int(rng.choice((40, 44, 48, 52, 56))), int(rng.choice((255, 236, int(rng.integers(225, 256)))))
        key = (code, longest * self.side // 64)
        if key not in self._alone:
            self._alone[key] = sprite(self.drawings[code], key[1])
        canvas = np.full((self.side, self.side, 3), tone, np.uint8)
        paste(canvas, self._alone[key], (self.side / 2, self.side / 2))
        return canvas

    def batch(self, step: int, size: int) -> np.ndarray:
        rng = np.random.Generator(np.random.Philox(key=[self.seed, SEED], counter=[0, 0, 0, step % 2**63]))
        codes = self.held_out if step < 0 else self.train
        out = np.empty((size, self.side, self.side, 3), np.uint8)
        for row in range(size):
            code, kind = codes[int(rng.integers(len(codes)))], rng.random()
            if kind < 0.5 or (step < 0 and kind < 0.7):
                out[row] = self._compose(Scene.sample(rng), code)
            elif kind < 0.75 or step < 0:
                out[row] = self._reference(code, rng)
            else:
                out[row] = self._varied(code, rng)
        return out

    def _varied(self, code: str, rng: np.random.Generator) -> np.ndarray:
        canvas = np.empty((self.side, self.side, 3), np.uint8)
        palette = list(BACKGROUNDS.values())
        canvas[...] = palette[int(rng.integers(len(palette)))] if rng.random() < 0.5 else rng.integers(0, 256, 3)
        for number in range(1 + int(rng.integers(3))):
            if number:
                code = self.train[int(rng.integers(len(self.train)))]
            rgba = _altered(self.drawings[code], rng)
            piece = sprite(rgba, int(rng.integers(14, 52)), int(rng.integers(-30, 31)), self.side - 2)
            height, width = piece.shape[:2]
            x = width / 2 + rng.random() * (self.side - width)
            y = height / 2 + rng.random() * (self.side - height)
            paste(canvas, piece, (min(x, self.side - width / 2), min(y, self.side - height / 2)))
        return canvas


def _altered(rgba: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mirrored, quarter-turned, squeezed, with other colours: uint8 [h, w, 4]."""
    part = cropped(rgba)
    if rng.random() < 0.5:
        part = part[:, ::-1]
    part = np.rot90(part, int(rng.integers(4)))
    if rng.random() < 0.3:
        step = 2 if min(part.shape[:2]) > 40 else 1
        part = part[::step] if rng.random() < 0.5 else part[:, ::step]
    if rng.random() < 0.5:
        part = np.concatenate([part[..., rng.permutation(3)], part[..., 3:]], axis=-1)
    return np.ascontiguousarray(part)
