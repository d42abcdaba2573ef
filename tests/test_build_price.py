"""What a build will take: by assumption before anything ran, by measure afterwards, without a call."""

import json

import pytest
from build_engine_tools import build, toy_spec
from build_servers import ROLES, World
from build_tools import write_spec

from data.build import price
from data.build.answers import Total
from data.build.price import Job, estimate, measured, record, usual
from data.build.spec import read_spec
from data.build.status import read_status


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "entities.csv").write_text("a\n")
    prices = {
        "teacher": {"price": {"prompt": 2.0, "completion": 8.0}}, "image": {"price": {"picture": 0.04}},
        "search": {"price": {"call": 0.001}},
    }  # fmt: skip
    return read_spec(toy_spec(tmp_path, services=prices, references={"candidates": 5}, verification={"trials": 2}))


def test_an_estimate_is_its_assumptions_times_what_is_left(spec):
    found = estimate(spec, Job(entities=100, tasks=200))
    each = usual(spec)
    assert found["metadata"].calls == 100 and found["prompts"].calls == 200
    assert found["references"].calls == 200 * 5 and found["search"].calls == 100 + 400
    assert found["image"].calls == found["image"].pictures == found["verifier"].calls == 320
    assert found["teacher"].calls == 200 * 3.6
    teacher = found["teacher"]
    assert teacher.prompt == each["teacher"].prompt * 720 and teacher.completion == each["teacher"].completion * 720
    assert teacher.money == pytest.approx((2.0 * teacher.prompt + 8.0 * teacher.completion) / 1e6)
    assert found["image"].money == pytest.approx(320 * 0.04) and found["search"].money == pytest.approx(0.5)
    told = record(found)
    assert list(told["services"]) == [*ROLES, "image", "search"]
    assert told["money"] == pytest.approx(sum(row["money"] for row in told["services"].values()))


def test_of_nothing_and_of_one_trial_at_most(spec):
    assert all(total == Total() for total in estimate(spec, Job(0, 0)).values())
    once = spec.model_copy(update={"verification": spec.verification.model_copy(update={"trials": 1})})
    assert estimate(once, Job(0, 100))["image"].calls == 100


def test_a_measure_is_the_mean_of_what_ended():
    found = measured({"teacher": Total(100, 4, 5000, 300, 0, 2.5)}, ended=25, tasks=10)
    assert found == {"teacher": Total(40, 2, 2000, 120, 0, 1.0)}


def test_a_clean_world_costs_what_was_said(tmp_path, monkeypatch, capsys):
    """Before: each service within a third and three times, all together within half and twice. After 20: 30 %."""
    world = World()
    world.write(tmp_path)
    with world.chat() as chat, world.images() as images:
        spec = write_spec(
            tmp_path, tmp_path, chat.url, images.url, prompts={"per_entity": 3}, benchmark={"share": 0.0},
            references={"candidates": 4}, services={"teacher": {"price": {"call": 1.0}}},
        )  # fmt: skip

        def priced(*more):
            before = chat.paths[:], len(images.asked)
            capsys.readouterr()
            assert build(monkeypatch, None, spec, "--dry-run", "--json", *more) == 0
            assert (chat.paths, len(images.asked)) == before, "no call at all, not even a probe"
            return json.loads(capsys.readouterr().out)

        first = priced()
        assert not first["measured"] and first["basis"].startswith("assumptions\n  teacher: 0 calls an entity")
        assert (first["entities"], first["tasks"], first["currency"]) == (10, 30, "USD")
        assert priced("--limit", 7)["tasks"] == 21
        assert not (tmp_path / "out" / "status.json").exists()
        assert build(monkeypatch, None, spec, "--limit", 7) == 0
        taken = read_status(tmp_path / "out")["services"]
        second = priced()
        assert second["measured"] and (second["entities"], second["tasks"]) == (3, 9)
        assert second["basis"] == "the mean of the 21 tasks that ended"
        assert build(monkeypatch, None, spec) == 0
        found = read_status(tmp_path / "out")
        rest = {name: row["calls"] - taken[name]["calls"] for name, row in found["services"].items()}
        for name, row in found["services"].items():
            assert row["calls"] / 3 <= first["services"][name]["calls"] <= row["calls"] * 3, name
        whole = sum(row["calls"] for row in found["services"].values())
        assert whole / 2 <= sum(row["calls"] for row in first["services"].values()) <= 2 * whole
        assert sum(row["calls"] for row in second["services"].values()) == pytest.approx(sum(rest.values()), rel=0.3)
        last = priced()
        assert last["tasks"] == last["entities"] == 0 and last["money"] == 0
        assert build(monkeypatch, None, spec, "--dry-run") == 0
        assert "0 entities to describe, 0 tasks to make; the mean of the 30" in capsys.readouterr().out
    assert price.ENOUGH == 20
