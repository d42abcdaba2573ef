"""Layout `isolated`: two index entries of one trajectory, told apart, packed apart, counted as one."""

import json
import sys
from collections import Counter
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets_tools import add_sample, context, grammar, record, rules
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data.__main__ import main
from data.check import check
from data.pack import pack
from data.stats import look, summarise
from unify_agent import errors
from unify_agent.datasets import index, indexed
from unify_agent.datasets.indexed import DUPLICATE, IndexedSource, shapes_only
from unify_agent.datasets.kinds import trajectories
from unify_agent.datasets.loader import Dropout, Loader
from unify_agent.datasets.sources import Mixture, count_reasons
from unify_agent.interleave.packing import TOO_LONG, Limits
from unify_agent.interleave.segments import Drawing, Text
from unify_agent.interleave.transforms import open_picture
from unify_agent.interleave.visibility import document_spans, visible_pairs

LIMITS = Limits(350, 400, 300, packs_per_step=2, window_steps=2)
PARTS = ("agent", "generation")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine trajectories of three lengths, one of them without references."""
    place = tmp_path_factory.mktemp("isolated") / "root"
    for number in range(9):
        content = record(f"owl{number}", number % 3)
        content["full_response"][0]["response_text"] += " owl" * (number * 7 % 40)
        add_sample(place / "birds", f"owl{number}", number % 3, content=content)
    return place


@pytest.fixture(scope="module", params=["folder", "parquet"])
def source(request: pytest.FixtureRequest, root: Path) -> IndexedSource:
    return opened(root, request.param == "parquet")


def opened(root: Path, packed: bool = False, **options: object) -> IndexedSource:
    if packed:
        pack(root, root.parent / "packed")
    return trajectories(context("isolated"), root.parent / "packed" if packed else root, name="owls", **options)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def names(samples: list[str], source: str = "owls") -> set[str]:
    return {f"{source}:{each}/{part}" for each in samples for part in PARTS}


def owls(count: int = 9) -> list[str]:
    return [f"birds/owl{number}" for number in range(count)]


def test_a_trajectory_is_two_entries_of_which_each_is_what_is_built(source: IndexedSource) -> None:
    assert source.ids() == [f"{each}/{part}" for each in owls() for part in PARTS]
    assert list(source.by_sample()) == owls()
    for number, name in enumerate(source.ids()):
        document = source.document(number, rng())
        assert document.id == name and document.slots == source.slots(number)
        assert visible_pairs(document_spans(document)) == source.pairs(number)
        assert any(isinstance(s, Drawing) for s in document.segments) == name.endswith("/generation")
        assert any(isinstance(s, Text) and s.loss for s in document.segments) == name.endswith("/agent")


def test_ids_that_look_like_documents_are_told_apart(tmp_path: Path) -> None:
    add_sample(tmp_path / "birds", "owl")
    for name in PARTS:  # as the inference of the release writes them: ROOT/CATEGORY/ID
        place = tmp_path / "birds" / "owl"
        add_sample(place, name)
        (place / f"traj/{name}_trajectory.json").rename(place / f"{name}_trajectory.json")
    source = trajectories(context("isolated"), tmp_path)
    wanted = {"birds/owl", *(f"birds/owl/{part}" for part in PARTS)}
    assert not source.unusable and set(source.by_sample()) == wanted
    assert len(set(source.ids())) == len(source) == 6


def test_the_agent_document_opens_no_target(root: Path) -> None:
    source = opened(root)
    for name in ("birds/owl5/agent", "birds/owl5/generation"):
        seen: list[str] = []

        def opener(file, told="", seen=seen):
            seen.append(Path(file).name)
            return open_picture(file, told)

        source.build(source.ids().index(name), opener, shapes_only(source.context.pixels), rng())
        assert seen == ["image_1.png", "image_2.png", "owl5_0.png"][: 2 if name.endswith("/agent") else 3]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_an_epoch_holds_both_documents_of_every_trajectory_once(source: IndexedSource, data: st.DataObject) -> None:
    longest = max(source.slots(number) for number in range(len(source)))
    most = data.draw(st.integers(longest // 2, longest + 10))
    room = data.draw(st.integers(most, 3 * most))
    limits = Limits(data.draw(st.integers(1, room)), room, most, packs_per_step=data.draw(st.integers(1, 5)))
    seed, epochs = data.draw(st.integers(0, 99)), data.draw(st.integers(1, 3))
    made = Loader(Mixture([source], limit=most), limits, rules(), seed=seed, workers=0, preset="isolated")
    drawn: dict[int, Counter] = {}
    for task in takewhile(lambda task: task.epoch < epochs, made.tasks(0, None)):
        assert sum(source.slots(draw.index) for draw in task.draws) <= room
        drawn.setdefault(task.epoch, Counter()).update(made.mixture.name(draw) for draw in task.draws)
    skipped = Counter(each.id for each in made.skipped)
    assert all(found + skipped == Counter(names(owls())) for found in drawn.values()) and len(drawn) == epochs
    assert all(each.reason == TOO_LONG for each in made.skipped)


def test_a_share_of_tokens_counts_both_documents(root: Path) -> None:
    other = trajectories(context("isolated"), root, name="again")
    mixture = Mixture([opened(root), other], [3, 1], limit=300)
    total = sum(other.slots(number) for number in range(len(other)))
    drawn: Counter[str] = Counter()
    for epoch in range(3):
        for draw in mixture.epoch(1, epoch):
            drawn[mixture.sources[draw.source].name] += other.slots(draw.index)
    assert drawn["owls"] == 3 * total and drawn["again"] == pytest.approx(total, rel=0.1)


def test_the_two_documents_may_lie_in_different_packs_and_the_run_resumes(source: IndexedSource) -> None:
    mixture = Mixture([source], limit=300)

    def made(packs_per_step: int = 2) -> Loader:
        limits = Limits(350, 400, 300, packs_per_step=packs_per_step, window_steps=2)
        return Loader(mixture, limits, rules(), seed=2, workers=0, preset="isolated", dropout=Dropout(0.3, 0.3, 0.3))

    before = made()
    steps = list(before.steps(0, 2 * before.plan(0).steps))
    packs = [batch for data in steps for batch in data.packs]
    place = {name: number for number, batch in enumerate(packs) for name in batch.sample_ids}
    assert any(place[f"owls:{each}/agent"] != place[f"owls:{each}/generation"] for each in owls())
    after = made()
    after.resume(json.loads(json.dumps(before.state(1))))
    again = [batch for data in after.steps(1, len(steps)) for batch in data.packs]
    for left, right in zip(packs[2:], again, strict=True):
        assert left.sample_ids == right.sample_ids and left.spans == right.spans
        assert torch.equal(left.flow_noise, right.flow_noise)
    after = made(packs_per_step=3)
    after.resume(json.loads(json.dumps(before.state(1))))
    tasks = takewhile(lambda task: task.epoch == 0, after.tasks(1, None))
    rest = [mixture.name(draw) for task in tasks for draw in task.draws]
    assert sorted(rest) == sorted(names(owls()) - {name for batch in packs[:2] for name in batch.sample_ids})


def test_a_trajectory_that_cannot_be_used_is_counted_once(tmp_path: Path) -> None:
    birds = tmp_path / "root/birds"
    add_sample(birds, "good")
    add_sample(birds, "turnless", content=record("turnless", full_response=[]))
    add_sample(birds, "untargeted", target=False)
    add_sample(birds, "zz", content=record("good"))
    for packed in (False, True):
        source = opened(tmp_path / "root", packed)
        assert source.ids() == ["birds/good/agent", "birds/good/generation"]
        assert count_reasons(source.unusable) == {"no turns": 1, "no target picture": 1, DUPLICATE: 1}
        report = check(source, 300, workers=1).to_json()
        assert (report["samples"], report["usable"]) == (4, 1)


def broken(tmp_path: Path) -> Path:
    """Three trajectories: `cut` has half a target, `torn` half a reference."""
    for name in ("cut", "good", "torn"):
        add_sample(tmp_path / "root/birds", name, 1, content=record(name, 1, language="en"))
    for path in ("images/cut_0.png", "intermediate/torn/image_1.png"):
        file = tmp_path / "root/birds" / path
        file.write_bytes(file.read_bytes()[:-2500])
    return tmp_path / "root"


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_wrong_with_one_document_leaves_the_other_and_counts_one_trajectory(
    tmp_path: Path, packed: bool
) -> None:
    source = opened(broken(tmp_path), packed)
    made = Loader(Mixture([source], limit=300), LIMITS, rules(), seed=0, workers=0, preset="isolated")
    steps = list(made.steps(0, made.plan(0).steps))
    skipped = {each.id for data in steps for each in data.skipped}
    assert skipped == {"owls:birds/cut/generation", *names(["birds/torn"])}
    trained = {name for data in steps for batch in data.packs for name in batch.sample_ids}
    assert trained == names(["birds/good", "birds/cut", "birds/torn"]) - skipped
    report = check(source, 300, workers=1)
    assert (report.samples, report.usable) == (3, 1)
    assert {each.id: each.detail.partition(" document: ")[0] for each in report.unusable} == {
        "birds/cut": "generation", "birds/torn": "agent"}  # fmt: skip
    assert [each.reason for each in report.unusable] == ["picture does not decode"] * 2


def test_one_document_over_the_budget_is_one_trajectory_that_cannot_be_used_whole(root: Path) -> None:
    source = opened(root)
    slots = {name: source.slots(number) for number, name in enumerate(source.ids())}
    most = max(length for name, length in slots.items() if name.endswith("/generation"))
    long = [each for each in owls() if slots[f"{each}/agent"] > most]
    report = check(source, most, workers=1)
    assert long and report.usable == 9 - len(long)
    assert [(each.id, each.reason) for each in report.unusable] == [(each, TOO_LONG) for each in long]


def test_the_statistics_count_trajectories_and_documents(root: Path) -> None:
    source = opened(root)
    stats = summarise(source, [look(source, number) for number in range(len(source))], LIMITS)
    slots = [source.slots(number) for number in range(len(source))]
    assert (stats["samples"], stats["documents"], stats["categories"]) == (9, 18, {"birds": 9})
    assert stats["pictures"] == {"0": 3, "1": 3, "2": 3} and stats["turns"] == {"2": 9}
    assert sum(stats["tokens"].values()) == sum(slots) and stats["tags"]["<recaption>"] == 9


def test_the_request_may_be_the_longer_context_and_room_is_kept_for_it(root: Path) -> None:
    content = record("owl0", 0)
    content["full_response"][0]["input"] = "draw a red kite over the old harbour " * 3
    (root.parent / "asked").mkdir()
    add_sample(root.parent / "asked/birds", "owl0", 0, content=content)
    source = opened(root.parent / "asked", request_share=0.5)
    number = source.ids().index("birds/owl0/generation")
    built = [source.document(number, rng(seed)) for seed in range(20)]
    assert {d.segments[-1].sees[0] for d in built} == {"request", "recaption"}
    assert max(d.slots for d in built) == source.slots(number) == source.outline(number).slots
    said = [grammar().decode(d.segments[0].ids) for d in built]
    assert {text.split()[0] for text in said} == {"draw", "owl0"}
    assert check(source, 300, workers=1).usable == 1


def test_the_cache_of_another_version_or_layout_is_not_taken_for_ones_own(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lengths(preset: str) -> IndexedSource:
        return trajectories(context(preset, cache=tmp_path), root)

    def files() -> set[str]:
        return {path.name for path in tmp_path.glob("lengths-*.json")}

    lengths("paper")
    old = files()
    made = lengths("isolated")
    (own,) = files() - old
    assert lengths("isolated").ids() == made.ids() and len(made) == 18 and len(files()) == 2
    stored = json.loads((tmp_path / own).read_text())
    for each in stored["files"].values():  # what a version without parts has under the same name
        each["entries"] = [{key: each["entries"][0][key] for key in ("id", "record", "slots", "pairs")}]
    (tmp_path / own).write_text(json.dumps(stored | {"version": index.VERSION - 1}))
    assert lengths("isolated").ids() == made.ids()
    monkeypatch.setattr(indexed, "VERSION", index.VERSION + 1)
    lengths("isolated")
    assert len(files()) == 3


def test_explain_shows_both_documents_or_the_one_that_is_named(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def explained(name: str, *more: object) -> str:
        words = ["data", "explain", str(root), name, "--layout", "isolated", *map(str, more)]
        monkeypatch.setattr(sys, "argv", words)
        assert errors.run(main) == 0
        return capsys.readouterr().out

    both = explained("birds/owl2", "--png", tmp_path / "both.png")
    assert "birds/owl2/agent: " in both and "birds/owl2/generation: " in both and "layout isolated" in both
    one = explained("birds/owl2/generation", "--png", tmp_path / "one.png")
    assert "birds/owl2/agent: " not in one and "MSE 12" in one
    assert Image.open(tmp_path / "both.png").size == Image.open(tmp_path / "one.png").size
    monkeypatch.setattr(sys, "argv", ["data", "explain", str(root), "birds/owl2/genaration", "--layout", "isolated"])
    assert errors.run(main) == 2 and "did you mean 'birds/owl2'" in capsys.readouterr().err
