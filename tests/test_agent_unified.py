"""The unified policy: its context is the training document, token for token, and it draws from what the preset says."""

from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import torch
from agent_tools import FINAL, IMAGE_CALL, TEXT_CALL, MemorySearch, NameJudge, hits
from datasets_tools import grammar, pixels
from generation_tools import tiny

from unify_agent.agent.episode import AgentOptions, Episode
from unify_agent.agent.loop import Loop
from unify_agent.agent.record import png, png_metadata, to_trajectory
from unify_agent.agent.unified import UnifiedPolicy
from unify_agent.agent.wording import load_prompts
from unify_agent.generation.branches import contexts
from unify_agent.generation.drawing import Denoiser
from unify_agent.generation.sampler import BRANCHES, SamplerSettings
from unify_agent.generation.session import Session
from unify_agent.generation.text import Sampling
from unify_agent.interleave.batch import PackRules, pack
from unify_agent.interleave.layout import PARTS, Exchange, lay_out
from unify_agent.interleave.randomness import generator
from unify_agent.interleave.segments import Picture, Text
from unify_agent.interleave.visibility import document_spans
from unify_agent.model.losses import noised, timesteps
from unify_agent.model.vae import encode_batch

DIRECT = "<think>I know it.</think>\n<recaption>A kiwi fruit on red.</recaption>"


@pytest.fixture
def search(tmp_path):
    return MemorySearch({"kiwi fruit": hits(tmp_path, "good-1", "good-22")})


@pytest.fixture
def spoken(monkeypatch):
    """Makes the model say what a script says, through the real decoder: `spoken(policy, script)`."""
    decode = Session.decode

    def prepare(policy, script):
        def forced(session, rows, sampling, *, prefix=None, seeds=None):
            by_row = {s.row: s.episode for s in policy._rows.values()}
            ids = [grammar().encode(script(by_row[row])) for row in rows]
            return decode(session, rows, Sampling(max_new=0), prefix=ids, seeds=seeds)

        monkeypatch.setattr(Session, "decode", forced)

    return prepare


def script(episode):
    if "known" in episode.id:
        return DIRECT
    return (TEXT_CALL, IMAGE_CALL, FINAL)[len(episode.turns)]


def policy(preset="paper", **changes):
    model, vae = tiny()
    settings = SamplerSettings(steps=3, shift=1.0, text_scale=1.0, image_scale=1.0)
    return UnifiedPolicy(model, vae, grammar(), pixels(), preset, settings=settings, size=(32, 48), **changes)


def loop(policy, search):
    return Loop(policy, search, NameJudge(), load_prompts("compact"))


def episodes(**options):
    made = [Episode(name, f"Draw {name}.", seed=3, options=AgentOptions(**options)) for name in ("rare", "known")]
    return made


def document_of(episode, preset, **changes):
    turns = [Exchange(t.input, tuple(t.response_ids)) for t in to_trajectory(episode, "unified").full_response]
    target = np.zeros((32, 48, 3), np.uint8)
    from PIL import Image

    return lay_out(episode.id, turns, episode.reference_pictures, Image.fromarray(target), grammar=grammar(),
                   pixels=pixels(), preset=preset, part=PARTS[preset][-1], **changes)  # fmt: skip


@pytest.mark.parametrize("preset", ["paper", "released"])
@pytest.mark.parametrize("recaption", [True, False])
def test_the_context_is_the_training_document(search, spoken, preset, recaption):
    made = policy(preset)
    spoken(made, script)
    both = episodes(recaption=recaption, history=True)
    loop(made, search).think(both)
    session, rows, sees = made._context("history", both)
    for episode, row, seen in zip(both, rows, sees, strict=True):
        document = document_of(episode, preset, context="recaption" if recaption else "request")
        parts = [s for s in document.segments if isinstance(s, Text | Picture)]
        if preset == "released" and not recaption:
            assert not any(isinstance(s, Text) and s.role == "context" for s in parts)
        held = session.history[row]
        assert [(e.kind, e.ids) for e in held] == [
            ("text", p.ids) if isinstance(p, Text) else (p.use, ()) for p in parts]  # fmt: skip
        drawing = document_spans(document)[-1]
        wanted = sorted(t for start, stop in drawing.sees if start != drawing.start for t in range(start, stop))
        wanted = [t for t in wanted if t < drawing.start]
        assert sorted(t for start, stop in seen for t in range(start, stop)) == wanted


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_a_record_is_drawn_as_the_live_cache_is(search, spoken, preset):
    made = policy(preset)
    spoken(made, script)
    both = episodes(history=True)
    loop(made, search).run(both)
    again = [replace(episode, picture=None) for episode in both]
    assert {made._way(episode) for episode in again} == {"record"}
    for episode, picture in zip(both, made.draw(again), strict=True):
        np.testing.assert_allclose(episode.picture.astype(int), picture.astype(int), atol=1)
        assert episode.settings["drawn_from"] == "history" and episode.settings["layout"] == preset


