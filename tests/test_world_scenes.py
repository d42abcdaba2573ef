"""Scenes are composed exactly, and every sentence about them can be read back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.openmoji import words
from data.openmoji.entities import COMMON, LANGUAGES, load_entities
from data.openmoji.pictures import Drawings, drawings_path
from data.openmoji.scenes import (
    BACKGROUNDS,
    CORNERS,
    PLACES,
    ROTATIONS,
    SIZES,
    Composer,
    Scene,
    compose,
    place_of,
    sprite_of,
)


@pytest.fixture(scope="module")
def drawings(world):
    return Drawings.load(drawings_path(world))


def _random(seed):
    return np.random.default_rng(seed)


ALL = [Scene("white", place, size, rotation) for place in PLACES for size in SIZES for rotation in ROTATIONS]


@pytest.mark.parametrize("scene", ALL, ids=lambda s: f"{s.place} {s.size} {s.rotation}")
def test_the_thing_lies_inside_and_its_box_is_centred_on_its_place(scene, drawings, world):
    for entity in load_entities(world)[::9]:
        height, width = sprite_of(scene, drawings[entity.id]).shape[:2]
        x, y = place_of(scene)
        assert max(height, width) <= (46 if scene.size == "large" else 32)
        assert 0 <= round(x - width / 2) and round(x - width / 2) + width <= 64
        assert 0 <= round(y - height / 2) and round(y - height / 2) + height <= 64


def test_an_upright_drawing_has_the_size_that_the_scene_says(drawings, world):
    for entity in load_entities(world)[::5]:
        for size, longest in SIZES.items():
            assert max(sprite_of(Scene(size=size), drawings[entity.id]).shape[:2]) == longest


def test_places_differ_by_more_than_the_tolerance_of_the_evaluation():
    for size in SIZES:
        points = [place_of(Scene(place=place, size=size)) for place in PLACES]
        gaps = [max(abs(a[0] - b[0]), abs(a[1] - b[1])) for a in points for b in points if a != b]
        assert min(gaps) >= 8


def test_composing_gives_the_same_bytes_with_and_without_the_cache(drawings, world):
    composer, rng = Composer(drawings), _random(3)
    for entity in load_entities(world)[::7]:
        scene = Scene.sample(rng, companion=0.6)
        other = None if scene.companion is None else drawings[scene.companion]
        exact = compose(scene, drawings[entity.id], other)
        assert exact.shape == (64, 64, 3) and exact.dtype == np.uint8
        assert (composer(scene, entity.id) == exact).all() and (composer(scene, entity.id) == exact).all()


def test_the_border_shows_the_background(drawings):
    for background, colour in BACKGROUNDS.items():
        picture = compose(Scene(background, "centre", "small"), drawings["2B50"])
        assert (picture[0] == colour).all() and (picture[:, -1] == colour).all()


def test_a_companion_never_covers_the_thing(drawings):
    rng = _random(5)
    for _ in range(200):
        scene = Scene.sample(rng, companion=1.0)
        if scene.companion is None:
            assert scene.place == "centre" and scene.size == "large"
        else:
            assert scene.corner in scene.free_corners() and scene.companion in COMMON


def test_a_scene_with_a_companion_needs_its_drawing(drawings):
    with pytest.raises(ValueError, match="drawing is needed"):
        compose(Scene(size="small", companion="2600", corner="top left"), drawings["2B50"])


def test_a_request_can_be_read_back_whatever_it_is_about(world):
    rng = _random(0)
    for entity in load_entities(world):
        for language in LANGUAGES:
            for name in (entity.name[language], entity.alias[language]):
                scene = Scene.sample(rng, companion=0.5)
                text = words.request(scene, name, language, rng)
                assert words.parse_request(text) == words.Request(name, scene, language), text


@pytest.mark.parametrize("text", ["", "Draw.", "画。", "Draw a cat on a blue background.", "x" * 500])
def test_other_texts_are_no_requests(text):
    assert words.parse_request(text) is None


def test_a_recaption_can_be_read_back(world):
    rng = _random(1)
    for number, entity in enumerate(load_entities(world)):
        for language in LANGUAGES:
            scene, references = Scene.sample(rng, companion=0.5), number % 3
            text = words.recaption(scene, entity.name[language], references, language)
            read = words.parse_recaption(text)
            assert read.complete(references) and read.scene == scene and read.name == entity.name[language], text


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_recaption_says_what_it_lacks(language):
    scene = Scene("blue", "left", "small", "tilted left")
    name = {"en": "kiwi fruit", "zh": "猕猴桃"}[language]
    identity = words.parse_recaption(words.recaption(scene, name, 2, language, composition=False))
    assert identity.references == (1, 2) and identity.scene is None and "background" in identity.missing
    plain = words.parse_recaption(words.recaption(scene, name, 2, language, identity=False))
    assert plain.references == () and plain.scene == scene and not plain.complete(2)
    assert words.parse_recaption("").missing == ("name", "background", "place", "size", "rotation")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80))
def test_reading_a_recaption_never_fails(text):
    words.parse_recaption(text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_value_of_a_scene_has_its_own_word(language):
    for key, options in {"background": BACKGROUNDS, "place": PLACES, "size": SIZES, "rotation": ROTATIONS,
                         "corner": CORNERS, "companion": COMMON}.items():  # fmt: skip
        said = words.WORDS[language][key]
        assert list(said) == list(options) and len(set(said.values())) == len(said)


def test_a_page_resolves_the_alias_in_few_words(world):
    for entity in load_entities(world):
        for language in LANGUAGES:
            title, text = words.document(entity, language)
            assert title == entity.alias[language]
            assert entity.name[language].lower() in text.lower() and title.lower() in text.lower()
            assert len(text.split()) <= 30
