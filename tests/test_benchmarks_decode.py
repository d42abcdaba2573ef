"""The benchmark of generation prints its figures, each with the machine's own rate."""

import json

import pytest
import torch

from benchmarks import decode
from unify_agent.errors import UserError


@pytest.fixture
def small(monkeypatch):
    for name, value in {"CONTEXTS": ((20, 137, 2),), "PROMPT": 12, "GRID": (2, 3), "TOKENS": 2, "STEPS": 2}.items():
        monkeypatch.setattr(decode, name, value)


def test_every_figure_comes_with_its_bar_and_the_machines_rate(small, capsys):
    arguments = ["--threads", str(torch.get_num_threads())]
    assert decode.main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [f["name"] for f in printed["figures"]] == [
        "decoding after 20 tokens",
        "a guided step of 32x48 after 12 tokens",
    ]
    assert [f["bar"] for f in printed["figures"]] == [274, pytest.approx(0.32 / 1.5)]
    assert all(f["value"] > 0 and f["gemm"] > 0 for f in printed["figures"])
    assert decode.main(arguments) == 0
    assert capsys.readouterr().out.count("GFLOP/s") == 2


def test_no_threads_are_refused():
    with pytest.raises(UserError, match="--threads 0"):
        decode.main(["--threads", "0"])