@pytest.mark.parametrize("preset", ["released", "isolated"])
def test_a_fresh_context_is_drawn_from_unless_told_otherwise(search, spoken, preset):
    made = policy(preset)
    spoken(made, script)
    both = episodes()
    loop(made, search).run(both)
    assert [e.settings["drawn_from"] for e in both] == ["fresh", "fresh"]
    assert all(e.picture.shape == (32, 48, 3) for e in both)


@pytest.mark.parametrize("recaption", [True, False])
def test_isolated_draws_from_its_generation_document(search, spoken, recaption):
    """The fresh context is that document, segment for segment and rope id for rope id, and gives its velocity."""
    made = policy("isolated")
    spoken(made, script)
    both = episodes(recaption=recaption)
    loop(made, search).think(both)
    assert [made._way(episode) for episode in both] == ["fresh", "fresh"]
    session, rows, sees = made._context("fresh", both)
    for episode, row in zip(both, rows, strict=True):
        document = document_of(episode, "isolated", context="recaption" if recaption else "request")
        assert [(e.kind, e.ids) for e in session.history[row]] == [
            ("text", s.ids) if isinstance(s, Text) else (s.use, ()) for s in document.segments[:-1]
        ]
        expected, found = velocities(document, episode, session, row, sees[row], keep_rope=True)
        assert torch.allclose(found, expected, atol=1e-4, rtol=1e-4)


def velocities(document, episode, session, row, seen, keep_rope):
    """What training computes for a document's drawing, and generation for the same noise in a row: [6, P] each."""
    words, (model, vae) = grammar(), tiny()
    rules = PackRules(words.bos, words.eos, words.start_of_image, words.end_of_image, 32, 20)
    batch = pack([document], rules)
    for n in range(len(batch.vae_noise) - 1):  # the session's own posterior samples of the references
        draw = generator(episode.seed, 0, "context", n, "vae")
        batch.vae_noise[n] = torch.from_numpy(draw.standard_normal(batch.vae_noise[n].shape, dtype=np.float32))
    latents, t = encode_batch(vae, batch), timesteps(batch.timestep_logits, 1.0)
    with torch.no_grad():
        expected = model.velocity(model(batch, latents).hidden[batch.mse_at])
    x = noised(latents, batch.flow_noise, t)[-6:]
    found = contexts(session, [row], [seen], branches=BRANCHES[:1], keep_rope=keep_rope)
    return expected, Denoiser(session, found, (2, 3))(x[None], t[-1].item(), ("full",))[0][0]


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_the_history_gives_the_velocity_of_training_and_a_fresh_context_another_one(search, spoken, preset):
    """`released` draws from a fresh context, as the public agent does, though it was trained on the history;
    `AgentOptions(history=True)` removes the difference."""
    made = policy(preset)
    spoken(made, script)
    both = episodes()
    loop(made, search).think(both)
    episode = both[0]

    def velocity(way):
        session, (row,), (seen,) = made._context(way, [episode])
        return velocities(document_of(episode, preset), episode, session, row, seen, keep_rope=preset == "paper")

    expected, found = velocity("history")
    assert torch.allclose(found, expected, atol=1e-4, rtol=1e-4)
    away = ((velocity("fresh")[1] - expected).norm() / expected.norm()).item()
    print(f"{preset}: a fresh context moves the velocity by {away:.3f} of its length")
    assert 1e-3 < away < 1
    episode.options = AgentOptions(history=True)
    assert made._way(episode) == "history"
    episode.options = AgentOptions()
    assert made._way(episode) == ("history" if preset == "paper" else "fresh")


