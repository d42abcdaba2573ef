"""Judging begins as each picture arrives; what comes out does not depend on when it did."""

import errno
import threading
from itertools import permutations

import pytest
from agent_tools import IMAGE_CALL, hits, loop_of, replies
from search_tools import Reply, drawing, encoded, service, serving

from unify_agent.agent.arriving import Looking, OneByOne
from unify_agent.agent.episode import Episode
from unify_agent.agent.judge import Verdict
from unify_agent.agent.pixeljudge import PixelJudge
from unify_agent.agent.toolcalls import parse_calls
from unify_agent.search.base import SearchError
from unify_agent.search.pictures import Candidate, Pictures
from unify_agent.search.recorded import Recording


class Noting(OneByOne):
    """Says a score that depends on the picture alone; tells `began` of each picture that it looks at."""

    name, at_once = "noting", 4

    def __init__(self, began=lambda hit: None, fails=()):
        self.began, self.fails, self.looked = began, fails, []

    def verdict(self, subject, hit, picture):
        self.looked.append(hit.title)
        self.began(hit)
        if hit.title in self.fails:
            return RuntimeError(f"nothing of use about {hit.title}")
        return Verdict(float(sum(picture.getpixel((3, 3))) % 10), "good", True)


class Live:
    """A back end whose pictures come over HTTP."""

    name, early = "live", True

    def __init__(self, folder, candidates, num=4):
        self.pictures, self.candidates, self.num = Pictures(folder, service("picture", tries=1)), candidates, num

    def search_image(self, q, location=None, hl=None, num=8, on_hit=None):
        return self.pictures.gather(self.candidates, self.num, on_hit)


def searched(search, judge):
    loop = loop_of(replies(IMAGE_CALL), search)
    loop.tools.judge = judge
    return loop.tools.call(Episode("one", "Draw it."), parse_calls(IMAGE_CALL).calls[0])


def candidates(server, names):
    return [Candidate(f"{server.url}/{name}", name, "web") for name in names]


@pytest.mark.parametrize("recorded", [False, True])
def test_a_picture_is_judged_while_others_are_still_under_way(tmp_path, recorded):
    looked = threading.Event()

    def answer(asked):
        if asked.path != "/1" and not looked.wait(20):
            return Reply("", 500)
        return Reply(encoded(drawing(int(asked.path[1:]))))

    with serving(answer) as server:
        search = Live(tmp_path / "cache", candidates(server, "4123"))
        search = Recording(tmp_path / "record", search, "live") if recorded else search
        found = searched(search, Noting(lambda hit: looked.set()))
    assert [each.hit.title for each in found.judged] == ["4", "1", "2", "3"] and not found.error


def test_a_judge_that_compares_sees_all_of_them_at_once(tmp_path):
    seen = []

    class Comparing(PixelJudge):
        def judge(self, subject, candidates):
            seen.append([hit.title for hit, _ in candidates])
            return super().judge(subject, candidates)

    with serving(lambda asked: Reply(encoded(drawing(int(asked.path[1:]))))) as server:
        searched(Live(tmp_path, candidates(server, "123")), Comparing())
    assert seen == [["1", "2", "3"]]


@pytest.mark.parametrize("order", list(permutations("123")))
def test_the_order_of_arrival_changes_nothing(tmp_path, order):
    """2 is a small copy of 1. Answers come in the given order, each when the one before was judged or left out."""
    content = {"1": drawing(1), "2": drawing(1).resize((48, 40)), "3": drawing(3)}
    turns = {name: threading.Event() for name in order}
    turns[order[0]].set()

    def next_turn(name):
        at = order.index(name) + 1
        if at < len(order):
            turns[order[at]].set()

    class Stepped(Pictures):
        def _fetch(self, candidate):
            assert turns[candidate.title].wait(20)
            return super()._fetch(candidate)

        def _is_news(self, found, told):
            news = super()._is_news(found, told)
            next_turn({(96, 80): "1", (48, 40): "2"}.get((found.width, found.height), "3"))
            return news

    content["3"] = drawing(3, (90, 80))
    judge = Noting()
    with serving(lambda asked: Reply(encoded(content[asked.path[1:]]))) as server:
        live = Live(tmp_path, candidates(server, "213"), 3)
        live.pictures = Stepped(tmp_path, service("picture", tries=1))
        found = searched(live, judge)
    assert [(each.hit.title, each.verdict.reason) for each in found.judged] == [("1", "good"), ("3", "good")]
    assert {each.verdict.score for each in found.judged} == {
        float(sum(drawing(1).getpixel((3, 3))) % 10), float(sum(content["3"].getpixel((3, 3))) % 10)}  # fmt: skip
    assert judge.looked.count("1") == judge.looked.count("3") == 1 and judge.looked.count("2") <= 1


@pytest.mark.parametrize(("fails", "reasons"), [(("kiwi fruit",), None), ((), ["good", "good", "unreadable"])])
def test_looking_and_judging_say_the_same(tmp_path, fails, reasons):
    found = hits(tmp_path, "good-1", "good-22", "bad-3")
    found[2].path.write_bytes(b"no picture")
    judge = Noting(fails=fails)

    def looked():
        with Looking(judge, "kiwi fruit") as looking:
            for hit in reversed(found[:2]):
                looking.add(hit)
            return looking.judged(found)

    if reasons is None:
        for ask in (looked, lambda: judge.judge("kiwi fruit", [(hit, hit.open()) for hit in found[:2]])):
            with pytest.raises(RuntimeError, match="nothing of use"):
                ask()
        return
    assert [each.verdict.reason for each in looked()] == reasons
    assert [each.verdict for each in looked()[:2]] == [
        each.verdict for each in judge.judge("kiwi fruit", [(hit, hit.open()) for hit in found[:2]])]  # fmt: skip


def test_a_search_that_breaks_off_is_its_error_whatever_was_judged(tmp_path):
    hit, judge = hits(tmp_path, "good-1")[0], Noting()

    class Breaking:
        name, early = "breaking", True

        def search_image(self, q, location=None, hl=None, num=8, on_hit=None):
            on_hit(hit)
            raise SearchError("bad_answer", "it broke off")

    found = searched(Breaking(), judge)
    assert "search_image: SearchError: it broke off" in found.error and found.judged == ()


def test_no_room_for_a_picture_is_an_error_of_its_search(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("unify_agent.search.pictures.write_bytes", full)
    with serving(lambda asked: Reply(encoded(drawing(1)))) as server:
        found = searched(Live(tmp_path, candidates(server, "1")), Noting())
    assert found.error.startswith("search_image: OSError: [Errno 28] No space left") and found.judged == ()


def test_a_judge_that_breaks_is_a_fault_of_the_judge(tmp_path):
    def breaks(hit):
        raise OSError("gone")

    with serving(lambda asked: Reply(encoded(drawing(1)))) as server:
        found = searched(Live(tmp_path, candidates(server, "1")), Noting(breaks))
    assert found.error.startswith("judge: OSError")
