"""Prompts of a data build: their plan, and what code refuses."""

from collections import Counter
from dataclasses import replace

import pytest
from build_lists import Asked, entity, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from data.build import nearness as near_texts
from data.build.benchmark import placed
from data.build.contracts import CATEGORIES, Dropped
from data.build.nearness import find_near, nearness, shingles
from data.build.prompts import DIFFICULTIES, FORMS, KINDS, leaks, make_tasks, plan, words_of, wrong_with
from unify_agent.judging import ChatError

GOOD = "At dawn {name} carries a parcel over the wet roofs of a harbour town."
OTHER = "A child waves as {name} lands beside the ticket desk of a railway station."
OWL = entity(attributes=("a brass head with rivets", "two round glass eyes"))
ZH = entity(names={"zh": "铜鸮", "en": "Brass Owl"}, country="中国", attributes=("圆形玻璃眼睛",))
WORDS = words_of(None)
NOUNS = "river stone lamp harbour crow kite bread dawn".split()


def saying(*texts):
    return Asked(lambda question, number: {"prompt": texts[(number - 1) % len(texts)]})


def test_tasks_name_the_entity_exactly(tmp_path):
    services = saying(GOOD, OTHER)
    (one, two), _ = make_tasks(replace(OWL, names={"en": "Owl {name} II"}), spec(tmp_path), services)
    assert (one.id, two.id, one.language) == ("owl-p1", "owl-p2", "en")
    assert one.prompt == GOOD.replace("{name}", "Owl {name} II")
    assert "Written already, to be different from: none" in services.questions[0] and GOOD in services.questions[1]
    assert "What it shows: " in services.questions[0] and len(set(services.salts)) == 2


def test_what_is_wrong_is_told_and_asked_for_anew_up_to_a_bound(tmp_path):
    services = saying("Brass Owl flies.", GOOD)
    (task,), _ = make_tasks(OWL, spec(tmp_path, prompts={"per_entity": 1}), services)
    assert task.prompt.startswith("At dawn Brass Owl") and "{name} stands in it 0 times" in services.questions[1]
    services = saying("Brass Owl flies.")
    with pytest.raises(Dropped, match=r"no prompt could be taken.*owl-p1: 4 tries") as raised:
        make_tasks(OWL, spec(tmp_path, prompts={"per_entity": 1}), services)
    assert raised.value.stage == "prompts" and len(services.questions) == 4 == len(set(services.salts))


def test_a_prompt_that_cannot_be_had_leaves_the_others_and_their_ids(tmp_path):
    services = Asked(lambda question, number: {"prompt": "no" if number <= 4 else GOOD})
    (task,), ((refused, why),) = make_tasks(OWL, spec(tmp_path), services)
    assert task.id == "owl-p2" and refused.id == "owl-p1" and not refused.prompt
    assert why.stage == "prompts" and "owl-p1" in why.detail


def test_what_the_model_refuses_is_dropped_and_a_server_that_fails_is_not(tmp_path):
    def answer(question, number):
        raise ChatError(*error)

    error = ("refused", "the model refused: content filter")
    with pytest.raises(Dropped, match="prompts: the prompt model refuses"):
        make_tasks(OWL, spec(tmp_path), Asked(answer))
    error = ("server", "out of memory")
    with pytest.raises(ChatError, match="out of memory"):
        make_tasks(OWL, spec(tmp_path), Asked(answer))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("At dawn the owl carries a parcel over the wet roofs of a town.", "0 times"),
        (f"{GOOD} {{name}} {{name}}", "3 times"),
        ("{name} flies.", "characters"),
        (f"{GOOD}{' and on' * 90}", "characters"),
        (f"{GOOD} <recaption>", "markup"),
        (f"{GOOD} See image_1.", "markup"),
        (f"{GOOD} https://a.example", "markup"),
        (f"{GOOD} 铜鸮", "language"),
        (f"{GOOD[:20]}黄昏时分飞过港口小镇湿漉漉的屋顶，去往车站前面的广场，停在那里。", "language"),
        (f"{GOOD} Its brass head has rivets.", "looks like"),
        (OTHER.replace("waves as", "waves when"), "nearly the same"),
    ],
)
def test_code_refuses(text, fault):
    assert fault in wrong_with(text, OWL, "en", [OTHER], WORDS)


