"""A model of this project plays, in plain text: batched, the same by the same seed, with its errors as observations."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from tiny_model import write_tiny_model
from world_agent_tools import tiny_case, tiny_family

from eval.__main__ import main
from eval.world_agent.maintain import replay_run
from eval.world_agent.own import OwnPlayer, load_player
from eval.world_agent.talk import Reply, Turn
from unify_agent import errors
from unify_agent.errors import UserError
from unify_agent.files import write_text
from unify_agent.judging import assistant, system, user


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny model of random weights that reads 20,000 tokens."""
    return write_tiny_model(tmp_path_factory.mktemp("own"))


def command(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["eval", "world-agent", *map(str, arguments)])
    code = errors.run(main)
    return code, capsys.readouterr()


def talk(number: int, *more):
    """A conversation whose first text depends on `number`."""
    said = [system("You keep a world."), user(f"Round {number} " + "and on " * number), *more]
    return Turn(number, 1 + len(more) // 2, said)


def texts(replies: list[Reply]) -> list[str]:
    return [reply.text for reply in replies]


def test_replies_are_the_same_alone_and_in_a_batch_and_depend_on_the_seed(folder):
    player = load_player(str(folder), 24, 1.0, 7)
    turns = [talk(number) for number in (1, 2, 3)]
    together = player.replies(turns)
    assert texts(together) == [player.reply(turn).text for turn in turns] and len(set(texts(together))) == 3
    assert texts(load_player(str(folder), 24, 1.0, 7).replies(turns)) == texts(together)
    assert texts(load_player(str(folder), 24, 1.0, 8).replies(turns)) != texts(together)
    assert all(reply.tokens_in > 0 and 0 < reply.tokens_out <= 24 and reply.served for reply in together)


def test_a_conversation_that_goes_on_is_what_it_would_be_from_its_text_alone(folder):
    """The cache of the turn before serves, and changes nothing: a run that was stopped has only its texts."""
    player = load_player(str(folder), 16, 0.0, 0)
    first = player.replies([talk(1), talk(2)])
    turns = [talk(n, assistant(reply.text or "..."), user("Go on.")) for n, reply in enumerate(first, 1)]
    cached = player.replies(turns)
    assert texts(cached) == texts(load_player(str(folder), 16, 0.0, 0).replies(turns))
    other = [talk(2, assistant("No."), user("Go on.")), talk(1)]
    assert texts(player.replies(other)) == texts(load_player(str(folder), 16, 0.0, 0).replies(other))


def test_text_from_outside_becomes_no_tag(folder):
    player = load_player(str(folder), 8, 0.0, 0)
    grammar = player.policy.grammar
    (ids,) = player._texts(Turn(1, 1, [system("<tool_call>"), user("</think><|im_end|>")]))
    assert not {grammar.eos, *grammar.tag_ids.values()} & set(ids)


def test_a_full_context_is_told_and_costs_the_turn_alone(folder):
    player = load_player(str(folder), 100, 0.0, 0)
    long, short = talk(1, assistant("x " * 20_000), user("Go on.")), talk(2)
    refused, taken = player.replies([long, short])
    assert "there is room for 19898" in refused.problem and refused.tokens == 0 and not refused.calls
    assert taken.text and taken.text == player.reply(short).text
    with pytest.raises(UserError, match="--room 20000: the model reads 20000 tokens in all"):
        OwnPlayer(player.policy, "tiny", 20_000)


def test_the_command_plays_several_runs_with_a_model_folder_and_goes_on(folder, tmp_path, monkeypatch, capsys):
    case, out = tiny_case(tmp_path).files[0], tmp_path / "runs"
    line = ["maintain", "--case", case, "--tier", "easy", "hard", "--model", folder, "--turns", 3, "--room", 12,
            "--temperature", 1, "--out", out]  # fmt: skip
    code, told = command(monkeypatch, capsys, *line)
    assert code == 0 and told.out.count("completion 0.0000") == 2, told.err
    runs = [out / "maintain" / "tiny" / "tiny" / tier for tier in ("easy", "hard")]
    before = {path: path.read_bytes() for run in runs for path in run.rglob("*.json*")}
    for run in runs:
        described = json.loads((run / "run.json").read_text())
        assert described["served"] == described["player"]["weights"] and described["player"]["context"] == 20_000
        rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        assert [row["batch"][0]["forced"] for row in rows if row["kind"] == "end_round"] == [True] * 3
        assert replay_run(run).over
        turns = [json.loads(line)["reply"] for line in (run / "turns.jsonl").read_text().splitlines()]
        assert all(0 < turn["tokens_out"] <= 12 for turn in turns), "every prompt fits its context"
    lines = (runs[0] / "turns.jsonl").read_bytes().splitlines(keepends=True)
    (runs[0] / "turns.jsonl").write_bytes(b"".join(lines[:4]))
    write_text(runs[1] / "log.jsonl", "")
    code, told = command(monkeypatch, capsys, *line)
    assert code == 0 and {path: path.read_bytes() for run in runs for path in run.rglob("*.json*")} == before


def test_a_model_that_answers_nothing_leaves_unanswered_questions(folder, tmp_path, monkeypatch, capsys):
    family = tiny_family(tmp_path).files[0]
    line = ["deduce", "--case", family, "--mode", "m2", "--condition", "naming", "--fold", 0, 1, "--model", folder,
            "--attempts", 2, "--room", 12, "--out", tmp_path]  # fmt: skip
    code, told = command(monkeypatch, capsys, *line)
    assert code == 3 and "8 questions were never answered" in told.out, told.err
    assert re.search(r"; [1-8] of 8 turns could not be used", told.out)
    run = tmp_path / "deduce" / "tiny" / "drip" / "m2_naming_0"
    answers = [json.loads(line)["reply"] for line in (run / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 2 * 4 and all("cut off" in each["problem"] or each["text"] for each in answers)


def test_a_folder_that_is_no_model_is_told_in_one_line(tmp_path, monkeypatch, capsys):
    code, told = command(monkeypatch, capsys, "maintain", "--case", "mill", "--model", tmp_path)
    assert code == 2 and told.err.startswith("error: ") and told.err.count("\n") == 1
