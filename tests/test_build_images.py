"""Stage 4: an image service that takes references, well and badly behaved; kept pictures; our own model."""

import base64
import io
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from build_servers import World, picture_of, shown_in
from build_tools import bench
from datasets_tools import grammar, pixels
from generation_tools import tiny
from PIL import Image
from search_tools import Reply, encoded, serving

from data.build import ownmodel
from data.build.contracts import Dropped
from data.build.images import EndpointImages, open_image
from data.build.ownmodel import OwnModel
from data.build.pictures import draw
from data.build.recaption import recaption
from data.build.spec import Image as Settings
from data.build.trajectories import research, with_pictures
from unify_agent.agent import load
from unify_agent.agent.episode import Episode
from unify_agent.agent.judge import Judged, Verdict
from unify_agent.agent.record import png_metadata
from unify_agent.agent.unified import UnifiedPolicy
from unify_agent.generation.sampler import SamplerSettings
from unify_agent.judging import CallLog, ChatError
from unify_agent.judging.gate import Open
from unify_agent.search.base import ImageHit

ROOT = Path(__file__).resolve().parents[1]
PASSING = ["429", "500", "webpage", "cut", "empty", "notdata", "notjson", "deadurl", "drop"]


def episode(folder: Path, references: int = 2, number: int = 3) -> Episode:
    folder.mkdir(exist_ok=True)
    kept = []
    for k in range(references):
        path = folder / f"{number}-{k}.png"
        picture_of(number, k).save(path)
        kept.append(Judged(ImageHit(f"p{number}-{k}", "x", path, 160, 128, "", ""), None, Verdict(9.0, "good", True)))
    return Episode("one", "x", recaption=f"A scene of number {number}.", references=kept, stop="grounded")


@contextmanager
def client(place, url, **settings):
    given = {"model": "painter", "size": "64x96", "attempts": 3, "timeout": 5.0} | settings
    with CallLog(place / "calls.jsonl") as log:
        made = EndpointImages(Settings(url=url, **given), place / "pictures", log, Open(), backoff=0.0)
        try:
            yield made
        finally:
            made.close()


def test_references_go_as_a_form_and_their_content_comes_back(tmp_path):
    with World().images() as server, client(tmp_path, server.url, extra={"quality": "high"}) as images:
        path = images.draw(episode(tmp_path / "r"), 1, 77)
    (asked,) = server.asked
    assert asked["path"] == "/v1/images/edits" and asked["names"] == ["image[]", "image[]"]
    assert [shown_in(each)[0] for each in asked["pictures"]] == [3, 3]
    assert (asked["prompt"], asked["size"], asked["quality"]) == ("A scene of number 3.", "96x64", "high")
    assert (asked["n"], asked["seed"], asked["model"]) == ("1", "77", "painter")
    assert shown_in(path.read_bytes())[0] == 3 and path.parent.parent == tmp_path / "pictures"
    assert Image.open(path).format == "PNG" and Image.open(path).mode == "RGB" and png_metadata(path) == {}


def test_without_references_a_picture_is_generated(tmp_path):
    with World().images() as server, client(tmp_path, server.url) as images:
        images.draw(episode(tmp_path / "r", references=0), 1, 1)
    assert server.asked[0]["path"] == "/v1/images/generations" and server.asked[0]["n"] == 1


def test_a_picture_may_come_as_an_address(tmp_path):
    with World().images(plan=["url"]) as server, client(tmp_path, server.url) as images:
        assert shown_in(images.draw(episode(tmp_path / "r"), 1, 1).read_bytes())[0] == 3


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_tried_again(tmp_path, fault):
    with World().images(plan=[fault]) as server, client(tmp_path, server.url) as images:
        path = images.draw(episode(tmp_path / "r"), 1, 1)
    assert len(server.asked) == 2 and shown_in(path.read_bytes())[0] == 3


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("429", "rate_limited"), ("500", "server"), ("webpage", "malformed"), ("cut", "malformed"), ("empty", "empty"),
     ("deadurl", "malformed"), ("notjson", "server")],
)  # fmt: skip
def test_what_does_not_pass_is_an_error_after_so_many_attempts(tmp_path, fault, kind):
    with World().images(fault=lambda number: fault) as server, client(tmp_path, server.url) as images:
        with pytest.raises(ChatError) as raised:
            images.draw(episode(tmp_path / "r"), 1, 1)
    assert raised.value.kind == kind and len(server.asked) == 3 and not (tmp_path / "pictures").exists()