def test_code_takes_good_ones():
    assert wrong_with(GOOD, OWL, "en", [OTHER], WORDS) == ""
    assert wrong_with("黄昏时分，{name}停在港口小镇的钟楼上，俯看归来的渔船。", ZH, "zh", [], WORDS) == ""
    assert "looks like" in wrong_with("黄昏时分，{name}睁着圆形的玻璃眼睛，停在钟楼上。", ZH, "zh", [], WORDS)


def test_a_trait_leaks_by_its_words_and_not_by_one_of_them():
    assert leaks("a long green scarf", "wears the green scarf, long as ever", 0.6)
    assert not leaks("a long green scarf", "a green hill at dawn", 0.6) and not leaks("it is", "it is", 0.6)


def listed(count, category="mascot"):
    entities = [entity(f"e{k}", category, names={"en": f"N{k}"}) for k in range(count)]
    return placed(entities, dict.fromkeys((each.id for each in entities), "train"))


def test_forms_and_difficulties_of_a_category_are_balanced(tmp_path):
    made = spec(tmp_path, prompts={"per_entity": 3})
    for category in ("mascot", "food"):
        kinds = Counter((w.form, w.difficulty) for each in listed(18, category) for w in plan(each, made))
        assert kinds == dict.fromkeys(KINDS, 3)
    orders = {seed: [w.form for e in listed(6) for w in plan(e, spec(tmp_path, seed=seed))] for seed in (0, 1)}
    assert orders[0] != orders[1] and set(orders[0]) <= set(FORMS)
    openings = Counter(wish.opening for each in listed(60) for wish in plan(each, made))
    assert min(openings.values()) > 30


def test_a_list_that_grows_keeps_its_plan(tmp_path):
    made = spec(tmp_path)
    assert [plan(e, made) for e in listed(30)][:7] == [plan(e, made) for e in listed(7)]


def test_languages_are_the_entitys_own_unless_others_are_asked_for(tmp_path):
    assert {wish.language for wish in plan(ZH, spec(tmp_path))} == {"zh"}
    both = spec(tmp_path, prompts={"languages": ["en", "zh", "fr"]})
    assert [wish.language for wish in plan(ZH, both)] == ["en", "zh"]
    assert {wish.language for wish in plan(entity(names={"ja": "ふくろう"}), both)} == {"ja"}


def test_a_benchmark_entity_has_one_prompt(tmp_path):
    assert [w.id for w in plan(replace(OWL, part="benchmark"), spec(tmp_path, prompts={"per_entity": 5}))] == ["owl-p1"]


def test_words_hold_every_form_for_every_group_in_both_languages():
    for phrases in (WORDS.en, WORDS.zh):
        texts = [getattr(getattr(phrases.forms, form), group) for form in FORMS for group in CATEGORIES]
        texts += [getattr(phrases.difficulties, each) for each in DIFFICULTIES]
        assert all(texts) and "{name}" in phrases.rubric


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.sampled_from(NOUNS), min_size=6, max_size=14), min_size=2, max_size=25))
def test_near_texts_are_grouped_as_pairwise_comparison_would(lists):
    texts = [" ".join(words) for words in lists]
    sets = [shingles(text) for text in texts]
    joined = {each for group in find_near(texts, 0.9) for each in group}
    for one in range(len(texts)):
        others = [nearness(sets[one], sets[two]) for two in range(len(texts)) if two != one]
        assert (max(others) >= 0.9) == (one in joined)


def test_texts_of_one_pattern_are_not_compared_each_with_each(monkeypatch):
    asked = []
    monkeypatch.setattr(near_texts, "nearness", lambda one, two: asked.append(1) or 0.0)
    texts = [f"{'a crow on the wet roof of the mill beside the river ' * 3}{number}" for number in range(400)]
    assert find_near(texts) == () and len(asked) <= 400 * 9 * 16 < 400 * 399 / 2
    monkeypatch.undo()
    assert find_near(texts) == (tuple(range(400)),)


def test_near_texts_are_told_in_every_script_and_far_ones_are_not():
    texts = [
        "黄昏时分停在港口小镇的钟楼上", "A crow sits on the wet roof of the mill.", "黄昏时分站在港口小镇的钟楼上！",
        "a crow sits on the wet roof of the mill", "清晨的集市上", "A kite over the dry field by the sea.",
    ]  # fmt: skip
    assert find_near(texts, 0.6) == ((0, 2), (1, 3))
    assert find_near([]) == () and find_near(["", ""]) == ((0, 1),)
