"""The scripted teacher: the shares of its lessons, and trajectories that the loader of users' data reads."""

import json
from collections import Counter

import openmoji_small
import pytest
from datasets_tools import context

from data.openmoji.teacher import Teacher
from data.openmoji.trajectories import episode_of, tasks, write_trajectories
from data.openmoji.words import parse_recaption, parse_request
from unify_agent.agent.toolcalls import parse_calls
from unify_agent.datasets.folder import TrajectorySource
from unify_agent.errors import UserError
from unify_agent.search.base import TextHit


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return openmoji_small.build(tmp_path_factory.mktemp("small") / "world").folder


@pytest.fixture(scope="module")
def written(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("written") / "trajectories"
    return out, write_trajectories(world, 24, out, split="test", workers=1)


def test_lessons_come_in_their_shares_and_a_longer_list_begins_with_the_shorter():
    chosen = tasks(openmoji_small.entities(), 600)
    kinds = Counter(task.kind for task in chosen.values())
    assert kinds["direct"] >= 0.15 * 600 and kinds["closed_book"] >= 0.03 * 600 and kinds["search"] > 0.7 * 600
    assert min(Counter(task.language for task in chosen.values()).values()) > 0.4 * 600
    assert all(task.entity.common == (task.kind == "direct") for task in chosen.values())
    assert list(tasks(openmoji_small.entities(), 50).items()) == list(chosen.items())[:50]
    assert tasks(openmoji_small.entities(), 5, seed=1).keys().isdisjoint(chosen)


def test_the_loader_of_users_data_reads_every_trajectory(written):
    out, counts = written
    source = TrajectorySource(context(), out)
    assert not source.unusable and len(source) == counts["trajectories"]
    assert json.loads((out / "summary.json").read_text()) == counts


def test_a_trajectory_says_what_was_asked_for(written):
    out, _ = written
    for path in out.rglob("*_trajectory.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        asked, said = parse_request(record["image_prompt"]), parse_recaption(record["recaption"])
        assert said.scene == asked.scene and said.complete(len(record["references"]))
        calls = [parse_calls(turn["response_text"]) for turn in record["full_response"]]
        assert all(not call.mended and call.error is None for call in calls)
        if calls[0].calls:
            assert calls[0].calls[0].arguments == {"q": asked.name, "hl": asked.language}
            assert calls[1].calls[0].arguments["q"] == record["ip_name"]


def test_the_same_arguments_give_the_same_trajectories(world, written, tmp_path):
    out, _ = written
    again = tmp_path / "again"
    write_trajectories(world, 24, again, split="test", workers=1)
    names = sorted(p.relative_to(out) for p in out.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(again) for p in again.rglob("*") if p.is_file())
    assert all((out / name).read_bytes() == (again / name).read_bytes() for name in names)


def test_the_teacher_says_nothing_that_the_evidence_does_not():
    name, task = next((k, t) for k, t in tasks(openmoji_small.entities(), 60).items() if t.kind == "search")
    episode = episode_of(name, task)
    teacher = Teacher({name: task})
    assert parse_calls(teacher.say(episode)).calls[0].name == "text_search"
    episode.turns.append(None)
    episode.read = [TextHit("page", "Nothing of the kind.", "")]
    with pytest.raises(LookupError, match="no document says"):
        teacher.say(episode)


def test_a_split_without_unknown_things_is_refused():
    with pytest.raises(UserError, match="no entity to look up"):
        tasks([e for e in openmoji_small.entities() if e.common], 4)
