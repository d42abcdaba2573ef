"""The agent's benchmark runs, and tells every stage."""

import json

from openmoji_small import build, random_model

from benchmarks import agent


def test_every_stage_is_told(tmp_path, capsys):
    world = build(tmp_path / "world", unseen=2)
    model = random_model(tmp_path, world)
    command = ["--world", str(world.folder), "--model", str(model), "--requests", "2", "--batch", "1", "--threads", "1"]
    assert agent.main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    stages = {"reply s", "draw s", "tools s", "write s", "all s", "tokens/s", "first turn s", "peak GiB"}
    assert stages <= set(told) and told["requests"] == 2 and told["tokens/s"] > 0
