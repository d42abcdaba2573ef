"""Long texts in pieces: nothing is lost, nothing is too long, and the telling part comes first."""

from hypothesis import given, settings
from hypothesis import strategies as st

from unify_agent.search.passages import excerpt, passages

texts = st.lists(st.sampled_from(["owl ", "a bird. ", "\n", "\n\n", "# H\n", "鸟。", "x" * 50, " "]), max_size=60).map(
    "".join
)


@settings(deadline=None)
@given(texts, st.integers(5, 80))
def test_pieces_hold_all_of_the_text_and_none_is_longer_than_allowed(text, limit):
    parts = list(passages(text, limit))
    assert all(part.strip() and len(part) <= limit for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


@settings(deadline=None)
@given(texts, st.sampled_from(["owl", "鸟", "bird x", "", "?"]), st.integers(10, 200))
def test_an_excerpt_is_made_of_the_text_and_short_enough(text, q, limit):
    found = excerpt(text, q, limit, piece=40)
    assert len(found) <= limit
    squeezed = "".join(text.split())
    assert all("".join(part.split()) in squeezed for part in found.split("\n\n"))


def test_the_passage_that_the_question_is_about_comes_first():
    text = "\n\n".join(
        [*(f"Filler {k} about owls." for k in range(50)), "The brass owl has green eyes.", "More filler."]
    )
    assert excerpt(text, "brass owl eyes", 100, piece=40).startswith("The brass owl has green eyes.")
    assert excerpt("首页\n\n" + "无关内容。" * 80 + "\n\n薇尔莫拉是一种绿色的水果。", "薇尔莫拉", 60).startswith(
        "薇尔莫拉"
    )
    assert excerpt("First.\n\nSecond.", "nothing of it", 100).startswith("First.")
