"""A small world of invented shapes for tests of the evaluation: quick to build, no drawing of OpenMoji in it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from data.openmoji.corpus import write_corpus
from data.openmoji.entities import COMMON, Entity, to_json
from data.openmoji.pictures import Drawings, drawings_path
from data.openmoji.teacher import Task as TeacherTask
from data.openmoji.teacher import Teacher
from eval.openmoji.run import World
from eval.openmoji.tasks import Task
from unify_agent.agent.episode import Episode
from unify_agent.agent.scripted import ScriptedPolicy
from unify_agent.files import write_bytes, write_text

WORDS = "oak elm fir ash yew bay box may sow hop rue fig".split()


def drawing(number: int) -> np.ndarray:
    """A shape of its own colour and outline: uint8 [128, 128, 4]."""
    rng = np.random.default_rng(number)
    picture = Image.new("RGBA", (128, 128))
    draw = ImageDraw.Draw(picture)
    for _ in range(5):
        x, y = rng.integers(14, 70, 2)
        w, h = rng.integers(20, 44, 2)
        colour = (*map(int, rng.integers(0, 255, 3)), 255)
        (draw.ellipse if rng.random() < 0.5 else draw.rectangle)(
            (int(x), int(y), int(x + w), int(y + h)), fill=colour, outline=(0, 0, 0, 255), width=3
        )
    return np.asarray(picture)


KNOWN = 4


def entities(unseen: int = 8) -> list[Entity]:
    """`KNOWN` common things, further training things, `unseen` test entities and two for validation."""
    things = []
    for n, (code, (en, zh)) in enumerate(COMMON.items()):
        name, alias = {"en": en, "zh": zh}, {"en": f"Alias{n}", "zh": f"常{zh}"}
        things.append(Entity(code, name, alias, "tool", f"c{n}", "train", n < KNOWN, ("red",)))
    for n in range(unseen + 2):
        word, split = WORDS[n], "test" if n < unseen else "val"
        name = {"en": f"{word} wheel", "zh": f"轮子{'甲乙丙丁戊己庚辛壬癸子丑'[n]}"}
        alias = {"en": f"Vor{word}ax", "zh": f"沃{'东南西北金木水火土日月星'[n]}斯"}
        things.append(Entity(f"F{n:03X}", name, alias, "tool", f"t{n}", split, False, ("red",)))
    return sorted(things, key=lambda e: e.id)


def build(folder: Path, unseen: int = 8) -> World:
    """Write the world into `folder` and open it."""
    things = entities(unseen)
    pixels = np.stack([drawing(number) for number in range(len(things))])
    buffer = io.BytesIO()
    np.savez(buffer, hexcodes=np.array([e.id for e in things]), pixels=pixels)
    write_bytes(drawings_path(folder), buffer.getvalue())
    write_text(folder / "entities.json", to_json(things))
    write_corpus(folder, things, Drawings.load(drawings_path(folder)), workers=1)
    return World(folder)


def artist(world: World, tasks: dict[str, Task]) -> ScriptedPolicy:
    """Speaks as the teacher and draws the exact picture when it has a reference of the thing, else a blank ground."""

    def say(episode: Episode) -> str:
        task = tasks[episode.id]
        kind = "direct" if task.common else "search" if episode.options.tools else "closed_book"
        teacher = Teacher({episode.id: TeacherTask(world.by_id[task.entity], task.scene, task.language, kind)})
        try:
            return teacher.say(episode)
        except LookupError:
            return "<think>\nNothing found.\n</think>\n<recaption>\nA thing.\n</recaption>"

    def paint(episode: Episode) -> np.ndarray:
        task = tasks[episode.id]
        shown = [world.entity_of(each.hit.id) for each in episode.references]
        if shown:
            return world.compose(task.scene, shown[0])
        return np.full((64, 64, 3), 255, np.uint8)

    return ScriptedPolicy(say, paint, "artist")


def random_model(folder: Path, world: World) -> Path:
    """A whole model folder with weights that have learned nothing, and a tokenizer of the world's training texts."""
    import torch

    from data.openmoji.base import entities_of
    from data.openmoji.tokenizer import write_tokenizer
    from unify_agent.interleave.grammar import Grammar
    from unify_agent.interleave.transforms import Transform
    from unify_agent.model.bagel import Bagel
    from unify_agent.model.config import TINY
    from unify_agent.model.initialise import initialise
    from unify_agent.model.vae import FluxVae
    from unify_agent.model.weights import Description, save_folder

    write_tokenizer(world.entities, folder / "tokenizer")
    torch.manual_seed(0)
    made = {"entities": entities_of(world.folder), "tokenizer": Grammar.load(folder / "tokenizer").fingerprint}
    description = Description("paper", {"vae": Transform(64, 64, 16), "vit": Transform(56, 56, 14)}, "compact", made)
    with torch.no_grad():
        state = initialise(Bagel(TINY), 0).state_dict()
    return save_folder(folder / "model", state, TINY, FluxVae(TINY.vae), folder / "tokenizer", description)
