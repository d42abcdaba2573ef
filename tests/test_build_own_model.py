"""A task that our own model draws: from research to the sample that training reads."""

import json

import pytest
from build_servers import World
from build_tools import task_of, write_spec
from PIL import Image
from tiny_model import write_tiny_model

from data.build import pictures, recaption, trajectories, verification
from data.build.assembly import assemble, lay_out, records_in
from data.build.benchmark import _references
from data.build.services import Services
from data.build.spec import read_spec


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("own"))


def test_our_own_model_draws_a_task_from_its_research_to_the_sample(model, tmp_path):
    world = World()
    world.write(tmp_path)
    own = {"url": "", "model": "", "own": str(model), "size": "64x64", "concurrency": 2}
    with world.chat() as chat:
        spec = read_spec(write_spec(tmp_path, tmp_path, chat.url, "", services={"image": own}))
        with Services(spec, tmp_path / "out") as services:
            task = task_of(world.thing_in("Kiru"), tmp_path)
            trajectory = recaption.recaption(task, trajectories.research(task, spec, services), spec, services)
            drawn = pictures.draw(task, trajectory, 1, spec, services)
            assert Image.open(drawn).size == (64, 64)
            trial = verification.verify(task, trajectory, 1, drawn, spec, services)
            assemble(task, trajectory, [trial], tmp_path / "out" / "items", spec, services)
            lay_out(tmp_path / "out", spec, ())
        with Services(spec, tmp_path / "out") as again:
            assert pictures.draw(task, trajectory, 1, spec, again) == drawn and again.image.usage.cached == 1
    item = tmp_path / "out" / "items" / task.id
    ((_, record),) = records_in(item)
    painter = record.options["painter"]
    assert painter["model"] == model.name and painter["weights"] and str(tmp_path) not in json.dumps(record.options)
    assert len(record.references) == 2 and all(path.is_file() for path in _references(item))
    assert (tmp_path / "out" / "train" / "build.json").is_file()
