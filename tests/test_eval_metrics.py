"""The measures of the embedded world, against cases whose answer is known by hand."""

import numpy as np
import pytest

from eval import metrics

PALETTE = {"white": (255, 255, 255), "red": (214, 64, 64), "blue": (72, 132, 222)}


def picture(ground="white", x=32, y=32, side=10, colour=(20, 20, 20)):
    canvas = np.empty((64, 64, 3), np.uint8)
    canvas[:] = PALETTE[ground]
    canvas[y - side // 2 : y + side // 2, x - side // 2 : x + side // 2] = colour
    return canvas


def test_wilson_gives_the_textbook_interval_for_eight_of_ten():
    figure = metrics.proportion([True] * 8 + [False] * 2)
    assert (figure.value, figure.n) == (0.8, 10)
    assert figure.low == pytest.approx(0.490, abs=1e-3)
    assert figure.high == pytest.approx(0.943, abs=1e-3)


def test_an_interval_never_collapses_at_zero_or_one():
    assert metrics.proportion([True] * 20).low == pytest.approx(0.839, abs=1e-3)
    assert metrics.clustered({str(k): [1, 1, 1] for k in range(20)}).low == pytest.approx(0.839, abs=1e-3)
    assert metrics.proportion([False] * 20).high == pytest.approx(0.161, abs=1e-3)


def test_nothing_measured_is_unscored_not_zero():
    assert metrics.proportion([]) == metrics.NOTHING == metrics.clustered({})
    assert str(metrics.NOTHING) == "–"


def test_seeds_of_one_entity_do_not_count_as_independent():
    same = {str(k): [float(k % 2)] * 3 for k in range(50)}
    mixed = {str(k): [float((k + s) % 2) for s in range(2)] for k in range(50)}
    wide, narrow = metrics.clustered(same), metrics.clustered(mixed)
    assert wide.value == narrow.value == 0.5
    assert (wide.n, narrow.n) == (150, 100)
    assert wide.high - wide.low == pytest.approx(2 * 1.96 * 0.5 / 50**0.5, rel=0.15)
    assert narrow.high == narrow.low == 0.5


def test_a_bootstrap_is_the_same_every_time():
    outcomes = {str(k): [float(k % 3 == 0)] for k in range(40)}
    assert metrics.clustered(outcomes) == metrics.clustered(outcomes)


def test_the_nearest_picture_is_found_by_squared_error():
    gallery = np.stack([picture(x=20), picture(x=32), picture(x=44)])
    blurred = (0.6 * gallery[2] + 0.4 * gallery[1]).astype(np.uint8)
    assert metrics.nearest(blurred, gallery) == 2
    assert metrics.rgb_error(picture(), np.stack([picture(), picture() ^ 1])).tolist() == [0, 1]


def test_a_missing_picture_is_wrong_in_every_respect():
    score = metrics.score_picture(None, np.stack([picture()]), 0, PALETTE, "white")
    assert (score.identity, score.background, score.place, score.error) == (False, False, False, None)


def test_the_background_is_read_from_the_border_whatever_stands_inside_or_in_a_corner():
    shown = picture("blue", side=50, colour=PALETTE["red"])
    shown[1:19, 1:19] = PALETTE["white"]
    assert metrics.background_of(shown, PALETTE) == "blue"


def test_the_background_survives_noise():
    noise = np.random.default_rng(0).normal(0, 12, (64, 64, 3))
    assert metrics.background_of(np.clip(picture("red") + noise, 0, 255).astype(np.uint8), PALETTE) == "red"


def test_a_place_is_right_up_to_four_pixels():
    truth = picture("red", x=32)
    assert metrics.middle(truth) == (31.5, 31.5)
    assert metrics.place_right(picture("blue", x=36), truth)
    assert not metrics.place_right(picture("blue", x=37), truth)
    assert not metrics.place_right(picture(x=35, y=35), truth)


def test_the_wrong_thing_in_the_right_place_is_in_the_right_place():
    truth, other = picture(side=30), picture(side=30)
    other[20:36, 30:47] = PALETTE["white"]
    assert metrics.place_right(other, truth)


def test_a_second_thing_in_its_corner_does_not_move_the_place():
    truth, corner = picture(x=40), (0, 0, 20, 20)
    shown = truth.copy()
    shown[2:18, 2:18] = PALETTE["red"]
    assert not metrics.place_right(shown, truth)
    assert metrics.place_right(shown, truth, ignore=corner)


def test_a_stray_pixel_does_not_move_the_place():
    shown = picture(side=12)
    shown[60, 3] = (0, 0, 0)
    assert metrics.place_right(shown, picture(side=12))


def test_an_empty_picture_has_no_place():
    empty = np.full((64, 64, 3), 255, np.uint8)
    assert metrics.middle(empty) is None
    assert not metrics.place_right(empty, picture())
    assert metrics.place_right(empty, empty)


def test_a_perfect_picture_gets_everything_right():
    gallery = np.stack([picture(x=x) for x in (18, 32, 46)])
    score = metrics.score_picture(gallery[1], gallery, 1, PALETTE, "white")
    assert score.identity and score.scene and score.error == 0 and score.guess == 1


def test_figures_are_rounded_for_json():
    assert metrics.proportion([True, False, True]).as_dict() == {
        "value": 0.6667, "low": 0.2077, "high": 0.9385, "n": 3,
    }  # fmt: skip
