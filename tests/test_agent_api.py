"""The agent in Python: lazy, typed, the same loop."""

import subprocess
import sys

import pytest
from agent_tools import FINAL, IMAGE_CALL, TEXT_CALL, replies
from crew_tools import crew
from PIL import Image

import unify_agent
from unify_agent.agent import api
from unify_agent.agent.record import png_metadata
from unify_agent.datasets.folder import TrajectorySource
from unify_agent.datasets.trajectory import Trajectory
from unify_agent.errors import UserError


@pytest.fixture
def agent(tmp_path, monkeypatch):
    def say(episode):
        return FINAL if episode.final else replies(TEXT_CALL, IMAGE_CALL, FINAL)(episode)

    monkeypatch.setattr(api, "assemble", lambda setup: crew(tmp_path / "found", say, setup=setup))
    return unify_agent.UnifyAgent.from_pretrained("somewhere", search="memory", seed=4)


def test_naming_the_agent_brings_no_torch_and_an_unknown_name_is_one():
    code = "import sys, unify_agent; unify_agent.UnifyAgent; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
    with pytest.raises(AttributeError, match="no attribute 'Unify'"):
        unify_agent.Unify  # noqa: B018


def test_a_drawing_tells_all_that_there_is_to_tell(agent, tmp_path):
    drawing = agent.draw("Draw Velmora on red.", id="a b", category="fruit")
    assert isinstance(drawing, unify_agent.Drawing) and (drawing.status, drawing.reason) == ("ok", "grounded")
    assert drawing.picture.size == (32, 32) and drawing.recaption == "The kiwi fruit from image_1 on red."
    assert [each.hit.licence for each in drawing.references] == ["CC0", "CC0"] and len(drawing.thoughts) == 3
    assert isinstance(drawing.trajectory, Trajectory) and drawing.settings["policy"] == "scripted"
    assert png_metadata(drawing.save(tmp_path / "a.png"))["prompt"] == "Draw Velmora on red."
    drawing.save_all(tmp_path / "out")
    from datasets_tools import context

    assert len(TrajectorySource(context(), tmp_path / "out")) == 1


def test_references_of_ones_own_skip_the_search(agent, tmp_path):
    Image.new("RGB", (30, 30), "red").save(tmp_path / "mine.png")
    drawing = agent.draw("Draw it.", references=[tmp_path / "mine.png"])
    assert drawing.reason == "grounded" and agent.crew.search.asked == []
    assert [each.hit.title for each in drawing.references] == ["mine"]


def test_many_are_drawn_together_and_events_are_told(agent):
    told = []
    drawings = agent.draw_many(["Draw it.", "画它。"], on_event=lambda episode, what: told.append(what))
    assert [each.trajectory.language for each in drawings] == ["en", "zh"] and told.count("drawn") == 2


def test_what_cannot_be_taken_is_said(agent, tmp_path):
    with pytest.raises(UserError, match="the prompt is empty"):
        agent.draw(" ")
    with pytest.raises(UserError, match="sed is not known, did you mean 'seed'"):
        unify_agent.UnifyAgent.from_pretrained("somewhere", sed=3)
    (tmp_path / "no.png").write_bytes(b"x")
    with pytest.raises(UserError, match=r"no\.png"):
        agent.draw("Draw it.", references=[tmp_path / "no.png"])
