"""The corpus, its index and how the world is built: resumable, and refused where it does not belong."""

import json
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from data.openmoji import corpus
from data.openmoji.entities import LANGUAGES, load_entities
from data.openmoji.world import build_world
from unify_agent.errors import UserError
from unify_agent.search.index import Index


@pytest.fixture(scope="module")
def index(world):
    return Index.open(world / "search")


def _records(world):
    return [json.loads(line) for line in (world / "corpus" / "images.jsonl").read_text().splitlines()]


def test_an_alias_leads_to_the_name(world, index):
    for entity in load_entities(world)[::6]:
        for language in LANGUAGES:
            hits = index.text_search(entity.alias[language], hl=language, top_k=2)
            assert entity.name[language].lower() in hits[0].text.lower()


def test_the_first_six_pictures_of_a_name_are_its_own(world, index):
    for entity in load_entities(world)[::6]:
        for language in LANGUAGES:
            hits = index.search_image(entity.name[language], hl=language, num=6)
            assert {index.labels(hit.id)["about"] for hit in hits} == {entity.id}


def test_shy_things_show_good_pictures_only_as_specimens(world, index):
    shy = [e for e in load_entities(world) if corpus.supply(e) == "shy"]
    assert shy
    for entity in shy:
        for language in LANGUAGES:
            bare = index.search_image(entity.name[language], hl=language, num=6)
            assert all(index.labels(hit.id)["kind"] != "good" for hit in bare)
            query = corpus.SPECIMEN[language].format(name=entity.name[language])
            hits = index.search_image(query, hl=language, num=6)
            good = [h for h in hits if index.labels(h.id) | {"split": ""} ==
                    {"entity": entity.id, "kind": "good", "about": entity.id, "split": ""}]  # fmt: skip
            assert len(good) == 2


def test_every_kind_of_candidate_is_there_and_look_alikes_stay_in_their_split(world):
    records, split = _records(world), {e.id: e.split for e in load_entities(world)}
    kinds = Counter(record["labels"]["kind"] for record in records)
    assert set(kinds) == {"good", *corpus.BAD}
    for record in records:
        labels = record["labels"]
        assert split[labels["entity"]] == split[labels["about"]] == labels["split"]
        assert (labels["entity"] != labels["about"]) == (labels["kind"] == "other")
        assert "CC BY-SA" in record["licence"] and record["source"].startswith("https://")


def test_what_is_wrong_with_a_picture_is_in_its_pixels(world):
    for record in _records(world)[:120]:
        with Image.open(world / "corpus" / record["path"]) as picture:
            pixels = np.asarray(picture.convert("RGB"), np.float32)
        kind = record["labels"]["kind"]
        assert (min(pixels.shape[:2]) < 64) == (kind == "tiny")
        if kind == "good":
            assert (pixels[0] == pixels[0, 0]).all() and pixels[0, 0].min() >= 230


def test_supply_has_the_shares_that_it_names():
    from dataclasses import replace

    from data.openmoji.entities import Entity

    base = Entity("0", {}, {}, "food", "0", "train", False, ())
    counts = Counter(corpus.supply(replace(base, id=f"{k:05X}")) for k in range(4000))
    assert [round(counts[kind] / 4000, 2) for kind in ("shy", "single", "none")] == pytest.approx(
        [0.15, 0.08, 0.04], abs=0.015
    )


def test_a_finished_world_is_left_as_it_is(world):
    before = {p: p.stat().st_mtime_ns for p in world.rglob("*") if p.is_file() and p.name != "world.json"}
    build_world(world, limit=120, workers=1, quiet=True)
    assert before == {p: p.stat().st_mtime_ns for p in world.rglob("*") if p.is_file() and p.name != "world.json"}


def test_a_damaged_stage_is_done_again(world):
    path = world / "tokenizer" / "merges.txt"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    build_world(world, limit=120, workers=1, quiet=True)
    assert path.read_bytes() == whole


def test_a_folder_that_is_no_world_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="is not a world"):
        build_world(tmp_path, limit=120, quiet=True)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_world_that_is_too_small_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match="at least 40"):
        build_world(tmp_path / "world", limit=10, quiet=True)
    assert not (tmp_path / "world").exists()
