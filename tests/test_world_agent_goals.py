"""The task of every family can be reached in every fold: a course of actions that does it is kept for each."""

import json
from pathlib import Path

import pytest

from eval.world_agent.deduce import family as families
from eval.world_agent.deduce.simulation import Simulation

COURSES = json.loads(Path(__file__).with_name("world_agent_courses.json").read_text(encoding="utf-8"))
CASES = Path(families.__file__).parents[1] / "cases" / "deduce"


def test_there_is_a_course_for_every_family():
    assert set(COURSES) == {path.stem for path in CASES.glob("*.yaml") if "." not in path.stem}


@pytest.mark.parametrize(("name", "fold"), [(name, fold) for name in COURSES for fold in range(5)])
def test_a_course_of_possible_actions_reaches_the_task(name, fold):
    family = families.load_family(CASES / f"{name}.yaml")
    world = Simulation.begin(family, fold)
    for action in COURSES[name][fold]:
        assert not world.refusal(action)
        world.run(world.t + family.file.interval, action)
    assert world.t == family.file.horizon and world.holds("task", family.goal)
