"""The record: the training layout, read back by the datasets; resume; what it refuses."""

import json
import re

import numpy as np
import pytest
from agent_tools import FINAL, IMAGE_CALL, TEXT_CALL, MemorySearch, hits, replies, run
from datasets_tools import context, grammar, pixels
from PIL import Image

from unify_agent.agent.record import Recorder, is_safe_name, png, png_metadata, to_trajectory
from unify_agent.datasets.folder import TrajectorySource
from unify_agent.datasets.trajectory import parse_trajectories
from unify_agent.errors import UserError
from unify_agent.interleave.layout import Exchange, lay_out
from unify_agent.interleave.segments import Picture


@pytest.fixture
def episode(tmp_path):
    (tmp_path / "raw").mkdir()
    search = MemorySearch({"kiwi fruit": hits(tmp_path / "raw", "good-1", "blurred-1", "good-22")})
    made = run(replies(TEXT_CALL, IMAGE_CALL, FINAL), search, seed=7)
    made.settings = {"seed": 7, "steps": 4, "weights": "abc"}
    return made


def test_an_episode_is_written_in_the_layout_that_training_reads(episode, tmp_path):
    path = Recorder(tmp_path / "out", "scripted").write(episode)
    folder = tmp_path / "out" / "prompts"
    assert path == folder / "traj" / "one_trajectory.json"
    found = sorted(str(p.relative_to(folder)) for p in folder.rglob("*.png"))
    assert found == ["images/one_0.png", "intermediate/one/image_1.png", "intermediate/one/image_2.png",
                     *(f"intermediate/one/tmp/candidate_{n}.png" for n in (1, 2, 3))]  # fmt: skip
    (record,) = parse_trajectories(path.read_text(encoding="utf-8"), path)
    assert [turn.stage for turn in record.turns] == [1, 2, 3]
    assert [r["reason"] for r in record.turns[1].image_judge_results] == ["good", "blurred", "good"]
    assert record.recaption == "The kiwi fruit from image_1 on red." and record.stop == "grounded"
    assert record.turns[0].text_results == [{"title": "Velmora", "source": "corpus:1"}]
    assert [(r.file, r.licence) for r in record.references] == [
        ("intermediate/one/image_1.png", "CC0"), ("intermediate/one/image_2.png", "CC0")]  # fmt: skip


def test_the_record_lays_out_as_a_training_document(episode, tmp_path):
    path = Recorder(tmp_path / "out", "scripted").write(episode)
    (record,) = parse_trajectories(path.read_text(encoding="utf-8"), path)
    target = Image.open(path.parents[1] / record.generated_image)
    references = [Image.open(path.parents[1] / r.file) for r in record.references]
    turns = [Exchange(t.input, grammar().encode(t.response_text)) for t in record.turns_for_training()]
    document = lay_out("one", turns, references, target, grammar=grammar(), pixels=pixels())
    assert [type(s).__name__ for s in document.segments] == ["Text"] * 4 + ["Picture"] * 4 + ["Text"] * 2 + ["Drawing"]


def test_the_loader_that_reads_users_data_reads_it(episode, tmp_path):
    Recorder(tmp_path / "out", "scripted").write(episode)
    source = TrajectorySource(context(), tmp_path / "out")
    assert not source.unusable and len(source) == 1
    pictures = [s for s in source.document(0, np.random.default_rng(0)).segments if isinstance(s, Picture)]
    assert len(pictures) == 4


def test_ids_that_a_model_generated_are_kept(episode):
    episode.turns[0].ids, episode.turns[0].tokenizer = (5, 6, 7), grammar().fingerprint
    record = to_trajectory(episode, "unified")
    assert record.full_response[0].ids_for(grammar().fingerprint) == (5, 6, 7)
    assert record.full_response[0].ids_for("another") is None
    (again,) = parse_trajectories(record.to_json(), "x")
    assert again.full_response[0].response_ids == [5, 6, 7]


def test_the_picture_carries_what_is_needed_to_repeat_it(episode, tmp_path):
    Recorder(tmp_path / "out", "scripted").write(episode)
    with Image.open(tmp_path / "out/prompts/images/one_0.png") as picture:
        assert picture.text == {"prompt": "Draw Velmora on red.", "seed": "7", "steps": "4", "weights": "abc"}
        assert np.asarray(picture).shape == (32, 32, 3)


