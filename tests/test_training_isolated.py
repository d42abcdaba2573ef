"""Layout `isolated` from trajectories to pictures: the tiny model trains on a small world, and its export draws."""

import openmoji_small as small
import pytest
from agent_tools import FINAL, IMAGE_CALL, TEXT_CALL
from test_search_index import small_index
from training_ranks import compose

import infer
from data.openmoji.trajectories import write_trajectories
from unify_agent.agent.record import png_metadata
from unify_agent.errors import UserError
from unify_agent.files import write_json
from unify_agent.generation.session import Session
from unify_agent.generation.text import Sampling
from unify_agent.interleave.grammar import Grammar
from unify_agent.model.config import TINY, vae_to_json
from unify_agent.model.weights import ModelFolder
from unify_agent.training.metrics import read
from unify_agent.training.trainer import fit


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run of a few steps, and how many trajectories it was trained on."""
    place = tmp_path_factory.mktemp("isolated")
    world = small.build(place / "world", unseen=2)
    counts = write_trajectories(world.folder, 6, workers=1)
    base = small.random_model(place / "base", world)
    write_json(base / "vae.json", vae_to_json(TINY.vae))
    settings = [
        "+recipe=openmoji_cpu", "layout=isolated", "model.init=random", "model.arch=tiny", "model.path=null",
        f"model.vae={base}", f"model.tokenizer={base}", f"data.sources.0.path={world.folder / 'trajectories'}",
        "data.workers=0", "data.dropout={text: 0.1, vit: 0.3, vae: 0.3}", "parallel.threads=1",
        f"output={place / 'run'}", "steps=2",
    ]  # fmt: skip
    assert fit(compose(settings)) == 0
    return place / "run", counts["trajectories"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_run_trains_both_documents_of_every_trajectory(run):
    folder, trajectories = run
    rows = read(folder / "metrics.jsonl")
    assert [row["samples"] for row in rows] == [2 * trajectories] * 2, "a step is an epoch here"
    assert all(row["ce"] > 0 and row["mse"] > 0 and not row["skipped"] for row in rows)
    assert ModelFolder(folder / "final").layout == "isolated"


def test_its_export_draws_from_the_fresh_context_of_the_layout(run, tmp_path, monkeypatch):
    model = run[0] / "final"
    words, decode = Grammar.load(model), Session.decode

    def forced(session, rows, sampling, *, prefix=None, seeds=None):
        turns = [sum(entry.kind == "text" for entry in session.history[row]) // 2 for row in rows]
        ids = [words.encode((TEXT_CALL, IMAGE_CALL, FINAL)[turn]) for turn in turns]
        return decode(session, rows, Sampling(max_new=0), prefix=ids, seeds=seeds)

    small_index(tmp_path)
    asked = ["--model", str(model), "--search", f"index:{tmp_path / 'index'}", "--prompt", "Draw Velmora.",
             "--steps", "2", "--text-scale", "2", "--image-scale", "1.5"]  # fmt: skip
    monkeypatch.setattr(Session, "decode", forced)
    assert infer.main([*asked, "--out", str(tmp_path / "out")]) == 0
    found = png_metadata(next((tmp_path / "out").rglob("*_0.png")))
    assert (found["layout"], found["drawn_from"], found["height"]) == ("isolated", "fresh", 64)
    with pytest.raises(UserError, match="layout isolated, which never draws from the history"):
        infer.main([*asked, "--history", "--out", str(tmp_path / "again")])
