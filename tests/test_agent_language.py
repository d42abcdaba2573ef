"""The language of the prompt is the language of the recaption: what is not is sent back once, named and recorded."""

import json

import numpy as np
import pytest
from agent_tools import FINAL, IMAGE_CALL, TEXT_CALL, MemorySearch, NameJudge, hits
from datasets_tools import grammar, pixels
from generation_tools import tiny
from hypothesis import given
from hypothesis import strategies as st

from unify_agent.agent.episode import OTHER_LANGUAGE, AgentOptions, Episode
from unify_agent.agent.language import in_language
from unify_agent.agent.loop import Loop
from unify_agent.agent.record import Recorder
from unify_agent.agent.scripted import ScriptedPolicy
from unify_agent.agent.unified import UnifiedPolicy
from unify_agent.agent.wording import load_prompts
from unify_agent.generation.sampler import SamplerSettings
from unify_agent.generation.session import Session
from unify_agent.generation.text import Sampling

ZH = "<think>好</think>\n<recaption>一只红色背景上的奇异果，保留 image_1 的外形。</recaption>"
DECODE = Session.decode


@pytest.mark.parametrize(
    ("text", "language", "names", "good"),
    [
        ("The kiwi fruit from image_1 on red.", "en", (), True),
        ("The kiwi fruit from image_1 on red.", "zh", (), False),
        ("红色背景上的奇异果", "zh", (), True),
        ("红色背景上的奇异果", "en", (), False),
        ("image_1 的 Leonardo da Vinci 画像，背景是 Château de Chambord", "zh", (), True),
        ("一只 kiwi fruit 在 red background 上 with soft evening light", "zh", (), False),
        ("kiwi fruit 在红色上", "zh", ("画 kiwi fruit",), True),
        ("Red background with 齐天大圣孙悟空", "en", (), False),
        ("Red background with 齐天大圣孙悟空", "en", ("Sun Wukong (齐天大圣孙悟空)",), True),
        ("A sign that reads “欢迎光临小店”, red", "en", (), True),
        ("一块招牌，写着 “welcome to our little shop, dear guests”", "zh", (), True),
        ('"the kiwi fruit on red."', "zh", (), False),
        ("“红色背景上的奇异果”", "en", (), False),
        ("赤い背景のキウイ", "en", (), True),
        ("빨간 배경", "en", (), True),
        ("красный фон", "en", (), True),
        ("image_1", "zh", (), True),
        ("", "zh", (), True),
    ],
)
def test_the_language_of_a_text_is_seen_and_names_are_no_fault(text, language, names, good):
    assert in_language(text, language, names) is good


@given(st.text(), st.sampled_from(["en", "zh"]), st.lists(st.text(), max_size=2))
def test_any_text_has_an_answer_and_its_own_words_are_no_fault(text, language, names):
    in_language(text, language, names)
    assert in_language(text, language, [text])


def scripted(replies, prompts, search, language="zh", **options):
    asked = []

    def say(episode):
        asked.append(episode.input)
        return replies[len(asked) - 1]

    request = "在红色背景上画 Velmora。" if language == "zh" else "Draw Velmora on red."
    episode = Episode("one", request, language, options=AgentOptions(**options))
    policy = ScriptedPolicy(say, lambda episode: np.zeros((32, 32, 3), np.uint8))
    Loop(policy, search, NameJudge(), load_prompts(prompts)).run([episode])
    return episode, asked


@pytest.fixture
def search(tmp_path):
    return MemorySearch({"kiwi fruit": hits(tmp_path, "good-1", "good-22")})


def test_a_recaption_in_another_language_is_sent_back_with_what_is_wrong(search, tmp_path):
    episode, asked = scripted([TEXT_CALL, IMAGE_CALL, FINAL, ZH], "full", search, redraw=0)
    assert episode.stop == "grounded" and "奇异果" in episode.recaption and len(episode.turns) == 3
    assert asked[3] == f"{asked[2]}\n\n{load_prompts('full').phrases('zh').other_language}"
    assert episode.turns[-1].input == asked[3] and [each.text for each in episode.turns[-1].discarded] == [FINAL]
    path = Recorder(tmp_path / "out", "scripted", pages=True).write(episode)
    turn = json.loads(path.read_text(encoding="utf-8"))["turns"][-1]
    assert turn["discarded"] == [{"response_text": FINAL, "reason": "other_language"}]


@pytest.mark.parametrize("before", [(), (TEXT_CALL, IMAGE_CALL)])
def test_it_is_sent_back_once_then_drawn_and_named(search, before):
    episode, asked = scripted([*before, FINAL, FINAL], "full", search)
    assert (episode.stop, episode.status) == ("other_language", "partial") and episode.picture is not None
    assert len(asked) == len(before) + 2 and episode.recaption


def test_what_stopped_the_search_is_named_before_the_language(search):
    calls = [TEXT_CALL] * 7
    episode, _ = scripted([*calls, FINAL, FINAL], "full", search, max_text_searches=9)
    assert episode.stop == "search_limit" and [len(turn.discarded) for turn in episode.turns] == [0] * 7 + [1]


def test_prompts_without_words_for_it_send_nothing_back(search):
    """The tiny models' prompts are such: nothing of what they say or are asked changes."""
    assert not any(load_prompts("compact").phrases(language).other_language for language in ("en", "zh"))
    episode, asked = scripted([TEXT_CALL, IMAGE_CALL, FINAL], "compact", search)
    assert episode.stop == "grounded" and len(asked) == 3 and not any(turn.discarded for turn in episode.turns)


@pytest.mark.parametrize("preset", ["paper", "released", "isolated"])
@pytest.mark.parametrize("before", [(), (TEXT_CALL, IMAGE_CALL)])
def test_the_context_is_as_if_the_input_had_been_that_from_the_beginning(search, monkeypatch, preset, before):
    """The unified policy: the recaption that was sent back is out of the cache, references are there once, and the
    record draws the same picture."""
    settings = SamplerSettings(steps=3, shift=1.0, text_scale=1.0, image_scale=1.0)
    policy = UnifiedPolicy(*tiny(), grammar(), pixels(), preset, settings=settings, size=(32, 32))

    def speak(session, rows, sampling, *, prefix=None, seeds=None):
        by_row = {state.row: state.episode for state in policy._rows.values()}
        texts = [script(by_row[row]) for row in rows]
        return DECODE(session, rows, Sampling(max_new=0), prefix=[grammar().encode(t) for t in texts], seeds=seeds)

    def script(episode):
        said = [*before, ZH if episode.discarded else FINAL]
        return said[len(episode.turns)]

    monkeypatch.setattr(Session, "decode", speak)
    episode = Episode("one", "画 Velmora。", "zh", seed=3, options=AgentOptions(history=preset != "isolated"))
    Loop(policy, search, NameJudge(), load_prompts("full")).run([episode])
    assert episode.status == "ok" and [each.reason for each in episode.turns[-1].discarded] == [OTHER_LANGUAGE]
    kept = [entry.ids for entry in policy._session.history[0] if entry.kind == "text"]
    spoken = [part for turn in episode.turns for part in (grammar().encode_user(turn.input), turn.ids)]
    assert kept[: len(spoken)] == spoken
    vae = sum(entry.kind == "vae" for entry in policy._session.history[0])
    assert vae == len(episode.references) == (2 if before else 0)
    policy._rows.clear()
    (again,) = policy.draw([episode])
    np.testing.assert_allclose(again.astype(int), episode.picture.astype(int), atol=1)
