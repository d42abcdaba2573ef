"""A recorded run is repeated offline exactly: texts, pictures, errors; after a kill, by several processes, damaged."""

import json
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from agent_tools import hits

from unify_agent.errors import UserError
from unify_agent.search.base import SearchError, TextHit
from unify_agent.search.recorded import Recording, Replay


class Changing:
    """Answers every question differently each time, as the web does; fails for "down"."""

    name = "changing"

    def __init__(self, folder):
        self.folder, self.asked, self.broken = folder, 0, True

    def text_search(self, q, hl=None, top_k=5):
        self.asked += 1
        if q == "down" and self.broken:
            raise SearchError("service_down", "changing: HTTP 503 (tried 4 times)")
        return [TextHit(f"answer {self.asked}", "text", "https://a.example", "CC0")]

    def search_image(self, q, location=None, hl=None, num=8):
        self.asked += 1
        if q == "down" and self.broken:
            raise SearchError("bad_answer", "changing: the answer is not JSON")
        return hits(self.folder, f"good-{q}-{self.asked}", f"other-{q}")[:num]


@pytest.fixture
def inner(tmp_path):
    (tmp_path / "live").mkdir()
    return Changing(tmp_path / "live")


def test_the_first_answer_stands_and_is_repeated_without_the_service(inner, tmp_path):
    recording = Recording(tmp_path / "rec", inner, "changing")
    texts = recording.text_search("owl", "en", 3)
    pictures = recording.search_image("owl", "Austria", "en", 2)
    assert inner.asked == 2 and recording.name == "changing"
    assert recording.text_search("owl", "en", 3) == texts and inner.asked == 2
    for path in inner.folder.iterdir():
        path.unlink()
    replay = Replay(tmp_path / "rec")
    assert replay.text_search("owl", "en", 3) == texts and replay.name == "changing"
    assert replay.search_image("owl", "Austria", "en", 2) == pictures
    assert [hit.open().size for hit in pictures] == [(40, 48)] * 2 and pictures[0].licence == "CC0"


def test_a_recording_can_be_moved(inner, tmp_path):
    Recording(tmp_path / "rec", inner, "changing").search_image("owl")
    (tmp_path / "rec").rename(tmp_path / "elsewhere")
    assert all(hit.open() for hit in Replay(tmp_path / "elsewhere").search_image("owl"))


@pytest.mark.parametrize("asked", [("owl", "de", 3), ("owl", "en", 4), ("Owl", "en", 3), ("owl", None, 3)])
def test_a_question_that_was_not_asked_is_a_clear_error(inner, tmp_path, asked):
    Recording(tmp_path / "rec", inner, "changing").text_search("owl", "en", 3)
    with pytest.raises(SearchError, match=r"rec holds no answer to text_search\(q='[oO]wl'") as caught:
        Replay(tmp_path / "rec").text_search(*asked)
    assert caught.value.kind == "not_recorded"


def test_an_error_is_repeated_until_the_question_has_an_answer(inner, tmp_path):
    recording = Recording(tmp_path / "rec", inner, "changing")
    with pytest.raises(SearchError):
        recording.text_search("down")
    with pytest.raises(SearchError, match=r"^changing: HTTP 503 \(tried 4 times\)$") as caught:
        Replay(tmp_path / "rec").text_search("down")
    assert caught.value.kind == "service_down"
    inner.broken = False
    found = recording.text_search("down")
    assert Replay(tmp_path / "rec").text_search("down") == found


def test_pictures_that_came_at_the_second_try_are_what_is_replayed(inner, tmp_path):
    recording = Recording(tmp_path / "rec", inner, "changing")
    with pytest.raises(SearchError):
        recording.search_image("down", num=2)
    inner.broken = False
    found = recording.search_image("down", num=2)
    inner.broken = True
    assert len(found) == 2 and recording.search_image("down", num=2) == found
    assert Replay(tmp_path / "rec").search_image("down", num=2) == found


def test_an_answer_replaces_the_error_of_somebody_who_asked_at_the_same_time(inner, tmp_path):
    recording, other = Recording(tmp_path / "rec", inner, "changing"), Recording(tmp_path / "rec", inner, "changing")
    plain = inner.text_search

    def overtaken(q, hl=None, top_k=5):
        inner.text_search = plain
        with pytest.raises(SearchError):
            other.text_search(q)  # its error is recorded while this answer is under way
        inner.broken = False
        return plain(q, hl, top_k)

    inner.text_search = overtaken
    found = recording.text_search("down")
    assert found and Replay(tmp_path / "rec").text_search("down") == found
    inner.broken = True
    assert other.text_search("down") == found  # and no later error replaces it


