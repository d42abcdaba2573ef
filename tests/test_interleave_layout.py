"""From a trajectory to what is trained: who stands where, what the picture sees, what dropout takes away."""

import numpy as np
import pytest
from datasets_tools import grammar, picture, pixels

from unify_agent.interleave.batch import generator
from unify_agent.interleave.layout import PARTS, PRESETS, Exchange, Preset, drop_conditions, lay_out
from unify_agent.interleave.segments import Document, Drawing, Gap, Picture, Text, Unusable
from unify_agent.interleave.visibility import dense_mask, document_spans
from unify_agent.training.config import LAYOUTS

ANSWER = "<think>so</think><recaption>an owl</recaption> end"


def made(preset: Preset = "paper", references: int = 2, **options: object) -> Document:
    """The document of a trajectory that draws, unless `part` names the other one."""
    exchanges = [
        Exchange("draw an owl", grammar().encode("look")),
        Exchange("write", grammar().encode(ANSWER)),
    ]
    shown = [picture(number) for number in range(references)]
    options = {"part": PARTS[preset][-1]} | options
    return lay_out(
        "x", exchanges, shown, picture(9), grammar=grammar(), pixels=pixels(), preset=preset, **options
    )


def drawing(document: Document) -> Drawing:
    return next(segment for segment in document.segments if isinstance(segment, Drawing))


def seen_text(document: Document) -> str:
    """The text that the first row of the drawing sees."""
    assert document.segments[-1] is drawing(document)
    spans, ids, places = document_spans(document), [], []
    start = 0
    for segment in document.segments:
        if isinstance(segment, Text):
            ids += [grammar().bos, *segment.ids, grammar().eos]
            places += range(start, start + segment.slots)
        start += segment.slots
    row = dense_mask(spans)[next(span.start for span in spans if span.mode == "noise")]
    return grammar().decode([token for token, place in zip(ids, places, strict=True) if row[place]])


@pytest.mark.parametrize("preset", PRESETS)
def test_references_stand_before_the_last_user_turn(preset: Preset) -> None:
    segments = made(preset, part=PARTS[preset][0]).segments
    kinds = [s.use if isinstance(s, Picture) else type(s).__name__ for s in segments]
    extra = ["Text"] if preset == "released" else []
    end = [] if preset == "isolated" else ["Drawing"]
    assert kinds == ["Text", "Text", "vae", "vit", "vae", "vit", "Text", "Text", *extra, *end]
    assert [s.loss for s in segments if isinstance(s, Text)] == [
        False,
        True,
        False,
        True,
        *(False for _ in extra),
    ]


def test_paper_draws_from_the_recaption_between_its_tags() -> None:
    assert seen_text(made("paper")) == "<recaption>an owl</recaption>"


def test_released_draws_from_a_copy_of_the_recaption_without_tags_of_the_answer() -> None:
    document = made("released")
    copied = document.segments[-2]
    assert isinstance(copied, Text) and not copied.loss and copied.role == "context"
    assert seen_text(document) == grammar().decode([grammar().bos, *copied.ids, grammar().eos])
    assert grammar().decode(copied.ids) == "an owl"


@pytest.mark.parametrize("context", ["recaption", "request"])
def test_isolated_repeats_what_is_drawn_from_as_a_document_of_its_own(context: str) -> None:
    agent, document = made("isolated", part="agent", context=context), made("isolated", context=context)
    assert not any(isinstance(s, Drawing) for s in agent.segments)
    assert not any(isinstance(s, Text) and s.loss for s in document.segments)
    *shown, text, drawn = document.segments
    repeated = [s for s in agent.segments if isinstance(s, Picture)]
    for left, right in zip(shown, repeated, strict=True):
        assert isinstance(left, Picture) and (left.use, left.name, left.block) == (right.use, right.name, right.block)
        np.testing.assert_array_equal(left.pixels, right.pixels)
    assert isinstance(text, Text) and isinstance(drawn, Drawing)
    assert grammar().decode(text.ids) == {"recaption": "an owl", "request": "draw an owl"}[context]
    assert dense_mask(document_spans(document))[-drawn.slots :].all()


def test_a_direct_drawing_has_its_generation_document_too() -> None:
    text, drawn = made("isolated", references=0).segments
    assert isinstance(text, Text) and grammar().decode(text.ids) == "an owl" and isinstance(drawn, Drawing)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_document_that_a_preset_does_not_make_is_refused(preset: Preset) -> None:
    with pytest.raises(ValueError, match="makes no document"):
        made(preset, part="whole" if preset == "isolated" else "agent")


def test_every_layout_of_a_recipe_is_a_preset() -> None:
    assert LAYOUTS == PRESETS


