"""The benchmark split of a data build: disjoint by names and by pictures, stratified, stable, in FactIP's schema."""

import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from build_lists import entity, picture, spec, write_journal
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data.build import benchmark
from data.build.contracts import Task
from data.build.journal import Outcome
from data.build.listing import read_list
from data.build.lookalike import BYTES, Alike, Looks, find_alike, pack, same_picture
from data.build.names import normalised
from data.grouping import Groups
from eval.benchmarks.factip import FactIP, FactIPMini
from unify_agent.search.pictures import alike, look_of


def invented(count, category="toy", seeds=2, names=None):
    """Entities whose seeds have looks of their own, without files."""
    rng = np.random.default_rng(list(category.encode()))
    entities, looks = [], {}
    for k in range(count):
        paths = tuple(Path(f"{category}{k}-{s}.png") for s in range(seeds))
        looks |= {path: rng.bytes(2)[:1] + b"\x03" + rng.bytes(64) for path in paths}
        named = (names or {}).get(k, {"en": f"{category} {k}"})
        entities.append(entity(f"{category}{k}", category, names=named, seeds=paths))
    return entities, looks


def test_each_category_gives_its_share_in_every_stretch():
    entities, looks = [], {}
    for category, count in (("toy", 100), ("food", 40), ("art", 15)):
        some, more = invented(count, category)
        entities, looks = entities + some, looks | more
    parts = benchmark.choose(entities, looks, 0.1, 0)
    counts = Counter(e.category for e in entities if parts[e.id] == "benchmark")
    assert counts["toy"] == 10 and counts["food"] == 4 and counts["art"] in (1, 2)
    toys = [parts[f"toy{k}"] for k in range(100)]
    assert all(toys[k : k + 10].count("benchmark") == 1 for k in range(0, 100, 10))
    assert parts != benchmark.choose(entities, looks, 0.1, 1)
    assert set(benchmark.choose(entities, looks, 0.0, 0).values()) == {"train"}


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(0, 40), st.sampled_from([0.02, 0.05, 0.1, 0.3, 0.37, 0.9]), st.integers(0, 5))
def test_a_list_that_grows_changes_nothing_that_was_chosen(count, more, share, seed):
    entities, looks = invented(count + more)
    whole = benchmark.choose(entities, looks, share, seed)
    before = benchmark.choose(entities[:count], looks, share, seed)
    assert {name: whole[name] for name in before} == before
    chosen = sum(part == "benchmark" for part in whole.values())
    assert abs(chosen - share * len(whole)) < 1


def test_without_two_different_seeds_nothing_is_held_out():
    for seeds in (0, 1):
        entities, looks = invented(20, seeds=seeds)
        assert set(benchmark.choose(entities, looks, 0.9, 0).values()) == {"train"}
    entities, looks = invented(20)
    same = {seed: looks[e.seeds[0]] for e in entities for seed in e.seeds}
    assert set(benchmark.choose(entities, same, 0.9, 0).values()) == {"train"}


def test_names_in_any_language_and_pictures_join_entities():
    names = {3: {"en": "Iron Owl", "fr": "Hibou"}, 7: {"de": "ＨＩＢＯＵ", "en": "Seven"}, 8: {"en": "Iron Owl 2"}}
    entities, looks = invented(12, names=names)
    looks[entities[9].seeds[1]] = looks[entities[7].seeds[0]]
    for seed in range(60):
        parts = benchmark.choose(entities, looks, 0.3, seed)
        held = [k for k in (3, 7, 9) if parts[f"toy{k}"] != "train"]
        assert held in ([], [3, 7, 9])
        assert sum(parts[f"toy{k}"] == "benchmark" for k in held) == bool(held)
        assert parts["toy8"] in ("train", "benchmark")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 25), min_size=1, max_size=2), min_size=1, max_size=40), st.integers(0, 3))