def test_a_slow_service_is_tried_again(tmp_path):
    with World().images(plan=["timeout"]) as server, client(tmp_path, server.url, timeout=0.5) as images:
        images.draw(episode(tmp_path / "r"), 1, 1)
    assert len(server.asked) == 2


def test_a_pause_that_the_service_asks_for_is_kept(tmp_path, monkeypatch):
    held = []
    with World().images(plan=["429"]) as server, client(tmp_path, server.url) as images:
        server.retry_after = "7"
        monkeypatch.setattr(images._pace, "hold", held.append)
        images.draw(episode(tmp_path / "r"), 1, 1)
    assert held == [7.0]


@pytest.mark.parametrize("address", ["http://10.0.0.1/x.png", "file:///etc/passwd", "http://169.254.169.254/", "x", 7])
def test_an_address_that_may_not_be_visited_is_not(tmp_path, address):
    with serving(lambda asked: Reply({"data": [{"url": address}]})) as server, client(tmp_path, server.url) as images:
        with pytest.raises(ChatError, match="malformed"):
            images.draw(episode(tmp_path / "r"), 1, 1)


def test_a_picture_is_made_anew(tmp_path):
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "secret"
    sent = encoded(picture_of(3), "JPEG", exif=exif)
    packed = "data:image/jpeg;base64," + base64.b64encode(sent).decode()
    with serving(lambda asked: Reply({"data": [{"url": packed}]})) as server, client(tmp_path, server.url) as images:
        path = images.draw(episode(tmp_path / "r"), 1, 1)
    made = Image.open(io.BytesIO(path.read_bytes()))
    assert (made.format, made.size) == ("PNG", (128, 160)) and b"secret" not in path.read_bytes()


def test_a_server_that_knows_no_seed_is_asked_without_one_from_then_on(tmp_path):
    with World().images(fault=lambda number: "noseed") as server, client(tmp_path, server.url) as images:
        images.draw(episode(tmp_path / "r"), 1, 1)
        images.draw(episode(tmp_path / "r"), 2, 2)
    assert ["seed" in asked for asked in server.asked] == [True, False, False]


def test_a_picture_that_was_drawn_is_not_drawn_again_and_another_trial_is(tmp_path):
    with World().images() as server:
        with client(tmp_path, server.url) as images:
            first = images.draw(episode(tmp_path / "r"), 1, 1)
        with client(tmp_path, server.url) as images:
            assert images.draw(episode(tmp_path / "r"), 1, 1) == first
            assert len(server.asked) == 1 and images.usage.cached == 1
            images.draw(episode(tmp_path / "r"), 2, 2)
            images.draw(episode(tmp_path / "other", number=4), 1, 1)
            assert len(server.asked) == 3
            first.unlink()
            assert images.draw(episode(tmp_path / "r"), 1, 1) == first and len(server.asked) == 4


def test_a_picture_is_on_the_disk_before_the_log_says_so(tmp_path, monkeypatch):
    with World().images() as server, client(tmp_path, server.url) as images:
        found = []
        append = images._kept.log.append
        monkeypatch.setattr(images._kept.log, "append", lambda record: (
            found.append((tmp_path / "pictures" / record["answer"]["picture"]).is_file()), append(record)))  # fmt: skip
        images.draw(episode(tmp_path / "r"), 1, 1)
    assert found == [True]


