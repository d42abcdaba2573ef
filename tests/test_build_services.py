"""What the services of a build share."""

import time

import pytest
from build_servers import World
from build_tools import write_spec
from chat_server import ChatServer

from data.build.answers import Answers, Total
from data.build.services import Services
from data.build.spec import read_spec
from data.build.trajectories import _weight
from unify_agent.errors import UserError
from unify_agent.judging import ChatError, user
from unify_agent.judging.transport import token_count
from unify_agent.search.base import SearchError


def test_a_pause_that_a_server_asks_for_holds_all_roles_of_the_service(tmp_path):
    World().write(tmp_path)
    served = []

    def answer(body):
        served.append((body["model"], time.monotonic()))
        return "Yes."

    with ChatServer(answer, served=["teacher", "metadata", "references"], plan=["429"], retry_after="0.6") as server:
        spec = read_spec(write_spec(tmp_path, tmp_path, server.url, server.url))
        with Services(spec, tmp_path / "out") as services:
            services.chat("metadata")._pace._backoff = 0.0
            began = time.monotonic()
            services.chat("metadata").ask([user("first")])
            services.chat("teacher").ask([user("second")])
            services.chat("verifier")._pace.hold(0.3)
            held = time.monotonic()
            services.chat("references").ask([user("third")])
    assert [name for name, _ in served] == ["metadata", "teacher", "references"]
    assert served[0][1] - began >= 0.5 and served[2][1] - held >= 0.25


@pytest.mark.parametrize("said", [-5, 2**63, True, 1.5, "7", None])
def test_a_count_that_no_server_can_mean_counts_for_nothing(said):
    assert token_count(said) is None and token_count(7) == 7


def test_what_cannot_be_kept_is_told_to_whoever_waits(tmp_path):
    answers = Answers(tmp_path / "calls.sqlite")
    with answers._lock:
        answers.spend("teacher", Total(1))
        while not answers._queue.empty():  # the writer has taken it, and waits for the lock
            time.sleep(0.001)
        answers.spend("teacher", Total(2**80))  # more than a column holds
        waits = answers._put("INSERT INTO failures VALUES (?, ?)", (b"key", b"{}"))
    with pytest.raises(UserError, match=r"calls\.sqlite: cannot be written"):
        waits.result(timeout=20)
    answers.append({"key": "cd" * 32, "answer": {"text": "kept"}})
    assert answers.find("cd" * 32) == {"text": "kept"}
    answers.close()
    with pytest.raises(UserError, match="closed"):
        answers.append({"key": "ef" * 32, "answer": {}})


def test_the_reason_of_a_search_that_failed_does_not_depend_on_who_was_first():
    errors = [SearchError("refused", "b"), SearchError("service_down", "c"), ChatError("malformed", "a")]
    assert {str(min(order, key=_weight)) for order in (errors, errors[::-1])} == {"malformed: a"}