def test_the_benchmark_shares_no_name_with_what_is_trained(numbers, seed):
    languages = ("en", "zh")
    entities, looks = invented(
        len(numbers), names={k: {languages[i]: f"N{n}" for i, n in enumerate(some)} for k, some in enumerate(numbers)}
    )
    parts = benchmark.choose(entities, looks, 0.3, seed)
    names = defaultdict(set)
    for each in entities:
        names[parts[each.id]] |= set(map(normalised, each.names.values()))
    assert not names["train"] & (names["benchmark"] | names["withheld"])


def varied(rng, base):
    """A picture as it might come a second time: another size, another encoding, a little noise."""
    made = Image.fromarray(np.clip(base + rng.integers(-2, 3, base.shape), 0, 255).astype(np.uint8))
    return made.resize((int(rng.integers(60, 130)),) * 2)


@pytest.mark.parametrize("few", [0, 256])
def test_look_alikes_are_those_of_the_pairwise_rule(few, monkeypatch):
    monkeypatch.setattr("data.build.lookalike.FEW", few)
    rng = np.random.default_rng(3)
    bases = [np.kron(rng.integers(0, 256, (8, 8, 3)), np.ones((12, 12, 1))) for _ in range(25)]
    white = np.full((96, 96, 3), 255.0)
    spots = []
    for k in range(25):
        spot = white.copy()
        spot[4 * k % 80 : 4 * k % 80 + 12, 30:60] = rng.integers(0, 200, 3)
        spots.append(spot)
    looks = [look_of(varied(rng, each)) for each in (*bases, *bases[:10], *spots, *spots[:12])]
    groups = Groups(range(len(looks)))
    for two in range(len(looks)):
        for one in range(two):
            if alike(looks[one], looks[two]):
                groups.join(one, two)
    found = find_alike([pack(look) for look in looks])
    assert found.groups == groups.several() and found.cut == 0 and len(found.groups) > 10
    packed = [pack(look) for look in looks]
    assert all(len(each) == BYTES for each in packed)
    assert [same_picture(packed[0], each) for each in packed] == [alike(looks[0], each) for each in looks]
    assert find_alike([]).groups == ()


def test_too_many_pictures_of_one_kind_are_counted_and_not_compared_with_each_other(monkeypatch):
    monkeypatch.setattr("data.build.lookalike.MOST", 3)
    monkeypatch.setattr("data.build.lookalike.FEW", 0)
    nearly = [pack(look_of(Image.new("RGB", (8, 8), (250, 250, 200 + k % 15)))) for k in range(60)]
    found = find_alike(nearly)
    assert found.groups == (tuple(range(60)),) and found.cut > 0
    assert find_alike([nearly[0]] * 60) == Alike((tuple(range(60)),), 0)


def test_places_are_counted_within_a_part_of_a_category():
    entities, looks = invented(10)
    parts = benchmark.choose(entities, looks, 0.2, 0)
    found = benchmark.placed(entities, parts)
    assert [e.place for e in found if e.part == "benchmark"] == [0, 1]
    assert [e.place for e in found if e.part == "train"] == list(range(8))
    assert [benchmark.held_out(e, None) for e in found] == [parts[e.id] == "benchmark" for e in found]


@pytest.fixture
def listed(tmp_path):
    """A list of 40 with pictures on the disk, as a JSON file."""
    rows = []
    for k in range(40):
        suffix = "bmp" if k % 2 else "png"
        seeds = [f"seeds/{k}-{s}.{suffix}" for s in range(2)]
        for s, seed in enumerate(seeds):
            picture(tmp_path / seed, 2 * k + s, 24)
        rows.append({"id": f"id {k}", "name_en": f"Owl {k}", "name_zh": f"鸮{k}", "seeds": seeds,
                     "category": ("toy", "food")[k % 2], "country": "UK"})  # fmt: skip
    (tmp_path / "list.json").write_text(json.dumps(rows))
    return spec(tmp_path, "list.json", benchmark={"share": 0.5, "mini": 0.5})


def outcomes(made, extra=()):
    """A journal in which every entity got its prompt, and every other one its picture."""
    held = benchmark.choose(*vars_of(made), made.benchmark.share, made.seed)
    for each in vars_of(made)[0]:
        yield Outcome("entity", each.id, "done", about={"names": dict(each.names)})
        state = "held_out" if held[each.id] == "benchmark" else "done"
        yield Outcome("task", f"{each.id}-p1", state, each.id, about={"prompt": f"Draw {each.id}", "language": "en"})
    yield from extra


