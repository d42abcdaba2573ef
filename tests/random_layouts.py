"""Hypothesis strategies for packs: every kind of segment, empty ones and dropped ones included, and trajectories in
every layout preset."""

import numpy as np
from datasets_tools import grammar, picture
from hypothesis import strategies as st

from unify_agent.interleave.batch import PackRules
from unify_agent.interleave.layout import PARTS, PRESETS, Exchange, Pixels, drop_conditions, lay_out
from unify_agent.interleave.segments import Document, Drawing, Gap, Picture, Segment, Text

RULES = PackRules(1, 2, 3, 4, latent_side=8, vit_side=8)
NAMES = ("a", "b", "c")
names = st.sampled_from((None, *NAMES))
pictures = st.tuples(st.integers(1, 2), st.integers(1, 2))
seen = st.none() | st.lists(st.sampled_from((*NAMES, "inner", "block")), max_size=3, unique=True).map(tuple)


@st.composite
def texts(draw: st.DrawFn) -> Text:
    length = draw(st.integers(0, 4))
    start = draw(st.integers(0, length + 1))
    stop = draw(st.integers(start + 1, length + 2))
    spans = {"inner": (start, stop)} if draw(st.booleans()) else {}
    return Text(tuple(range(10, 10 + length)), loss=draw(st.booleans()), name=draw(names), spans=spans)


@st.composite
def images(draw: st.DrawFn) -> Picture:
    rows, columns = draw(pictures)
    use = draw(st.sampled_from(("vit", "vae")))
    patch = 14 if use == "vit" else 16
    pixels = np.zeros((rows * patch, columns * patch, 3), np.uint8)
    return Picture(pixels, use, patch, draw(names), draw(st.sampled_from((None, "block"))))


@st.composite
def drawings(draw: st.DrawFn) -> Drawing:
    rows, columns = draw(pictures)
    pixels = np.zeros((rows * 16, columns * 16, 3), np.uint8)
    return Drawing(pixels, sees=draw(seen), copies=draw(st.integers(1, 3)))


segments: st.SearchStrategy[Segment] = st.one_of(texts(), images(), drawings(), st.just(Gap(2)))
documents = st.lists(segments, max_size=7).map(lambda parts: Document("x", tuple(parts)))
words = st.text("owl ", max_size=3)
SMALL = Pixels(lambda _: np.zeros((16, 16, 3), np.uint8), lambda _: np.zeros((14, 14, 3), np.uint8))


@st.composite
def trajectories(draw: st.DrawFn) -> list[Document]:
    """The documents of a trajectory in any order, with whatever condition dropout leaves of them."""
    preset = draw(st.sampled_from(PRESETS))
    turns = [Exchange(draw(words), grammar().encode(draw(words))) for _ in range(draw(st.integers(0, 1)))]
    answer = f"{draw(words)}<recaption>{draw(words)}</recaption>{draw(words)}"
    turns.append(Exchange(draw(words), grammar().encode(answer)))
    shown = [picture(0)] * draw(st.integers(0, 2))
    options = {"context": draw(st.sampled_from(("recaption", "request"))), "copies": draw(st.integers(1, 2))}
    rng, chance = np.random.default_rng(draw(st.integers(0, 9))), draw(st.sampled_from((0.0, 0.5, 1.0)))
    made = [
        lay_out(part, turns, shown, picture(0), grammar=grammar(), pixels=SMALL, preset=preset, part=part, **options)
        for part in PARTS[preset]
    ]
    return draw(
        st.permutations([drop_conditions(each, rng, preset, text=chance, vit=chance, vae=chance) for each in made])
    )


packs = st.lists(documents, max_size=3) | trajectories()
