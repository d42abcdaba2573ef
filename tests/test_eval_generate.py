"""Generation for a benchmark: where pictures go, what each variant draws from, stopping and going on."""

import json

import eval_tools as tools
import pytest
import test_infer_command
from chat_server import ChatServer

from eval import generate as command
from eval.benchmarks import benchmark
from eval.benchmarks.base import Item
from eval.pictures import survey
from eval.studies import AGENTS, INJECTIONS, Study
from unify_agent.agent.record import png_metadata
from unify_agent.agent.unified import UnifiedPolicy
from unify_agent.errors import UserError
from unify_agent.search.base import NoSearch, TextHit

place, spoken = test_infer_command.place, test_infer_command.spoken  # a tiny model with an index; what it says


@pytest.fixture
def data(tmp_path):
    """Two prompts of FactIP about a thing that the index knows."""
    root = tools.factip(tmp_path / "data", 2)
    content = json.loads((root / "test.json").read_text())
    for record in content.values():
        record |= {"ip_name": "Velmora", "image_prompt": f"Draw Velmora, {record['index']}.", "language": "en"}
    (root / "test.json").write_text(json.dumps(content))
    return root


def generate(place, data, out, *more):
    return tools.command("generate", "--bench", "factip", "--data", data, "--model", place / "model", "--out", out,
                         "--steps", 2, *more)  # fmt: skip


def index_of(place):
    return f"index:{place / 'index'}"


def test_what_the_agent_drew_is_scored_unrenamed(place, data, tmp_path, spoken, capsys):
    out = tmp_path / "out"
    assert generate(place, data, out, "--search", index_of(place)) == 0
    bench = benchmark("factip")
    found = survey(bench, bench.load(data), out)
    assert not found.problems and not found.strangers and all(each.trajectory for each in found.found)
    record = json.loads((out / "Animation/i0_traj.json").read_text())
    assert record["stop"] == "grounded" and record["generated_image"] == "Animation/i0.png"
    assert all((out / reference["file"]).is_file() for reference in record["references"]) and record["references"]
    assert png_metadata(out / "Animation/i0.png")["prompt"] == "Draw Velmora, i0."
    assert json.loads((out / "dataset.json").read_text())["sha256"] == bench.load(data).sha256
    with ChatServer(tools.judge) as server:
        assert tools.score(server, "factip", data, out, tmp_path / "run") == 0
    tools.command("report", tmp_path / "run")
    details = (tmp_path / "run/page/details/0.js").read_text()
    assert "turn 0: model" in details and "recaption" in details


def test_generation_continues_where_it_was_stopped(place, data, tmp_path, spoken, monkeypatch, capsys):
    out, whole, kept = tmp_path / "out", tmp_path / "whole", []
    keep = command.keep

    def stopped(*arguments):
        if kept:
            raise KeyboardInterrupt
        keep(*arguments)
        kept.append(arguments[1].id)

    monkeypatch.setattr(command, "keep", stopped)
    with pytest.raises(KeyboardInterrupt):
        generate(place, data, out, "--search", index_of(place))
    monkeypatch.setattr(command, "keep", keep)
    asked = []
    draw = UnifiedPolicy.draw
    monkeypatch.setattr(UnifiedPolicy, "draw", lambda self, some: asked.extend(e.id for e in some) or draw(self, some))
    assert generate(place, data, out, "--search", index_of(place)) == 0
    assert kept == ["Animation/i0"] and asked == ["i1"] and "1 of 2 were drawn before" in capsys.readouterr().out
    generate(place, data, whole, "--search", index_of(place))
    for path in whole.rglob("*.png"):
        assert (out / path.relative_to(whole)).read_bytes() == path.read_bytes()
    with pytest.raises(UserError, match="another seed"):
        generate(place, data, out, "--search", index_of(place), "--seed", 1)
    with pytest.raises(UserError, match=r"another (search|variant)"):
        generate(place, data, out, "--variant", "closed_book")


def test_pictures_of_another_data_set_are_not_mixed_in(place, data, tmp_path, spoken):
    generate(place, data, tmp_path / "out", "--variant", "prompt_only")
    with pytest.raises(UserError, match="made for other data"):
        generate(place, tools.factip(tmp_path / "other", 3), tmp_path / "out", "--variant", "prompt_only")


