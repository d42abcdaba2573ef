"""From a trajectory to what is trained: who stands where, what the picture sees, what dropout takes away."""

import numpy as np
import pytest
from datasets_tools import grammar, picture, pixels

from unify_agent.interleave.batch import generator
from unify_agent.interleave.layout import PRESETS, Exchange, Preset, drop_conditions, lay_out
from unify_agent.interleave.segments import Document, Drawing, Gap, Picture, Text, Unusable
from unify_agent.interleave.visibility import dense_mask, document_spans

ANSWER = "<think>so</think><recaption>an owl</recaption> end"


def made(preset: Preset = "paper", references: int = 2, **options: object) -> Document:
    exchanges = [
        Exchange("draw an owl", grammar().encode("look")),
        Exchange("write", grammar().encode(ANSWER)),
    ]
    shown = [picture(number) for number in range(references)]
    return lay_out(
        "x", exchanges, shown, picture(9), grammar=grammar(), pixels=pixels(), preset=preset, **options
    )


def drawing(document: Document) -> Drawing:
    return next(segment for segment in document.segments if isinstance(segment, Drawing))


def seen_text(document: Document) -> str:
    """The text that the first row of the drawing sees."""
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
    segments = made(preset).segments
    kinds = [s.use if isinstance(s, Picture) else type(s).__name__ for s in segments]
    extra = ["Text"] if preset == "released" else []
    assert kinds == ["Text", "Text", "vae", "vit", "vae", "vit", "Text", "Text", *extra, "Drawing"]
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


@pytest.mark.parametrize("preset", PRESETS)
def test_a_picture_without_recaption_is_drawn_from_the_request(preset: Preset) -> None:
    document = made(preset, context="request")
    g = grammar()
    assert seen_text(document) == g.decode([g.bos, *g.encode("draw an owl"), g.eos])


@pytest.mark.parametrize(("preset", "blocks"), [("paper", 1), ("released", 4)])
def test_references_are_one_full_block_in_paper_and_separate_in_released(preset: Preset, blocks: int) -> None:
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
