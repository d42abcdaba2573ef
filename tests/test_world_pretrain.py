"""The pre-training source: deterministic, within the lengths it promises, laid out as the agent's last turn is."""

import json

import numpy as np
import pytest

from data.openmoji import copying
from data.openmoji.entities import load_entities
from data.openmoji.pretrain import COPIES, Pictures, PretrainSource
from unify_agent.datasets.sources import SourceContext
from unify_agent.errors import UserError
from unify_agent.interleave.grammar import TAGS, Grammar
from unify_agent.interleave.layout import PRESETS, REFERENCES, Pixels
from unify_agent.interleave.segments import Drawing, Gap, Picture, Text
from unify_agent.interleave.transforms import Transform

PIXELS = Pixels(Transform(64, 64, 16), Transform(56, 56, 14))


@pytest.fixture(scope="module")
def grammar(world):
    return Grammar.load(world / "tokenizer")


def _source(world, grammar, preset="paper", **options):
    return PretrainSource(SourceContext(grammar, PIXELS, preset), str(world), size=400, **options)


def _same(left, right):
    if type(left) is not type(right):
        return False
    if isinstance(left, Text):
        return left == right
    return (left.pixels == right.pixels).all() and (left.patch == right.patch)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_sample_fits_the_length_that_was_promised(world, grammar, preset):
    source = _source(world, grammar, preset)
    assert len(source) == len(set(source.ids())) and (len(source) == 400) == (preset != "isolated")
    for index in range(150):
        assert source.document(index, np.random.default_rng(index)).slots <= source.slots(index)


def test_in_layout_isolated_what_is_asked_and_what_is_drawn_are_documents_of_their_own(world, grammar):
    source = _source(world, grammar, "isolated", shares={"reference": 1.0}, asked=0.5)
    documents = [source.document(index, np.random.default_rng(index)) for index in range(len(source))]
    drawn = [d.segments for d in documents if isinstance(d.segments[-1], Drawing)]
    said = [d.segments for d in documents if not isinstance(d.segments[-1], Drawing)]
    assert (len(drawn), len(said)) == (400, 200)
    for *shown, text, drawing in drawn:
        assert isinstance(text, Text) and (text.loss, text.role, text.name) == (False, "context", "recaption")
        assert drawing.sees == ("recaption", *(p.name for p in shown)) and {p.block for p in shown} == {REFERENCES}
    for asked, *shown, text in said:
        assert asked.role == "user" and text.loss and len(shown) in (2, 4)
        assert grammar.decode(text.ids).startswith("<recaption>")


def test_the_same_chance_gives_the_same_sample_and_another_gives_another(world, grammar):
    one, two = _source(world, grammar), _source(world, grammar)
    assert one.fingerprint == two.fingerprint != _source(world, grammar, seed=1).fingerprint
    for index in range(40):
        a = one.document(index, np.random.default_rng(7)).segments
        b = two.document(index, np.random.default_rng(7)).segments
        c = two.document(index, np.random.default_rng(8)).segments
        assert all(map(_same, a, b)) and not (len(a) == len(c) and all(map(_same, a, c)))


def test_a_drawing_sees_the_recaption_and_the_references_only(world, grammar):
    source = _source(world, grammar, shares={"reference": 1.0})
    for index in range(20):
        segments = source.document(index, np.random.default_rng(index)).segments
        drawing, text = segments[-1], segments[-2]
        pictures = [s for s in segments if isinstance(s, Picture)]
        assert isinstance(drawing, Drawing) and drawing.copies == COPIES["reference"]
        assert drawing.sees == ("recaption", *(p.name for p in pictures))
        assert {p.block for p in pictures} == {REFERENCES} and len(pictures) in (2, 4)
        start, stop = text.spans["recaption"]
        said = grammar.decode(text.ids[start - 1 : stop - 1])
        assert said.startswith("<recaption>\n") and said.endswith("\n</recaption>")
        assert ("image_2" in said) == (len(pictures) == 4)


def test_hidden_references_leave_their_rope_ids_and_nothing_else(world, grammar):
    shown, hidden = (_source(world, grammar, shares={"reference": 1.0}, hidden=chance) for chance in (0.0, 1.0))
    for index in range(20):
        with_them, without = (s.document(index, np.random.default_rng(index)).segments for s in (shown, hidden))
        kinds = [Gap if isinstance(each, Picture) else type(each) for each in with_them]
        assert [type(each) for each in without] == kinds and Gap in kinds
        assert without[-2] == with_them[-2] and without[-1].sees == ("recaption",)


def test_there_is_no_agent_trajectory_in_it(world, grammar):
    source = _source(world, grammar)
    forbidden = {grammar.id_of(tag) for tag in TAGS if "recaption" not in tag}
    for index in range(200):
        for segment in source.document(index, np.random.default_rng(index)).segments:
            if isinstance(segment, Text):
                assert not forbidden & set(segment.ids)


def test_invented_names_never_are_held_out_ones(world):
    things = load_entities(world)
    names = copying.Names([e for e in things if e.split == "train"], [e for e in things if e.split != "train"])
    test = load_entities(world, "test")[0]
    for held in (*test.name.values(), *test.alias.values()):
        assert names.holds_held_out(held)
    assert not names.holds_held_out("Xqzyw vwpk")


@pytest.mark.parametrize("task", copying.TASKS)
def test_the_answer_of_a_copying_sample_is_found_in_what_is_given(world, task):
    things = load_entities(world)
    names = copying.Names([e for e in things if e.split == "train"], [e for e in things if e.split != "train"])
    for seed in range(30):
        given, answer = copying.sample(task, names, np.random.default_rng(seed))
        if task in ("request", "pages"):
            name = json.loads(answer.splitlines()[-1])["q"]
            assert name.lower() in given.lower()
        elif task == "repeat":
            assert all(name in given for name in json.loads(answer))


def test_unknown_tasks_and_wrong_shares_are_refused(world, grammar):
    with pytest.raises(UserError, match="no task 'dreaming'"):
        _source(world, grammar, shares={"dreaming": 1.0})
    with pytest.raises(UserError, match=r"sum to 0\.5"):
        _source(world, grammar, shares={"copying": 0.5})


def test_the_autoencoder_gets_the_same_pictures_of_a_step_again(world):
    pictures = Pictures(str(world))
    first = pictures.batch(5, 24)
    assert first.shape == (24, 64, 64, 3) and first.dtype == np.uint8
    assert (Pictures(str(world)).batch(5, 24) == first).all() and not (pictures.batch(6, 24) == first).all()
    assert (pictures.batch(-1, 8) == pictures.batch(-1, 8)).all()