def test_metadata_of_a_picture_come_back_as_they_were(tmp_path):
    told = {"prompt": "7", "seed": 7, "interval": [0.4, 1.0], "weights": "0123456789", "renorm": "global", "x": None}
    path = tmp_path / "a.png"
    path.write_bytes(png(np.zeros((4, 4, 3), np.uint8), told | {"title": "ein Käuzchen, 夜鷹"}))
    assert png_metadata(path) == told | {"title": "ein Käuzchen, 夜鷹"}


@pytest.mark.parametrize("content", [b"", b"no picture", None])
def test_what_is_no_picture_has_no_metadata_and_is_named(tmp_path, content):
    path = tmp_path / "a.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.png: not a PNG picture"):
        png_metadata(path)


def test_a_finished_item_is_known_again_and_an_unfinished_one_is_not(episode, tmp_path):
    recorder = Recorder(tmp_path / "out", "scripted")
    request = episode.request
    assert not recorder.finished("prompts", "one", request, {})
    recorder.write(episode)
    assert recorder.finished("prompts", "one", request, {"seed": 7, "steps": 4})
    assert not recorder.finished("prompts", "one", request, {"steps": 50})
    (tmp_path / "out/prompts/images/one_0.png").unlink()
    assert not recorder.finished("prompts", "one", request, {})
    with pytest.raises(UserError, match="another request"):
        recorder.finished("prompts", "one", "Draw something else.", {})


def test_a_failed_item_keeps_its_turns_and_is_not_finished(episode, tmp_path):
    episode.picture, episode.stop, episode.error = None, "draw_error", "RuntimeError: no memory"
    recorder = Recorder(tmp_path / "out", "scripted")
    path = recorder.write(episode)
    record = json.loads(path.read_text(encoding="utf-8"))
    assert len(record["turns"]) == 3 and record["generated_image"] is None and "no memory" in record["error"]
    assert not recorder.finished("prompts", "one", episode.request, {})


def test_the_page_of_an_item_tells_its_story_and_escapes_what_came_from_outside(episode, tmp_path):
    episode.request = "Draw <script>alert(1)</script>."
    episode.turns[0].tool_output = "</div><script>alert(2)</script>"
    episode.turns[0].mended = ("trailing comma",)
    Recorder(tmp_path / "out", "scripted", pages=True).write(episode)
    html = (tmp_path / "out/prompts/pages/one.html").read_text(encoding="utf-8")
    assert "<script" not in html and "&lt;script&gt;alert(2)" in html
    parts = ("../images/one_0.png", "../intermediate/one/image_2.png", "../intermediate/one/tmp/candidate_3.png",
             "text search: Velmora", "mended: trailing comma", "blurred", "The kiwi fruit from image_1")  # fmt: skip
    assert [part for part in parts if part not in html] == []
    assert html.count("chosen · ") == 2
    pictures = {(tmp_path / "out/prompts/pages" / src) for src in re.findall(r'src="([^"]+)"', html)}
    assert len(pictures) == 6 and all(each.is_file() for each in pictures)


def test_an_item_that_fails_now_leaves_no_picture_of_before(episode, tmp_path):
    recorder = Recorder(tmp_path / "out", "scripted")
    recorder.write(episode)
    episode.picture, episode.stop, episode.error = None, "draw_error", "RuntimeError: no memory"
    recorder.write(episode)
    assert not (tmp_path / "out/prompts/images/one_0.png").exists()


def test_writing_again_leaves_no_stale_reference(episode, tmp_path):
    recorder = Recorder(tmp_path / "out", "scripted")
    recorder.write(episode)
    episode.references = episode.references[:1]
    recorder.write(episode)
    assert sorted(p.name for p in (tmp_path / "out/prompts/intermediate/one").glob("*.png")) == ["image_1.png"]


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 200, "猫" * 60, "a b", "a\n", "-x"])
def test_ids_that_are_no_file_names_are_known(name):
    assert not is_safe_name(name)
    assert is_safe_name("猫-1_a.b") and is_safe_name("0")