def test_several_processes_may_begin_one_recording(inner, tmp_path):
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / ".record.json.abc.tmp").write_text("")  # another one is just writing it
    assert Recording(tmp_path / "rec", inner, "changing").text_search("owl")


def test_a_recording_that_another_process_begins_in_that_moment_is_joined(inner, tmp_path, monkeypatch):
    look, begun = Path.is_file, []

    def late(path):
        found = look(path)
        if path.name == "record.json" and not begun:
            begun.append(path)
            Recording(tmp_path / "rec", inner, "changing")
        return found

    monkeypatch.setattr(Path, "is_file", late)
    assert Recording(tmp_path / "rec", inner, "changing").text_search("owl") and begun


def test_odd_characters_in_questions_do_not_stop_a_recording(inner, tmp_path):
    recording = Recording(tmp_path / "rec", inner, "changing")
    for q in ("owl \ud83d", "../../etc/passwd", "x" * 300, '"', "猫\x00", ""):
        found = recording.text_search(q)
        assert Replay(tmp_path / "rec").text_search(q) == found
    assert {path.name for path in tmp_path.iterdir()} == {"live", "rec"}


def test_threads_and_processes_agree_on_one_answer(inner, tmp_path):
    backends = [Recording(tmp_path / "rec", inner, "changing") for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda k: backends[k % 4].text_search("owl"), range(16)))
    assert all(answer == answers[0] for answer in answers)
    assert Replay(tmp_path / "rec").text_search("owl") == answers[0]


def test_a_kill_leaves_whole_answers_only_and_the_same_command_goes_on(tmp_path):
    script = textwrap.dedent("""
        import os, sys
        sys.path.insert(0, "tests")
        from pathlib import Path
        from test_search_recorded import Changing
        from unify_agent.search import recorded
        folder = Path(sys.argv[1])
        (folder / "live").mkdir(exist_ok=True)
        written = 0
        real = recorded.write_once
        def dying(path, content):
            global written
            written += 1
            if written == 4:  # pictures are there, the answer is not
                os.kill(os.getpid(), 9)
            return real(path, content)
        recorded.write_once = dying
        found = recorded.Recording(folder / "rec", Changing(folder / "live"), "changing")
        for k in range(6):
            found.search_image(f"owl {k}")
    """)
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(command, cwd=".", check=False, env={**os.environ, "PYTHONPATH": "."}).returncode == -9
    replay = Replay(tmp_path / "rec")
    first = [replay.search_image(f"owl {k}") for k in range(3)]
    with pytest.raises(SearchError, match="holds no answer"):
        replay.search_image("owl 3")
    found = Recording(tmp_path / "rec", Changing(tmp_path / "live"), "changing")
    assert [found.search_image(f"owl {k}") for k in range(3)] == first
    assert found.search_image("owl 3") == Replay(tmp_path / "rec").search_image("owl 3")


def test_damage_is_said_and_names_the_file(inner, tmp_path):
    Recording(tmp_path / "rec", inner, "changing").search_image("owl")
    replay = Replay(tmp_path / "rec")
    picture = next((tmp_path / "rec" / "pictures").iterdir())
    content = picture.read_bytes()
    picture.write_bytes(content[:-9])
    with pytest.raises(SearchError, match=rf"{picture.name}.*missing or damaged") as caught:
        replay.search_image("owl")
    assert caught.value.kind == "broken_record"
    picture.write_bytes(content)
    (entry,) = (tmp_path / "rec" / "answers").rglob("*.json")
    said = json.loads(entry.read_text())
    said["pictures"][0]["file"] = "../../../../etc/passwd"
    entry.write_text(json.dumps(said))
    with pytest.raises(SearchError, match="missing or damaged"):
        replay.search_image("owl")
    entry.write_text("{")
    with pytest.raises(SearchError, match="not an answer that was recorded"):
        replay.search_image("owl")


def test_a_folder_holds_the_answers_of_one_back_end(inner, tmp_path):
    Recording(tmp_path / "rec", inner, "changing")
    with pytest.raises(UserError, match="holds what changing answered, not wikipedia"):
        Recording(tmp_path / "rec", inner, "wikipedia")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(UserError, match="holds no record of searches"):
        Recording(tmp_path / "other", inner, "changing")
    with pytest.raises(UserError, match="no such record of searches"):
        Replay(tmp_path / "nowhere")
    (tmp_path / "rec" / "record.json").write_text('{"format": 99, "search": "x"}')
    with pytest.raises(UserError, match="not a record of searches of format"):
        Replay(tmp_path / "rec")
