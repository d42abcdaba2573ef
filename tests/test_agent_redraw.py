"""A reply that was cut off and of no use is drawn again; the one before is in the record and out of the context."""

import json

import numpy as np
import pytest
from agent_tools import FINAL, IMAGE_CALL, TEXT_CALL, MemorySearch, NameJudge, hits
from datasets_tools import grammar, pixels
from generation_tools import tiny

from unify_agent.agent.episode import AgentOptions, Episode
from unify_agent.agent.loop import Loop, Reply, came_to_nothing
from unify_agent.agent.record import Recorder
from unify_agent.agent.unified import UnifiedPolicy
from unify_agent.agent.wording import load_prompts
from unify_agent.generation.sampler import SamplerSettings
from unify_agent.generation.session import Session
from unify_agent.generation.text import Sampling

DECODE = Session.decode
RAMBLING = "<think>the owl and the owl and the owl"


@pytest.fixture
def made():
    settings = SamplerSettings(steps=3, shift=1.0, text_scale=1.0, image_scale=1.0)
    return UnifiedPolicy(*tiny(), grammar(), pixels(), settings=settings, size=(32, 32), sampling=Sampling(max_new=8))


@pytest.fixture
def search(tmp_path):
    return MemorySearch({"kiwi fruit": hits(tmp_path, "good-1", "good-22")})


def forced(monkeypatch, made, script):
    """The model says what `script(episode)` says; a text without an end tag counts as cut off."""
    asked = []

    def speak(session, rows, sampling, *, prefix=None, seeds=None):
        by_row = {state.row: state.episode for state in made._rows.values()}
        texts = [script(by_row[row]) for row in rows]
        asked.extend((by_row[row].id, sampling.temperature, seed) for row, seed in zip(rows, seeds, strict=True))
        found = DECODE(session, rows, Sampling(max_new=0), prefix=[grammar().encode(t) for t in texts], seeds=seeds)
        return [type(each)(each.ids, each.span, text != RAMBLING) for each, text in zip(found, texts, strict=True)]

    monkeypatch.setattr(Session, "decode", speak)
    return asked


def saying(failures):
    """Each turn fails as often as `failures` says."""

    def script(episode):
        if len(episode.discarded) < failures[len(episode.turns)]:
            return RAMBLING
        return (TEXT_CALL, IMAGE_CALL, FINAL)[len(episode.turns)]

    return script


def run(made, search, redraw, name="one"):
    episode = Episode(name, "Draw Velmora on red.", seed=3, options=AgentOptions(redraw=redraw))
    Loop(made, search, NameJudge(), load_prompts("compact")).run([episode])
    return episode


def test_the_context_is_as_if_only_the_kept_reply_had_been_said(made, search, monkeypatch):
    forced(monkeypatch, made, saying((0, 0, 0)))
    plain = run(made, search, 0)
    before = made._session.history[0]
    asked = forced(monkeypatch, made, saying((2, 0, 1)))
    again = run(made, search, 2)
    assert again.stop == "grounded" and made._session.history[0] == before
    assert np.array_equal(again.picture, plain.picture)
    assert [len(turn.discarded) for turn in again.turns] == [2, 0, 1]
    assert {t > 0 for _, t, _ in asked[1:3]} == {True} and asked[0][1] == asked[3][1] == 0
    assert len({seed for _, _, seed in asked}) == len(asked)


def test_its_sampling_depends_on_the_id_and_the_attempt(made, search, monkeypatch):
    seeds = []
    for name in ("one", "two", "one"):
        asked = forced(monkeypatch, made, saying((2, 0, 0)))
        run(made, search, 2, name)
        seeds.append([seed for _, temperature, seed in asked if temperature > 0])
    assert seeds[0] == seeds[2] and not set(seeds[0]) & set(seeds[1])


def test_without_redraw_and_after_the_last_try_the_reply_stands(made, search, monkeypatch):
    forced(monkeypatch, made, saying((1, 0, 0)))
    plain = run(made, search, 0)
    assert plain.turns[0].reply == RAMBLING and plain.bad_calls == 1
    forced(monkeypatch, made, saying((9, 0, 0)))
    tried = run(made, search, 2)
    assert tried.turns[0].reply == RAMBLING and len(tried.turns[0].discarded) == 2


def test_discarded_replies_are_in_the_record(made, search, monkeypatch, tmp_path):
    forced(monkeypatch, made, saying((0, 1, 0)))
    path = Recorder(tmp_path / "out", "unified", pages=True).write(run(made, search, 1))
    turns = json.loads(path.read_text(encoding="utf-8"))["turns"]
    assert [each["response_text"] for each in turns[1]["discarded"]] == [RAMBLING]
    assert turns[1]["discarded"][0]["response_ids"] == list(grammar().encode(RAMBLING))
    assert "drawn again" in (tmp_path / "out/prompts/pages/one.html").read_text(encoding="utf-8")


def test_discarded_replies_are_in_the_record_of_an_item_that_fails_then(search):
    class Failing:
        name = "failing"

        def reply(self, episodes):
            return [RuntimeError("gone") if e.discarded else Reply(RAMBLING, truncated=True) for e in episodes]

    episode = run(Failing(), search, 2)
    assert episode.stop == "policy_error" and [each.text for each in episode.turns[0].discarded] == [RAMBLING]


@pytest.mark.parametrize(
    ("text", "truncated", "final", "expected"),
    [
        (RAMBLING, True, False, True),
        (RAMBLING, False, False, False),
        (TEXT_CALL, True, False, False),
        (TEXT_CALL.removesuffix("</tool_call>"), True, False, True),
        (TEXT_CALL, True, True, True),
        (FINAL, True, True, False),
    ],
)
def test_what_came_to_nothing(text, truncated, final, expected):
    assert came_to_nothing(Reply(text, truncated=truncated), final) is expected