def vars_of(made):
    found = read_list(made.entities, Looks())
    return found.entities, found.looks


def test_evals_own_loader_reads_what_is_written(listed, tmp_path):
    write_journal(tmp_path / "out", outcomes(listed))
    assert benchmark.split(tmp_path / "out", listed) == {}
    whole = FactIP().load(tmp_path / "out" / "benchmark")
    mini = FactIPMini().load(tmp_path / "out" / "benchmark")
    assert len(whole.items) == 20 and len(mini.items) == 10
    assert Counter(i.category for i in mini.items) == {"toy": 5, "food": 5}
    assert {i.id for i in mini.items} < {i.id for i in whole.items}
    item = whole.items[0]
    assert item.prompt.startswith("Draw id-") and item.extra["ip_name"].startswith("Owl ")
    assert item.group == "Object"
    assert all(path.is_file() and Image.open(path).size == (24, 24) for i in whole.items for path in i.references)
    first = (tmp_path / "out" / "benchmark" / "test.json").read_bytes()
    benchmark.split(tmp_path / "out", listed)
    assert (tmp_path / "out" / "benchmark" / "test.json").read_bytes() == first


def test_what_was_finished_under_another_list_is_left_out_of_training(listed, tmp_path):
    entities, looks = vars_of(listed)
    parts = benchmark.choose(entities, looks, 0.5, 0)
    held = next(e for e in entities if parts[e.id] == "benchmark")
    extra = (
        Outcome("task", "late-p1", "done", held.id),
        Outcome("entity", "gone", "done", about={"names": {"fr": held.names["en"].upper()}}),
        Outcome("task", "gone-p1", "done", "gone"),
        Outcome("entity", "other", "done", about={"names": {"fr": "Other"}}),
        Outcome("task", "other-p1", "done", "other"),
        Outcome("entity", "like", "done", about={"names": {"fr": "Like"}, "seeds": [str(held.seeds[1])]}),
        Outcome("task", "like-p1", "done", "like"),
    )
    write_journal(tmp_path / "out", outcomes(listed, extra))
    assert benchmark.split(tmp_path / "out", listed) == {
        "late-p1": benchmark.HELD, "gone-p1": benchmark.HELD, "like-p1": benchmark.SEEN,
    }  # fmt: skip


def test_a_task_whose_reference_looks_like_what_is_held_out_is_left_out_of_training(listed, tmp_path, monkeypatch):
    entities, looks = vars_of(listed)
    parts = benchmark.choose(entities, looks, 0.5, 0)
    held = next(e for e in entities if parts[e.id] == "benchmark")
    one, two, *_ = (e for e in entities if parts[e.id] == "train")
    again = tmp_path / "again.png"
    Image.open(held.seeds[0]).resize((48, 48)).save(again)
    shown = {f"{one.id}-p1": [again], f"{two.id}-p1": [picture(tmp_path / "new.png", 999, 24), tmp_path / "gone.png"]}
    monkeypatch.setattr(benchmark, "_references", lambda item: shown.get(item.name, []))
    write_journal(tmp_path / "out", outcomes(listed))
    assert benchmark.split(tmp_path / "out", listed) == {f"{one.id}-p1": benchmark.SEEN}


def test_no_benchmark_leaves_no_folder(tmp_path):
    one = entity(seeds=(picture(tmp_path / "a.png", 1), picture(tmp_path / "b.png", 2)))
    looks = Looks().of(one.seeds)
    benchmark.write_benchmark(tmp_path / "out", [Task("owl-p1", one, "p", "en")], looks, 1.0, 0)
    assert json.loads((tmp_path / "out" / "test_mini.json").read_text()).keys() == {"owl"}
    benchmark.write_benchmark(tmp_path / "out", [], looks, 1.0, 0)
    assert not (tmp_path / "out").exists()
