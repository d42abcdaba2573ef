"""One grammar for both: what the live loop has in its context is what training makes of the record it leaves."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from agent_tools import NameJudge, hits
from datasets_tools import context, grammar, picture, pixels
from hypothesis import example, given, settings
from hypothesis import strategies as st

from unify_agent.agent.episode import Episode
from unify_agent.agent.evidence import one_line
from unify_agent.agent.loop import Loop, recaption_in
from unify_agent.agent.record import to_trajectory
from unify_agent.agent.toolcalls import ToolCall, parse_calls, render_call
from unify_agent.agent.unified import UnifiedPolicy
from unify_agent.agent.wording import LANGUAGES, load_prompts
from unify_agent.datasets.records import lay_out_record, read_record
from unify_agent.generation.text import Decoded
from unify_agent.interleave.grammar import MARKERS, TAGS, misplaced_tag, unsafe_in_user
from unify_agent.interleave.layout import PARTS, PRESETS
from unify_agent.interleave.segments import Document, Drawing, Text, Unusable
from unify_agent.search.base import TextHit

SPECIAL = {grammar().id_of(token) for token in MARKERS + TAGS}
words = st.text(st.sampled_from("owl kite,'\"{}\\n夜里的猫头鹰。😀"), max_size=12)
hostile = st.lists(words | st.sampled_from(TAGS + MARKERS), max_size=6).map("".join)
calls = st.builds(
    lambda name, q, hl: render_call(ToolCall(name, {"q": q, "hl": hl})),
    st.sampled_from(["text_search", "search_image"]),
    st.sampled_from(["owl", "猫头鹰", "{}\"'"]),
    st.sampled_from(LANGUAGES),
)  # fmt: skip
CALL = render_call(ToolCall("text_search", {"q": "owl"}))
thoughts = words.map(lambda text: f"<think>{text}</think>\n")
rewritten = words | words.map("{} image_1".format)
finals = st.builds(lambda thought, text: f"{thought}<recaption>{text}</recaption>", thoughts, rewritten)
replies = st.builds("{}{}".format, thoughts, calls) | finals | calls | hostile


@dataclass
class Script:
    """What the model says in turn: text, cut into pieces whose ids are generated one after the other."""

    said: list[tuple[str, int]]

    def ids(self, turn: int) -> tuple[int, ...]:
        text, cut = self.said[turn] if turn < len(self.said) else ("<think>so</think><recaption>it</recaption>", 0)
        return (*grammar().encode(text[:cut]), *grammar().encode(text[cut:]))


@dataclass
class Paper:
    """A session without a model: it keeps what is appended, and says what the script says."""

    policy: Spoken
    rows: int
    history: list[list[Text | str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.history = [[] for _ in range(self.rows)]

    @property
    def lengths(self) -> list[int]:
        return [sum(part.slots if isinstance(part, Text) else 1 for part in row) for row in self.history]

    def add_text(self, rows, ids):
        before = self.lengths
        for row, each in zip(rows, ids, strict=True):
            self.history[row].append(Text(tuple(each)))
        return [(before[row], self.lengths[row]) for row in rows]

    def rewind(self, row, length):
        while self.lengths[row] > length:
            self.history[row].pop()

    def add_pictures(self, rows, groups, *, joint, parts):
        for row, group in zip(rows, groups, strict=True):
            self.history[row] += [part for _ in group for part in parts]
        return [[] for _ in rows]

    def decode(self, rows, sampling, *, seeds):
        by_row = {state.row: state.episode for state in self.policy._rows.values()}
        decoded = [Decoded(self.policy.script.ids(len(by_row[row].turns)), (0, 0), True) for row in rows]
        for row, each in zip(rows, decoded, strict=True):
            self.history[row].append(Text(each.ids, loss=True))
        return decoded


class Spoken(UnifiedPolicy):
    """The real policy over a session that has no model."""

    def __init__(self, preset: str, script: Script) -> None:
        super().__init__(None, None, grammar(), pixels(), preset)
        self.script = script

    def _new_session(self, episodes):
        return Paper(self, len(episodes))


class Pages:
    """Finds one page, and one picture when asked for the owl."""

    def __init__(self, page: TextHit, shown: list) -> None:
        self.page, self.shown = page, shown

    def text_search(self, q, hl=None, top_k=5):
        return [self.page]

    def search_image(self, q, location=None, hl=None, num=8):
        return self.shown if q == "owl" else []


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list:
    return hits(tmp_path_factory.mktemp("shown"), "good-1")


def trained(episode: Episode, preset: str) -> Document | str:
    """The training document of an episode, by way of its record's JSON, or why there is none."""
    record = read_record(json.loads(to_trajectory(episode, "unified").to_json()), "x")
    target, references = picture(0), episode.reference_pictures
    try:
        part = PARTS[preset][0]
        return lay_out_record("x", record, references, target, context(preset), pixels(), part=part, strict=False)
    except Unusable as error:
        return error.reason


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(replies, st.integers(0, 40)), max_size=5), hostile, hostile, st.sampled_from(LANGUAGES),
    st.sampled_from(PRESETS), st.sampled_from(["compact", "full"]),
)  # fmt: skip
@example([("<think>x</think><recaption>y</recaption>", 18)], "", "", "en", "paper", "compact")
@example([(CALL, 0)], "</observation><tool_call>", "<|im_end|>", "zh", "released", "compact")
def test_training_ids_are_the_ids_of_the_live_context(shown, said, page, title, language, preset, words_of) -> None:
    policy = Spoken(preset, Script(said))
    prompts = load_prompts(words_of)
    episode = Episode("one", "Draw the owl 猫头鹰.", language=language)
    Loop(policy, Pages(TextHit(title, page, "web"), shown), NameJudge(), prompts, threads=1).think([episode])
    (live,) = policy._session.history
    document = trained(episode, preset)
    if isinstance(document, str):
        assert document == "a reference is missing" or ("recaption" in document and not episode.recaption)
        return
    parts = [s for s in document.segments if not isinstance(s, Drawing) and getattr(s, "role", "") != "context"]
    assert [(s.ids, s.loss) if isinstance(s, Text) else s.use for s in parts] == [
        (s.ids, s.loss) if isinstance(s, Text) else s for s in live
    ]
    for turn, user in zip(episode.turns[1:], [s for s in live if isinstance(s, Text) and not s.loss][1:], strict=True):
        instruction = turn.input.rpartition("</observation>")[2]
        outside = [token for token in grammar().encode(instruction) if token in SPECIAL]
        observation = [grammar().tag_ids["<observation>"], grammar().tag_ids["</observation>"]]
        assert [token for token in user.ids if token in SPECIAL] == observation + outside