def test_an_item_that_fails_is_named_and_tried_again(place, data, tmp_path, monkeypatch, capsys):
    draw = UnifiedPolicy.draw
    monkeypatch.setattr(UnifiedPolicy, "draw", lambda self, some: [MemoryError("no room")] * len(some))
    assert generate(place, data, tmp_path / "out", "--variant", "prompt_only") == 3
    assert "Animation/i0: draw_error, MemoryError: no room" in capsys.readouterr().out
    monkeypatch.setattr(UnifiedPolicy, "draw", draw)
    assert generate(place, data, tmp_path / "out", "--variant", "prompt_only") == 0


def test_an_injection_is_drawn_from_just_what_it_names(place, data, tmp_path, monkeypatch):
    drawn = {}
    draw = UnifiedPolicy.draw
    for name in INJECTIONS:
        seen = []
        monkeypatch.setattr(UnifiedPolicy, "draw", lambda self, some, seen=seen: seen.extend(some) or draw(self, some))
        search = ["--search", index_of(place)] if INJECTIONS[name][0] else []
        assert generate(place, data, tmp_path / name, "--variant", name, "--ids", "Animation/i0", *search) == 0
        drawn[name] = seen[0]
    assert {name: len(episode.references) for name, episode in drawn.items()} == {
        "prompt_only": 0, "with_text": 0, "with_references": 2, "with_both": 2,
    }  # fmt: skip
    assert drawn["prompt_only"].recaption == drawn["with_references"].recaption == "Draw Velmora, i0."
    assert "A green fruit" in drawn["with_text"].recaption and drawn["with_both"].turns == []
    pictures = {name: (tmp_path / name / "Animation/i0.png").read_bytes() for name in INJECTIONS}
    assert len(set(pictures.values())) == 4


class Pages:
    name = "pages"

    def text_search(self, q, hl=None, top_k=5):
        return [TextHit("t", f"about {q}", "s")]


def test_the_data_set_s_own_knowledge_and_support_pictures_come_first(tmp_path):
    paths = [tools.picture(tmp_path / f"{n}.png") for n in range(3)]
    item = Item("a", "p", "c", references=tuple(paths[:2]), support=(paths[2],), extra={"knowledge": "it is blue"})
    episode = Study("with_both").episode(item, "en", 0, Pages())
    assert episode.recaption == "p\nit is blue" and [j.hit.path for j in episode.references] == [paths[2]]
    assert not Study("with_both").searches(item) and Study("with_both").searches(Item("a", "p", "c"))
    plain = Item("a", "p", "c", extra={"entity": "owl"})
    assert Study("with_text").episode(plain, "en", 0, Pages()).recaption == "p\nabout owl"


@pytest.mark.parametrize(("name", "message"), [
    ("with_text", "no background text"), ("with_references", "no true picture"),
])  # fmt: skip
def test_nothing_to_inject_is_an_error_and_not_a_picture(name, message):
    with pytest.raises(UserError, match=message):
        Study(name).episode(Item("a", "p", "c"), "en", 0, NoSearch())


def test_an_item_without_anything_to_inject_leaves_the_others_theirs(place, data, tmp_path, capsys):
    next((data / "gt/Celebrity/i1").glob("seed1.*")).unlink()
    assert generate(place, data, tmp_path / "out", "--variant", "with_references", "--batch", 1) == 3
    assert "Celebrity/i1: " in capsys.readouterr().out
    assert (tmp_path / "out/Animation/i0.png").is_file() and not (tmp_path / "out/Celebrity/i1.png").exists()


def test_the_paper_s_ablations_and_both_books_are_there(place, data, tmp_path):
    assert {"full", "closed_book", "no_text_search", "no_image_search", "no_recaption", "no_identity", "no_scene",
            "no_vae", "no_vit"} == set(AGENTS)  # fmt: skip
    with pytest.raises(UserError, match="did you mean 'closed_book'"):
        Study("closedbook")
    with pytest.raises(UserError, match="give --search"):
        generate(place, data, tmp_path / "out")
    assert generate(place, data, tmp_path / "closed", "--variant", "closed_book", "--ids", "Animation/i0") == 0
    record = json.loads((tmp_path / "closed/Animation/i0_traj.json").read_text())
    assert record["references"] == []
