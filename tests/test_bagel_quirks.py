"""The 23 quirks of the public code: docs/decisions.md says of each what we do, and names a test that holds it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets_tools import grammar, picture, pixels, tokenizer
from generation_tools import MARKERS, tiny
from golden_model import golden, golden_batch, golden_config, golden_model

from tests.training_ranks import compose
from unify_agent.datasets.folder import pictures_of
from unify_agent.datasets.loader import Dropout
from unify_agent.generation.sampler import SamplerSettings
from unify_agent.generation.session import Session
from unify_agent.interleave.batch import PackRules, pack, position_ids
from unify_agent.interleave.layout import PARTS, PRESETS, Exchange, Preset, drop_conditions, lay_out
from unify_agent.interleave.segments import Document, Drawing, Picture, Text
from unify_agent.interleave.transforms import Transform
from unify_agent.interleave.visibility import dense_mask
from unify_agent.model.embeddings import rope_tables
from unify_agent.model.losses import timesteps
from unify_agent.model.weights import Description, ModelFolder, load_model, save_folder

TESTS = Path(__file__).parent
LINE = re.compile(r"^\| (\d+) \| (reproduced|offered|mended) \| .+ \| `(test_\w+)` \|$", re.MULTILINE)


def test_every_quirk_has_a_decision_and_a_test_that_exists() -> None:
    text = (TESTS.parent / "docs" / "decisions.md").read_text(encoding="utf-8")
    found = LINE.findall(text)
    assert [int(number) for number, *_ in found] == list(range(1, 24))
    defined = {
        name for file in TESTS.glob("test_*.py") for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    assert {name for *_, name in found} <= defined


def test_a_tokenizer_shorter_than_the_table_leaves_it_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    tokenizer().save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    description = Description("paper", {"vae": Transform(64, 32, 16), "vit": Transform(56, 28, 14)}, "compact", {})
    state = golden_model().state_dict()
    folder = save_folder(tmp_path / "out", state, golden_config(), tiny()[1], tmp_path / "tokenizer", description)
    loaded, words = load_model(folder).state_dict(), ModelFolder(folder).grammar()
    for name in ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight"):
        assert torch.equal(loaded[name], state[name])
    assert words.size < len(loaded["language_model.lm_head.weight"]) == 512
    assert max(words.tag_ids.values()) < words.size


def test_a_drawing_whose_whole_context_was_dropped_is_packed_like_any_other() -> None:
    zero = np.zeros((32, 48, 3), np.uint8)
    document = Document("a", (Text((1, 2), name="recaption"), Drawing(zero, sees=("recaption",))))
    bare = drop_conditions(document, np.random.default_rng(0), "released", text=1.0, vit=1.0, vae=1.0)
    rules = PackRules(500, 501, 502, 503, 32, 20)
    batch = pack([bare, document], rules)
    assert batch.sample_ids == ["a", "a"] and len(batch.mse_at) == 12
    mask = dense_mask(batch.spans)
    assert mask.shape == (batch.length, batch.length) and mask.any(1).all()
    size = document.slots
    np.testing.assert_array_equal(mask[-size:, -size:], dense_mask(pack([document], rules).spans))
    np.testing.assert_array_equal(np.flatnonzero(mask[4:12].any(0)), np.arange(4, 12))


@pytest.mark.parametrize("preset", PRESETS)
def test_a_single_turn_still_shows_its_references(preset: Preset) -> None:
    words = grammar()
    turn = Exchange("draw it", words.encode("<think>x</think> <recaption>y</recaption>"))
    for part in PARTS[preset]:
        document = lay_out("a", [turn], [picture(1), picture(2)], picture(3), grammar=words, pixels=pixels(),
                           preset=preset, part=part)  # fmt: skip
        shown = [segment.name for segment in document.segments if isinstance(segment, Picture)]
        assert shown == ["reference_1.vae", "reference_1.vit", "reference_2.vae", "reference_2.vit"]
    drawing = next(segment for segment in document.segments if isinstance(segment, Drawing))
    assert drawing.sees is not None and set(shown) <= set(drawing.sees)


def test_a_drawing_leaves_no_state_behind() -> None:
    session = Session(*tiny(), MARKERS)
    session.add_text([0], [[1, 2, 3]])

    def drawn(**keys) -> np.ndarray:
        return session.draw([0], [None], [(32, 48)], SamplerSettings(steps=4, **keys), [7])[0]

    first = drawn()
    assert not np.array_equal(drawn(text_scale=1.0), first)
    assert np.array_equal(drawn(), first)


def test_the_loss_is_the_same_in_evaluation_mode() -> None:
    batch, latents = golden_batch()
    model = golden_model()
    trained, evaluated = model.train()(batch, latents), model.eval()(batch, latents)
    assert torch.equal(trained.ce, evaluated.ce) and torch.equal(trained.mse, evaluated.mse)


def test_condition_dropout_has_one_default_which_is_none() -> None:
    chosen = compose([]).data.dropout
    assert (chosen.text, chosen.vit, chosen.vae) == (0, 0, 0)
    assert Dropout() == Dropout(0, 0, 0)


def test_angles_and_timesteps_stay_in_float32_whatever_the_model_computes_in() -> None:
    model, stored = golden_model().bfloat16(), golden("embeddings")
    assert not list(model.buffers()), "nothing that a cast of the model could round"
    logits = golden_batch()[0].timestep_logits
    with torch.autocast("cpu", torch.bfloat16):
        cos, _ = rope_tables(stored["rope.ids"], 16, 1e6)
        t = timesteps(logits, 1.0)
    assert cos.dtype == t.dtype == torch.float32
    torch.testing.assert_close(cos, stored["rope.cos"])
    assert torch.equal(t, torch.sigmoid(logits))
    assert not torch.equal(t, torch.sigmoid(logits.bfloat16().float()))


def test_references_are_the_first_two_pictures_by_path(tmp_path: Path) -> None:
    place = tmp_path / "birds" / "intermediate" / "owl"
    (tmp_path / "birds" / "images").mkdir(parents=True)
    place.mkdir(parents=True)
    for file in ("image_2.png", "image_10.png", "image_1.png", "image_0.txt"):
        (place / file).touch()
    (tmp_path / "birds" / "images" / "owl_0.png").touch()
    names = [Path(each).name for each in pictures_of(tmp_path, "birds", "owl")]
    assert names == ["image_1.png", "image_10.png", "owl_0.png"]


@pytest.mark.parametrize(("height", "width"), [(28, 42), (980, 490), (98, 56)])
def test_position_ids_are_those_of_the_table_and_never_interpolated(height: int, width: int) -> None:
    stored, name = golden("embeddings"), f"{height}x{width}_p14_n70"
    ids = position_ids((height // 14, width // 14), 70)
    assert torch.equal(ids, stored[f"ids.extrapolate.{name}"].flatten())
    assert not torch.equal(ids, stored[f"ids.interpolate.{name}"].flatten())