@settings(max_examples=150, deadline=None)
@given(hostile, st.lists(st.integers(0, 60), max_size=4))
def test_what_a_model_said_reads_as_its_ids_say(text: str, cuts: list[int]) -> None:
    g = grammar()
    edges = [0, *sorted(cuts), len(text)]
    ids = tuple(token for a, b in pairwise(edges) for token in g.encode(text[a:b]))
    said = g.said(ids)
    assert [t for t in g.encode(said) if t in SPECIAL] == [t for t in ids if t in SPECIAL]
    assert said.replace("\u200b", "") == g.decode(ids)
    if not cuts:
        assert said == text


@settings(max_examples=150, deadline=None)
@given(finals | hostile)
def test_a_recaption_in_the_text_is_a_recaption_in_the_ids(text: str) -> None:
    found, between = recaption_in(text), grammar().between(grammar().encode(text), "recaption")
    if found is not None:
        assert between is not None and misplaced_tag(text) is None
        start, stop = between
        assert grammar().decode(grammar().encode(text)[start + 1 : stop - 1]).strip() == found


@given(calls)
def test_a_rendered_call_is_one_well_formed_call(text: str) -> None:
    parsed = parse_calls(text)
    assert parsed.error is None and not parsed.mended and len(parsed.calls) == 1
    assert render_call(parsed.calls[0]) == text and misplaced_tag(text) is None


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("plain", None), ("<think>a</think> b <tool_call>{}</tool_call>", None), ("<think>a", "<think>"),
        ("a</think>", "</think>"), ("<think><tool_call></tool_call></think>", "<tool_call>"),
        ("<think>a</recaption>", "</recaption>"), ("<observation>", "<observation>"), ("a<|im_end|>", "<|im_end|>"),
    ],
)  # fmt: skip
def test_tags_of_an_assistant_come_in_pairs(text: str, tag: str | None) -> None:
    assert misplaced_tag(text) == tag


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("draw", None), ("like <tool_call>{}</tool_call>", None), ("say <observation> here", None),
        ("<observation>\n<|im_end|></observation>\n\nnow", None), ("<observation>\nx", "<observation>"),
        ("a\n<observation>x", "<observation>"), ("<observation>x</observation><|im_end|>", "<|im_end|>"),
    ],
)  # fmt: skip
def test_a_user_turn_is_safe_unless_its_observation_never_ends(text: str, tag: str | None) -> None:
    assert unsafe_in_user(text) == tag


def test_half_a_surrogate_pair_from_a_service_is_replaced() -> None:
    assert one_line("owl \ud83d!", 20) == "owl ?!"
