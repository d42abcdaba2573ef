"""Judging references from pixels and titles."""

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from unify_agent.agent.judge import LabelJudge, load_candidates, subject_of, title_match
from unify_agent.agent.pixeljudge import PixelJudge, distance, look_at
from unify_agent.search.base import ImageHit, TextHit


def shape(colour, outline, size=128, scale=0.8, ground=(255, 255, 255), kind="ellipse"):
    """A thing on a plain ground, with some inner detail."""
    big = Image.new("RGB", (256, 256), ground)
    draw = ImageDraw.Draw(big)
    a, b = 128 - 128 * scale, 128 + 128 * scale
    getattr(draw, kind)((a, a + 30, b, b - 30), fill=colour, outline=outline, width=6)
    draw.ellipse((110, 90, 150, 130), fill=outline)
    return big.resize((size, size), Image.Resampling.LANCZOS)


def written_over(picture, ink, every):
    picture = picture.copy()
    draw = ImageDraw.Draw(picture)
    for top in range(2, picture.height, every):
        draw.text((2, top), "stock photo stock photo", fill=ink)
    return picture


def candidate(name, picture, title="kiwi fruit"):
    return ImageHit(name, title, name, *picture.size, "", ""), picture


GREEN = shape((90, 160, 60), (60, 40, 20))


@pytest.fixture
def candidates():
    return [
        candidate("good", GREEN),
        candidate("good2", shape((90, 160, 60), (60, 40, 20), scale=0.68, ground=(236, 236, 236))),
        candidate("blurred", GREEN.filter(ImageFilter.GaussianBlur(5))),
        candidate("tiny", GREEN.resize((24, 24))),
        candidate("watermark", written_over(GREEN, (186, 186, 192), 26)),
        candidate("text", written_over(Image.new("RGB", (128, 128), "white"), (30, 30, 30), 10)),
        candidate("other", shape((200, 40, 40), (0, 0, 90), kind="rectangle")),
    ]


def reasons(judged):
    return {each.hit.id: each.verdict.reason for each in judged}


def test_each_fault_is_seen_in_the_pixels(candidates):
    judged = PixelJudge().judge("kiwi fruit", candidates)
    assert reasons(judged) == {"good": "good", "good2": "good", "blurred": "blurred", "tiny": "tiny",
                               "watermark": "watermark", "text": "text", "other": "other"}  # fmt: skip
    assert {each.hit.id for each in judged if each.verdict.usable} == {"good", "good2"}
    assert all(each.verdict.score <= 5 for each in judged if not each.verdict.usable)


def test_a_wrong_identity_is_never_used_even_alone_among_bad_ones(candidates):
    rest = [each for each in candidates if not each[0].id.startswith("good")]
    judged = PixelJudge().judge("kiwi fruit", rest)
    assert reasons(judged)["other"] == "other"
    assert not any(each.verdict.usable for each in judged)


def test_a_title_that_does_not_name_the_thing_is_another_thing(candidates):
    hit, picture = candidate("bird", GREEN, "kiwi bird")
    judged = PixelJudge().judge("kiwi fruit", [*candidates, (hit, picture)])
    assert reasons(judged)["bird"] == "other"


def test_the_only_candidate_is_taken_at_its_word():
    (judged,) = PixelJudge().judge("kiwi fruit", [candidate("good", GREEN)])
    assert judged.verdict.usable


def test_what_does_not_decode_is_said_so(tmp_path):
    (tmp_path / "page.png").write_text("<html>")
    hit = ImageHit("page", "kiwi fruit", tmp_path / "page.png", 1, 1, "", "")
    (judged,) = PixelJudge().judge("kiwi fruit", load_candidates([hit]))
    assert (judged.verdict.reason, judged.picture) == ("unreadable", None)


def test_no_candidates_no_verdicts():
    assert PixelJudge().judge("kiwi fruit", []) == []


@pytest.mark.parametrize("size", [(8, 8), (1, 300), (300, 1), (37, 211)])
def test_pictures_of_any_shape_are_measured(size):
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8))
    look = look_at(picture)
    assert np.isfinite(distance(look, look_at(GREEN))) and np.isfinite(distance(look_at(GREEN), look))
    PixelJudge().judge("x", [candidate("a", picture, "x"), candidate("b", Image.new("RGB", (64, 64)), "x")])


def test_scale_and_ground_change_the_distance_less_than_another_thing_does(candidates):
    looks = {hit.id: look_at(picture) for hit, picture in candidates}
    same = max(distance(looks["good"], looks[k]) for k in ("good2", "blurred", "tiny"))
    assert same < 0.5 * distance(looks["other"], looks["good"])


@pytest.mark.parametrize(
    ("query", "read", "subject"),
    [
        ("Kiwi fruit specimen", ["Velmora is another name for the kiwi fruit."], "kiwi fruit"),
        ("kiwi fruit", [], "kiwi fruit"),
        ("猕猴桃标本", ["薇尔莫拉就是猕猴桃，属于水果。"], "猕猴桃"),
        ("zzz", ["Nothing of the kind."], "zzz"),
    ],
)
def test_the_subject_of_a_query_is_what_the_evidence_names(query, read, subject):
    assert subject_of(query, [TextHit("page", text, "") for text in read]) == subject


def test_titles_match_by_whole_words():
    assert title_match("Kiwi fruit", "kiwi fruit") == 1.0
    assert 0.8 < title_match("kiwi fruit specimen", "kiwi fruit") < 1.0
    assert title_match("kiwi", "kiwi fruit") == 0.0
    assert title_match("caterpillar", "cat") == 0.0


def test_the_label_judge_knows_the_truth():
    labels = {"a": {"entity": "K", "kind": "good"}, "b": {"entity": "K", "kind": "blurred"},
              "c": {"entity": "L", "kind": "good"}}  # fmt: skip
    judge = LabelJudge(labels.__getitem__, {"kiwi fruit": "K"}.get)
    judged = judge.judge("kiwi fruit", [candidate(name, GREEN) for name in labels])
    assert [each.verdict.reason for each in judged] == ["good", "blurred", "other"]
    assert [each.verdict.usable for each in judged] == [True, False, False]
