"""What the services of a build share."""

import time

from build_servers import World
from build_tools import write_spec
from chat_server import ChatServer

from data.build.services import Services
from data.build.spec import read_spec
from unify_agent.judging import user


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