def test_a_picture_file_tells_how_to_draw_it_again(tmp_path):
    made, steps = policy(provenance={"model": "somewhere", "weights": "0123456789abcdef"}), []
    made.settings = SamplerSettings(4, 2.0, 3.0, 1.5, (0.4, 1.0), "channel", 0.1)
    made.on_step = lambda *step: steps.append(step)
    episode = Episode("bare", "A kiwi fruit on red.", seed=5, stop="direct")
    (picture,) = made.draw([episode])
    assert steps == [(1, 3), (2, 3), (3, 3)]
    (tmp_path / "bare.png").write_bytes(png(picture, {"prompt": episode.request, **episode.settings}))
    told = png_metadata(tmp_path / "bare.png")
    assert (told["dtype"], told["weights"], told["layout"]) == ("float32", "0123456789abcdef", "paper")
    other = policy()
    other.settings = SamplerSettings(**{field.name: told[field.name] for field in fields(SamplerSettings)})
    other.size = (told["height"], told["width"])
    assert other.settings == made.settings
    (again,) = other.draw([Episode("again", told["prompt"], seed=told["seed"], stop="direct")])
    assert np.abs(again.astype(int) - picture.astype(int)).max() <= 1


def drawn(made, search, spoken, **options):
    spoken(made, script)
    both = episodes(**options)
    loop(made, search).run(both)
    assert [(e.stop, e.status) for e in both] == [("grounded", "ok"), ("direct", "ok")]
    return [e.picture for e in both]


@pytest.mark.parametrize(
    ("options", "rare", "known"),
    [
        ({"recaption": False}, True, True),
        ({"edit_recaption": lambda text: text + " Blue."}, True, True),
        ({"edit_recaption": lambda text: text}, False, False),
        ({"hide_while_recaptioning": "vae"}, False, False),
        ({"history": False}, True, True),
    ],
)
def test_each_switch_changes_the_picture_when_it_changes_what_is_seen(search, spoken, options, rare, known):
    plain, changed = (drawn(policy(), search, spoken, **each) for each in ({}, options))
    assert [bool((np.abs(a.astype(int) - b) > 1).any()) for a, b in zip(plain, changed, strict=True)] == [rare, known]


@pytest.mark.parametrize("hidden", ["vae", "vit"])
def test_tokens_of_one_kind_are_absent_while_the_recaption_is_written(search, spoken, hidden):
    made = policy()
    spoken(made, script)
    both = episodes(hide_while_recaptioning=hidden)
    loop(made, search).think(both)
    kinds = {e.kind for e in made._session.history[0]}
    assert kinds == {"text", "vae", "vit"} - {hidden}
    session, _, _ = made._context("record", both)
    assert {e.kind for e in session.history[0]} == {"text", "vae", "vit"}


def test_a_bare_request_is_drawn_without_having_spoken():
    episode = Episode("bare", "A kiwi fruit on red.", stop="direct")
    (picture,) = policy().draw([episode])
    assert picture.shape == (32, 48, 3)
    assert episode.settings["drawn_from"] == "record"


def test_rows_do_not_depend_on_their_neighbours(search, spoken):
    together = drawn(policy(), search, spoken)
    made = policy()
    spoken(made, script)
    alone = episodes()[1:]
    loop(made, search).run(alone)
    np.testing.assert_allclose(together[1].astype(int), alone[0].picture.astype(int), atol=1)


def test_a_full_context_fails_its_item_only(search, spoken):
    made = policy(max_tokens=300, sampling=Sampling(max_new=100))
    spoken(made, script)
    both = episodes()
    both[0].request = "Draw " + "something " * 60
    loop(made, search).run(both)
    assert [e.stop for e in both] == ["policy_error", "direct"]
    assert both[0].error.startswith("ContextFull")


def test_a_random_model_is_survived(search):
    both = episodes(max_rounds=2)
    loop(policy(sampling=Sampling(max_new=12)), search).run(both)
    assert {e.stop for e in both} <= {"bad_calls", "no_recaption"}
    assert all(e.picture is not None and e.turns[0].ids is not None for e in both)


def test_what_is_recorded_draws_the_picture_again(search, spoken):
    pictures = [drawn(policy(), search, spoken)[0] for _ in range(2)]
    assert np.array_equal(*pictures)
    assert not np.array_equal(pictures[0], partial(drawn, policy())(search, spoken, recaption=False)[0])