KILLED = """
import sys; from pathlib import Path
sys.path[:0] = ["tests", "."]
from test_build_images import client, episode
place = Path(sys.argv[1])
with client(place, sys.argv[2]) as images:
    for number in range(1, 7):
        images.draw(episode(place / "r"), number, number)
"""


def test_a_run_that_was_killed_repeats_no_finished_call(tmp_path):
    with World().images() as server:
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), server.url], cwd=ROOT)

        def kill(number):
            if number == 4:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
            return None

        server.fault = kill
        process.wait()
        assert process.returncode == -signal.SIGKILL
        done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), server.url], cwd=ROOT)
        assert done.returncode == 0
        trials = [int(asked["seed"]) for asked in server.asked]
    assert trials == [1, 2, 3, 4, 4, 5, 6]


def test_a_key_is_in_no_message_and_no_log(tmp_path, monkeypatch):
    monkeypatch.setenv("PAINTER_KEY", "sk-very-secret-42")
    with World().images(plan=["401"]) as server, client(tmp_path, server.url, key_env="PAINTER_KEY") as images:
        with pytest.raises(ChatError, match="auth") as raised:
            images.draw(episode(tmp_path / "r"), 1, 1)
        assert server.asked[0]["authorization"] == "Bearer sk-very-secret-42"
    assert "very-secret" not in f"{raised.value}{(tmp_path / 'calls.jsonl').read_text()}"


# ------------------------------------------------------------ the stage


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("world")
    World().write(place)
    return place


def ready(at, name):
    task = at.task(name)
    return task, recaption(task, research(task, at.spec, at.services), at.spec, at.services)


def test_content_that_the_service_refuses_is_dropped_and_a_wrong_size_is_not(tmp_path, folder):
    world = World(habits={"Kiru Max": {"moderated"}})
    with bench(tmp_path, folder, world) as at:
        task, trajectory = ready(at, "Kiru Max")
        with pytest.raises(Dropped) as dropped:
            draw(task, trajectory, 1, at.spec, at.services)
        assert (dropped.value.stage, dropped.value.reason) == ("picture", "the image service refuses")
        assert len(at.images.asked) == 1
        task, trajectory = ready(at, "Kiru")
        at.images.plan.append("badsize")
        with pytest.raises(ChatError, match="size must be"):
            draw(task, trajectory, 1, at.spec, at.services)


def test_each_trial_has_a_seed_of_its_own_and_every_task_too(tmp_path, folder):
    with bench(tmp_path, folder) as at:
        for name in ("Kiru", "Kiru Max"):
            task, trajectory = ready(at, name)
            for number in (1, 2, 2):
                draw(task, trajectory, number, at.spec, at.services)
        seeds = [asked["seed"] for asked in at.images.asked]
        assert len(seeds) == len(set(seeds)) == 4
        assert at.services.totals()["image"].pictures == 4 and at.services.cached()["image"] == 2


# ------------------------------------------------------------ our own model


class Batches:
    """A painter that draws an episode's seed, and remembers its batches. It cannot draw seed 13 with others."""

    def __init__(self, gate):
        self.gate, self.batches = gate, []

    def described(self):
        return {"weights": "0"}

    def draw(self, episodes):
        self.gate.wait(10)
        self.batches.append([each.seed for each in episodes])
        if any(each.seed == 13 for each in episodes) and len(episodes) > 1:
            raise MemoryError("too much")
        return [ValueError("no") if each.seed == 7 else np.full((16, 16, 3), each.seed, np.uint8) for each in episodes]


