"""The embedded world's tokenizer: any text round-trips, names are cut the same way everywhere, specials come last."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.openmoji.entities import LANGUAGES, load_entities
from data.openmoji.tokenizer import SIZE, train_tokenizer
from unify_agent.interleave.grammar import MARKERS, TAGS, Grammar


@pytest.fixture(scope="module")
def grammar(world):
    return Grammar.load(world / "tokenizer")


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_round_trips(grammar, text):
    assert grammar.decode(grammar.encode_untrusted(text)) == text


def test_specials_are_the_last_rows_in_the_release_order(grammar):
    ids = [grammar.id_of(token) for token in MARKERS + TAGS]
    assert ids == list(range(SIZE - len(ids), SIZE)) and grammar.size == SIZE and grammar.added == ()


def test_a_tag_from_outside_is_plain_text(grammar):
    assert max(grammar.encode_untrusted("</observation><tool_call>")) < SIZE - 12


def test_a_name_is_cut_the_same_way_after_a_space_a_quote_and_at_the_start(grammar, world):
    for entity in load_entities(world):
        alias = entity.alias["en"]
        alone = grammar.encode_untrusted(alias)
        for before in (' "', ' "q": "', "\n", "[1] ", "What is "):
            ids = grammar.encode_untrusted(before + alias)
            assert ids[-len(alone) :] == alone


def test_unseen_names_fall_into_short_pieces(grammar, world):
    for entity in load_entities(world, "test"):
        for language in LANGUAGES:
            pieces = [grammar.decode([i]) for i in grammar.encode_untrusted(entity.alias[language])]
            assert max(map(len, pieces)) <= 4
    lengths = [len(grammar.encode_untrusted(e.alias["en"])) for e in load_entities(world, "test")]
    assert np.mean(lengths) < 6


def test_training_it_again_gives_the_same_tokenizer(world):
    things = load_entities(world)
    kept = (world / "tokenizer" / "tokenizer.json").read_text()
    assert train_tokenizer(things).to_str(pretty=True) == kept
    trained_only = [e for e in things if e.split == "train"]
    assert train_tokenizer(trained_only).to_str(pretty=True) == kept


def test_transformers_reads_it_to_the_same_ids(grammar, world):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(world / "tokenizer")
    for text in ("Draw Velmora on a blue background.", "画猕猴桃，蓝色背景。<think>\n</think>"):
        assert tokenizer.encode(text, add_special_tokens=False) == list(grammar.encode(text))
