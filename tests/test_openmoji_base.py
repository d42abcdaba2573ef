"""The committed base model belongs to this code: it has to be rebuilt when, and only when, these fail."""

import json

import pytest

from data.openmoji import base, entities, pictures, tokenizer
from unify_agent.errors import UserError
from unify_agent.interleave.grammar import Grammar
from unify_agent.model.config import TINY
from unify_agent.model.weights import ModelFolder, load_model
from unify_agent.training.export import architecture_hash


@pytest.fixture(scope="module")
def made():
    return json.loads((base.BASE / "unify_agent.json").read_text())["provenance"]


def test_it_has_the_architecture_of_the_code(made):
    assert made["architecture"] == architecture_hash(TINY)
    assert architecture_hash(ModelFolder(base.BASE).config) == made["architecture"]


def test_its_tensors_load_strictly():
    assert sum(p.numel() for p in load_model(base.BASE).parameters()) > 4_000_000


def test_it_is_small_enough_for_a_checkout():
    assert sum(path.stat().st_size for path in base.BASE.iterdir()) <= base.LARGEST


@pytest.mark.slow
def test_the_code_still_makes_its_tokenizer_and_its_entities(made, tmp_path):
    drawings = pictures.render_all(tmp_path, entities.candidates())
    things = entities.make_entities(drawings)
    (tmp_path / "entities.json").write_text(entities.to_json(things))
    tokenizer.write_tokenizer(things, tmp_path / "tokenizer")
    assert Grammar.load(tmp_path / "tokenizer").fingerprint == made["tokenizer"]
    assert base.entities_of(tmp_path) == made["entities"]
    base.check(tmp_path)


def test_another_world_is_refused(world):
    with pytest.raises(UserError, match="other entities"):
        base.check(world)
