"""Entities of the embedded world: names, aliases, families, splits, and that nothing held out leaks."""

import json
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from data.openmoji import entities as E
from data.openmoji import leaks
from data.openmoji.pictures import Drawings, drawings_path
from unify_agent.errors import UserError
from unify_agent.files import write_text


def test_splits_are_80_10_10_and_the_small_world_keeps_them(world):
    counts = Counter(e.split for e in E.load_entities(world))
    assert counts == {"train": 96, "val": 12, "test": 12}


def test_a_family_lies_in_one_split(world):
    splits = {}
    for entity in E.load_entities(world):
        assert splits.setdefault(entity.family, entity.split) == entity.split


def test_names_and_aliases_are_unique_and_usable(world):
    for language in E.LANGUAGES:
        things = E.load_entities(world)
        said = [text.lower() for e in things for text in (e.name[language], e.alias[language])]
        assert len(set(said)) == len(said)
    assert all(E.english_name(e.name["en"]) and E.chinese_name(e.name["zh"]) for e in E.load_entities(world))


def test_an_alias_does_not_give_its_name_away(world):
    for entity in E.load_entities(world):
        assert not set(entity.alias["en"].lower().split()) & set(entity.name["en"].lower().split())
        assert entity.name["zh"] not in entity.alias["zh"]


def test_common_things_are_known_and_trained(world):
    common = E.common_entities(E.load_entities(world))
    assert len(common) == 24 and all(e.split == "train" for e in common)


@pytest.mark.parametrize("raw", [":U.S._Outlying_Islands:", ":keycap_#:", ":a_b_c_d_e:", ":UP!_button:"])
def test_odd_english_names_are_refused(raw):
    assert E.english_name(raw) is None


def test_the_world_says_so_when_it_is_not_there(tmp_path):
    with pytest.raises(UserError, match="no world here"):
        E.load_entities(tmp_path)


def test_nothing_held_out_leaks(world):
    counts = leaks.check(world, samples=40)
    assert counts["held_out"] == 24 and counts["trained_drawings"] == 96


def _moved(world, tmp_path, change):
    """A copy of the world with changed entities."""
    copy = tmp_path / "world"
    copy.mkdir()
    shutil.copy(drawings_path(world), drawings_path(copy))
    write_text(copy / "entities.json", E.to_json([change(e) for e in E.load_entities(world)]))
    return copy


def test_a_family_in_two_splits_is_found(world, tmp_path):
    first = next(e for e in E.load_entities(world, "train"))
    test = next(e for e in E.load_entities(world, "test"))
    copy = _moved(world, tmp_path, lambda e: replace(e, family=first.family) if e.id == test.id else e)
    with pytest.raises(UserError, match="leak: family"):
        leaks.check(copy)


def test_a_near_duplicate_in_two_splits_is_found(world, tmp_path):
    things, drawings = E.load_entities(world), Drawings.load(drawings_path(world))
    distances = E.picture_distances(drawings, [e.id for e in things])
    rows, _ = np.nonzero(np.triu(distances < E.NEAR, 1))
    assert len(rows), "the small world holds near-duplicates, all in one split"
    twin = things[rows[0]].id
    copy = _moved(world, tmp_path, lambda e: replace(e, split="test", family="x") if e.id == twin else e)
    with pytest.raises(UserError, match="look nearly the same"):
        leaks.check(copy)


def test_a_held_out_name_in_a_text_is_found(world):
    held_out = E.load_entities(world, "test")
    entity = held_out[0]
    assert leaks.leaked_name(f"Look at the {entity.name['en']}s here.", held_out) == entity.name["en"]
    assert leaks.leaked_name(json.dumps({"q": entity.alias["zh"]}, ensure_ascii=False), held_out)
    assert leaks.leaked_name("Nothing of the kind.", held_out) is None


def test_a_trajectory_that_met_a_held_out_name_is_removed_whole(world, tmp_path):
    test, train = E.load_entities(world, "test")[0], E.load_entities(world, "train")[0]
    for item, name in (("1", test.name["zh"]), ("2", train.name["zh"])):
        write_text(tmp_path / "food" / "traj" / f"{item}_trajectory.json",
                   json.dumps({"turns": [{"input": f"[2] x\n{name}是食物。"}]}))  # fmt: skip
        write_text(tmp_path / "food" / "intermediate" / item / "image_1.png", "")
        write_text(tmp_path / "food" / "images" / f"{item}_0.png", "")
    assert leaks.drop_leaking(tmp_path, world) == 1
    left = sorted(str(p.relative_to(tmp_path / "food")) for p in tmp_path.rglob("*") if p.is_file())
    assert left == ["images/2_0.png", "intermediate/2/image_1.png", "traj/2_trajectory.json"]
