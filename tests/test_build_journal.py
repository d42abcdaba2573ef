"""The journal of a build: the last line counts, a torn one is dropped, a damaged one is named, one writer at a time."""

import errno
import fcntl
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.build import journal
from data.build.journal import SETTLED, Journal, Outcome, read_journal
from unify_agent.errors import UserError

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(WORDS | st.integers() | st.booleans(), lambda each: st.lists(each, max_size=3), max_leaves=4)
OUTCOMES = st.lists(
    st.builds(
        Outcome, kind=st.sampled_from(["entity", "task"]), id=st.sampled_from(["a", "a-p1", "零", "x y", "\u2028"]),
        state=st.sampled_from(["done", "dropped", "failed", "waiting", "held_out"]), entity=WORDS, reason=WORDS,
        stage=WORDS, detail=WORDS, made=WORDS,
        about=st.dictionaries(st.sampled_from(["names", "prompt", "trials"]), VALUES),
    ),
    max_size=8,
)  # fmt: skip


def last_of(outcomes):
    found = {}
    for each in outcomes:
        found[each.kind, each.id] = each
    return list(found.values())


@given(OUTCOMES, st.data())
def test_the_last_line_of_each_id_counts_and_a_torn_end_is_dropped(outcomes, data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        with Journal(path) as opened:
            for each in outcomes:
                opened.append(each)
        assert list(read_journal(path)) == last_of(outcomes)
        if not outcomes:
            return
        whole = path.read_bytes()
        length = len(outcomes[-1].line())
        path.write_bytes(whole[: len(whole) - data.draw(st.integers(1, length))])
        assert list(read_journal(path)) == last_of(outcomes[:-1])
        with Journal(path) as again:
            assert {(kind, name) for kind in ("entity", "task") for name, _ in again.all(kind)} == {
                (each.kind, each.id) for each in outcomes[:-1]
            }
            again.append(outcomes[-1])
            known = again.known(outcomes[-1].kind, outcomes[-1].id)
            assert known.state == outcomes[-1].state and known.why == outcomes[-1].why
        assert path.read_bytes() == whole


def test_where_no_journal_is_there_is_nothing(tmp_path):
    assert list(read_journal(tmp_path / "journal.jsonl")) == []
    assert {"done", "dropped", "held_out"} == SETTLED


@pytest.mark.parametrize(
    "line", ["no json", "[1]", '{"kind": "task"}', '{"kind": "song", "id": "a", "state": "done"}',
             '{"kind": "task", "id": 7, "state": "done"}', '{"kind": "task", "id": "a", "state": "over"}',
             '{"kind": "entity", "id": "a", "state": "done", "tasks": 7}', "\xff", "[" * 100_000],
)  # fmt: skip
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "journal.jsonl"
    good = Outcome("task", "a", "done").line()
    path.write_bytes(good + line.encode("latin-1") + b"\n" + good)
    for read in (lambda: list(read_journal(path)), lambda: Journal(path)):
        with pytest.raises(UserError, match=r"journal\.jsonl:2: not a line"):
            read()


def test_two_writers_are_refused_and_a_reader_is_waited_for(tmp_path):
    path = tmp_path / "journal.jsonl"
    with Journal(path) as first:
        first.append(Outcome("task", "a", "done"))
        with pytest.raises(UserError, match="another process writes this build"):
            Journal(path)
        assert [each.id for each in read_journal(path)] == ["a"]
    reader = os.open(path, os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    threading.Timer(0.1, os.close, [reader]).start()
    with Journal(path) as second:
        assert second.known("task", "a").state == "done"


def test_lines_of_many_threads_stay_whole(tmp_path):
    path = tmp_path / "journal.jsonl"
    with Journal(path) as opened:

        def note(worker):
            for number in range(50):
                opened.append(Outcome("task", f"{worker}-{number}", "done", about={"prompt": "x" * 300}))

        workers = [threading.Thread(target=note, args=(worker,)) for worker in range(4)]
        for each in workers:
            each.start()
        for each in workers:
            each.join()
    assert len(list(read_journal(path))) == 200


def test_a_line_for_which_there_is_no_room_leaves_no_part_of_it(tmp_path, monkeypatch):
    path = tmp_path / "journal.jsonl"
    write = os.write
    with Journal(path) as opened:
        opened.append(Outcome("task", "a", "done"))
        before = path.read_bytes()
        monkeypatch.setattr(journal.os, "write", lambda file, data: write(file, data[: len(data) // 2]))
        with pytest.raises(OSError) as raised:
            opened.append(Outcome("task", "b", "done"))
        monkeypatch.undo()
        assert raised.value.errno == errno.ENOSPC and path.read_bytes() == before
        assert opened.known("task", "b") is None