@pytest.mark.parametrize("preset", PRESETS)
def test_a_picture_without_recaption_is_drawn_from_the_request(preset: Preset) -> None:
    document = made(preset, context="request")
    g = grammar()
    assert seen_text(document) == g.decode([g.bos, *g.encode("draw an owl"), g.eos])


@pytest.mark.parametrize(("preset", "blocks"), [("paper", 1), ("released", 4), ("isolated", 1)])
def test_references_are_one_full_block_but_in_released(preset: Preset, blocks: int) -> None:
    spans = document_spans(made(preset))
    assert sum(span.mode == "full" for span in spans) == blocks


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("references", [0, 1, 2])
def test_a_drawing_sees_every_reference_there_is(preset: Preset, references: int) -> None:
    document = made(preset, references)
    mask = dense_mask(document_spans(document))
    start, row = 0, mask[document.slots - drawing(document).slots]
    for segment in document.segments:
        if isinstance(segment, Picture):
            assert row[start : start + segment.slots].all()
        start += segment.slots
    assert sum(isinstance(segment, Picture) for segment in document.segments) == 2 * references


def test_copies_lengthen_the_drawing_only() -> None:
    one, three = made(), made(copies=3)
    assert three.slots - one.slots == 2 * drawing(one).slots
    assert [s.slots for s in three.segments[:-1]] == [s.slots for s in one.segments[:-1]]


@pytest.mark.parametrize("answer", ["", "<recaption>cut", "no tags at all"])
def test_a_last_turn_without_a_complete_recaption_is_unusable(answer: str) -> None:
    with pytest.raises(Unusable, match="no complete recaption"):
        lay_out(
            "x",
            [Exchange("draw", grammar().encode(answer))],
            [],
            picture(0),
            grammar=grammar(),
            pixels=pixels(),
        )


def test_a_record_without_turns_is_unusable() -> None:
    with pytest.raises(Unusable, match="no turns"):
        lay_out("x", [], [], picture(0), grammar=grammar(), pixels=pixels())


def test_dropout_in_paper_hides_from_the_drawing_and_removes_nothing() -> None:
    document = made("paper")
    dropped = drop_conditions(document, np.random.default_rng(0), "paper", text=1, vit=0, vae=1)
    assert [type(s) for s in dropped.segments] == [type(s) for s in document.segments]
    assert drawing(dropped).sees == ("reference_1.vit", "reference_2.vit")
    assert seen_text(dropped) == ""


def test_dropout_in_isolated_hides_from_the_drawing_and_keeps_every_rope_id() -> None:
    document, agent = made("isolated"), made("isolated", part="agent")
    dropped = drop_conditions(document, np.random.default_rng(0), "isolated", text=1, vit=1, vae=0)
    assert [type(s) for s in dropped.segments] == [type(s) for s in document.segments]
    assert drawing(dropped).sees == ("reference_1.vae", "reference_2.vae") and seen_text(dropped) == ""
    assert drop_conditions(agent, np.random.default_rng(0), "isolated", text=1, vit=1, vae=1) is agent


def test_a_dropped_caption_is_removed_in_released_only() -> None:
    caption, target = Text((5,), role="context", name="caption"), np.zeros((16, 16, 3), np.uint8)
    pair = Document("t", (caption, Drawing(target, sees=("caption",))))
    for preset in PRESETS:
        dropped = drop_conditions(pair, np.random.default_rng(0), preset, text=1, vit=0, vae=0)
        assert drawing(dropped).sees == () and len(dropped.segments) == (1 if preset == "released" else 2)


def test_dropout_in_released_removes_and_keeps_the_rope_ids_of_pictures() -> None:
    document = made("released")
    dropped = drop_conditions(document, np.random.default_rng(0), "released", text=1, vit=1, vae=0)
    assert sum(isinstance(s, Gap) for s in dropped.segments) == 2
    assert len(dropped.segments) == len(document.segments) - 1
    assert drawing(dropped).sees == ("reference_1.vae", "reference_2.vae")


def test_dropout_takes_each_item_with_its_own_probability() -> None:
    document = made("paper")
    counts = dict.fromkeys(drawing(document).sees, 0)
    for number in range(400):
        rng = generator(0, 0, str(number))
        dropped = drop_conditions(document, rng, "paper", text=0.1, vit=0.3, vae=0.5)
        for name in set(drawing(document).sees) - set(drawing(dropped).sees):
            counts[name] += 1
    for name, count in counts.items():
        expected = {"vit": 0.3, "vae": 0.5}.get(name.rpartition(".")[2], 0.1)
        assert abs(count / 400 - expected) < 0.1, name


def test_a_document_that_sees_its_whole_past_has_nothing_to_drop() -> None:
    document = Document("t", (Text((5,)), Drawing(np.zeros((16, 16, 3), np.uint8))))
    assert drop_conditions(document, np.random.default_rng(0), "paper", text=1, vit=1, vae=1) is document
