"""Fixtures that several test files share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the apps live in the checkout only


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A small embedded world of 120 entities, built once."""
    from data.openmoji.world import build_world

    return build_world(tmp_path_factory.mktemp("world") / "world", limit=120, workers=1, quiet=True)