def test_who_waits_is_drawn_together_and_takes_no_other_with_it(tmp_path, monkeypatch):
    gate = threading.Event()
    painter = Batches(gate)
    with CallLog(tmp_path / "calls.jsonl") as log:
        own = OwnModel(Settings(own="model", size="16x16", concurrency=4), tmp_path / "pictures", log, Open())
        monkeypatch.setattr(own, "_loaded", lambda: painter)
        own._painter = painter
        asked = replace(episode(tmp_path / "r"), recaption="x")

        def one(seed):
            try:
                return int(np.asarray(Image.open(own.draw(asked, 1, seed)))[0, 0, 0])
            except ValueError as error:
                return str(error)

        with ThreadPoolExecutor(10) as pool:
            jobs = [pool.submit(one, seed) for seed in range(6, 15)]
            while len(own._waiting) < 5:
                pass
            gate.set()
            found = [job.result() for job in jobs]
        assert found == ["no" if seed == 7 else seed for seed in range(6, 15)]
        assert max(map(len, painter.batches)) > 1 and max(map(len, painter.batches)) <= 4
        before = len(painter.batches)
        assert one(6) == 6 and len(painter.batches) == before and own.usage.cached == 1


@pytest.mark.parametrize("odd", [-1, 1])
def test_a_wrong_number_of_pictures_is_an_error_and_nobody_waits_for_ever(tmp_path, odd):
    class Miscounts(Batches):
        def draw(self, episodes):
            pictures = super().draw(episodes)
            return pictures[:odd] if odd < 0 else pictures + pictures[:odd]

    painter = Miscounts(threading.Event())
    with CallLog(tmp_path / "calls.jsonl") as log:
        own = OwnModel(Settings(own="model", size="16x16", concurrency=4), tmp_path / "pictures", log, Open())
        own._painter = painter
        asked = replace(episode(tmp_path / "r"), recaption="x")
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(own.draw, asked, 1, seed) for seed in (20, 21, 22)]
            painter.gate.set()
            for job in jobs:
                with pytest.raises(RuntimeError, match="of 1 recaptions"):
                    job.result(60)


def test_the_spec_says_who_draws(tmp_path):
    services = SimpleNamespace(image=Settings(own=str(tmp_path / "model")))
    with CallLog(tmp_path / "calls.jsonl") as log:
        assert isinstance(open_image(SimpleNamespace(services=services), tmp_path, log, Open()), ownmodel.OwnModel)
        services.image = Settings(url="localhost:1", model="m")
        assert isinstance(open_image(SimpleNamespace(services=services), tmp_path, log, Open()), EndpointImages)


def test_our_own_model_draws(tmp_path, monkeypatch):
    policy = UnifiedPolicy(*tiny(), grammar(), pixels(), settings=SamplerSettings(steps=2), size=(64, 64))
    policy.provenance = {"model": "/somewhere/model", "weights": "0"}
    monkeypatch.setattr(load, "load_policy", lambda source, size: (policy, None))
    settings = Settings(own=str(tmp_path / "model"), size="64x64", concurrency=2)
    with CallLog(tmp_path / "calls.jsonl") as log:
        own = OwnModel(settings, tmp_path / "pictures", log, Open())
        asked = episode(tmp_path / "r")
        first = own.draw(asked, 1, 1)
        assert Image.open(first).size == (64, 64) and own.draw(asked, 1, 1) == first != own.draw(asked, 2, 2)
        assert own.described()["model"] == "model" and own.described()["height"] == 64


def test_a_picture_does_not_depend_on_which_others_are_drawn_with_it(tmp_path):
    policy = UnifiedPolicy(*tiny(), grammar(), pixels(), settings=SamplerSettings(steps=2), size=(64, 64))
    several = [
        replace(with_pictures(episode(tmp_path / "r", references, number)), seed=number)
        for number, references in ((1, 2), (2, 0), (3, 1))
    ]
    together = policy.draw(several)
    alone = [policy.draw([each])[0] for each in several]
    assert all(np.abs(a.astype(int) - b).max() <= 1 for a, b in zip(together, alone, strict=True))
    backwards = policy.draw(several[::-1])[::-1]
    assert all(np.abs(a.astype(int) - b).max() <= 1 for a, b in zip(together, backwards, strict=True))
