"""Runs on disk: stopped and continued, replayed, scored without a network, with scripted players and over HTTP."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from chat_server import ChatServer, Reply, schema_name, texts
from world_agent_tools import tiny_case

from eval.__main__ import main
from eval.world_agent.cases import load
from eval.world_agent.chat import ChatJudge, ChatPlayer
from eval.world_agent.judging import ReferenceJudge, worksheet
from eval.world_agent.maintain import Game, judge_run, maintain, replay_run, score_run
from eval.world_agent.policies import oracle, policy
from eval.world_agent.talk import Turn, calls_in
from eval.world_agent.tools import open_tools, schemas
from unify_agent import errors
from unify_agent.errors import UserError
from unify_agent.judging import ChatClient, Endpoint

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def case(tmp_path):
    return tiny_case(tmp_path)


def reference(case, engine):
    return ReferenceJudge(case, engine.log)


def play(case, folder, name="oracle", tier="easy", turns=20):
    return maintain(Game(folder, case, tier, policy(name, case, tier), turns), reference)[0]


def contents(folder):
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def oracle_server(case, tier="easy", text=False, **options):
    """A server whose model plays the oracle: the turn is told by the messages so far."""
    script = oracle(case, tier)

    def answer(body):
        talk = texts(body)
        number = int(re.search(r"Round (\d+) of", talk).group(1))
        turn = 1 + sum(message["role"] == "assistant" for message in body["messages"])
        calls = script.reply(Turn(number, turn, [])).calls
        if text:
            listed = [{"tool": call.name, "arguments": json.loads(call.text)} for call in calls]
            return "I shall do this.\n```json\n" + json.dumps({"calls": listed}) + "\n```"
        return Reply(tool_calls=[(call.name, json.loads(call.text)) for call in calls])

    return ChatServer(answer, served=["oracle"], **options)


def client(server, **options):
    return ChatClient(Endpoint.parse(server.url, "oracle"), backoff=0.0, **options)


@pytest.mark.parametrize("tier", ["easy", "hard", "extreme"])
def test_a_run_leaves_hashes_log_snapshots_and_a_score(case, tmp_path, tier):
    result = play(case, tmp_path / "run", tier=tier)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert set(run["digests"]) == {"engine", "case", "prompts"} and run["player"] == {"player": "oracle"}
    assert result["total"]["completion"] == "1.0000"
    assert len(list((tmp_path / "run" / "snapshots").iterdir())) == 3
    engine = replay_run(tmp_path / "run")
    assert [s.state_hash for s in engine.snapshots] == [r["state_hash"] for r in result["rounds"]]


def test_the_same_command_again_changes_no_byte(case, tmp_path):
    play(case, tmp_path / "run", "sloppy")
    before = contents(tmp_path / "run")
    play(case, tmp_path / "run", "sloppy")
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize("keep", [0, 1, 37, 180])
def test_a_torn_record_is_completed(case, tmp_path, keep):
    """Whatever a kill leaves of the files that are written while playing, the run ends up the same."""
    play(case, tmp_path / "run", "sloppy", "hard")
    whole = contents(tmp_path / "run")
    for name in ("turns.jsonl", "log.jsonl"):
        file = tmp_path / "run" / name
        file.write_bytes(file.read_bytes()[:keep])
    shutil.rmtree(tmp_path / "run" / "snapshots")
    play(case, tmp_path / "run", "sloppy", "hard")
    assert contents(tmp_path / "run") == whole


def test_another_run_in_the_same_folder_is_refused(case, tmp_path):
    play(case, tmp_path / "run")
    with pytest.raises(UserError, match="other player"):
        play(case, tmp_path / "run", "sloppy")
    with pytest.raises(UserError, match="other turns"):
        play(case, tmp_path / "run", turns=21)


def test_a_changed_record_is_noticed(case, tmp_path):
    play(case, tmp_path / "run")
    file = tmp_path / "run" / "log.jsonl"
    good = file.read_text()
    file.write_text(good.replace('"to": "hall"', '"to": "den"', 1))
    with pytest.raises(UserError, match=r"log\.jsonl: row 1 .* replays differently"):
        replay_run(tmp_path / "run")
    file.write_text(good.replace("{", "", 1))
    with pytest.raises(UserError, match=r"log\.jsonl:1: not a line"):
        replay_run(tmp_path / "run")
    file.write_text(good)
    snapshot = tmp_path / "run" / "snapshots" / "round_02.json"
    snapshot.write_text(snapshot.read_text().replace('"lit": true', '"lit": false'))
    with pytest.raises(UserError, match="snapshot of round 2"):
        replay_run(tmp_path / "run")
    story = tmp_path / "run" / "case" / "tiny.yaml"
    story.write_text(story.read_text() + "# changed\n")
    with pytest.raises(UserError, match="was changed after it was played"):
        score_run(tmp_path / "run")


def test_scores_come_from_saved_judgments_byte_for_byte_without_a_network(case, tmp_path):
    play(case, tmp_path / "run", "sloppy")
    before = (tmp_path / "run" / "score.json").read_bytes()
    (tmp_path / "run" / "score.json").unlink()
    code = (
        "import socket; socket.socket.connect = socket.create_connection = None\n"
        "from pathlib import Path; from eval.world_agent.maintain import score_run\n"
        f"score_run(Path({str(tmp_path / 'run')!r}))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert (tmp_path / "run" / "score.json").read_bytes() == before


def test_endless_talk_and_wrong_calls_end_with_the_turns(case, tmp_path):
    result = play(case, tmp_path / "run", "adversarial", turns=19)
    assert result["total"]["completion"] == "0.0000" and result["crash"] is True
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    ends = [row["batch"][0]["forced"] for row in rows if row["kind"] == "end_round"]
    assert ends == [False, True, False]
    assert not any(row["accepted"] for row in rows if row["kind"] != "end_round")
    assert replay_run(tmp_path / "run").over


@pytest.mark.parametrize("text", [False, True])
def test_a_served_model_plays_with_tool_calls_or_in_plain_text(case, tmp_path, text):
    with oracle_server(case, "hard", text, plan=["500", "429", "timeout" if not text else "drop"]) as server:
        chat = ChatClient(Endpoint.parse(server.url, "oracle", timeout=0.5), backoff=0.0)
        player = ChatPlayer(chat, "text" if text else "tools")
        result, left = maintain(Game(tmp_path / "run", case, "hard", player, 20), reference)
        assert ("tools" in server.bodies[0]) is not text
    assert left == 0 and result["total"]["completion"] == result["total"]["relation"] == "1.0000"
    assert result["served"] and result["cost"]["tokens_out"] > 0
    assert replay_run(tmp_path / "run").over


def test_an_answer_that_is_empty_costs_a_turn_and_is_told(case, tmp_path):
    with oracle_server(case, plan=["empty"] * 2) as server:
        player = ChatPlayer(client(server, attempts=2))
        result, _ = maintain(Game(tmp_path / "run", case, "easy", player, 20), reference)
        assert any("could not be used" in texts(body) for body in server.bodies)
    first = json.loads((tmp_path / "run" / "turns.jsonl").read_text().splitlines()[0])
    assert first["reply"]["problem"] and result["total"] is not None


def test_a_conversation_that_the_server_refuses_costs_turns_and_no_more_than_its_round(case, tmp_path):
    def fault(body, number):
        return "404" if "Round 2" in texts(body) and len(body["messages"]) > 2 else None

    with oracle_server(case, fault=fault) as server:
        result, _ = maintain(Game(tmp_path / "run", case, "easy", ChatPlayer(client(server)), 5), reference)
    assert [round_["completion"] for round_ in result["rounds"]] == ["1.0000"] * 3, "its one batch was taken before"
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [row["batch"][0]["forced"] for row in rows if row["kind"] == "end_round"] == [False, True, False]
    with oracle_server(case, fault=lambda body, number: "404") as server, pytest.raises(UserError) as told:
        maintain(Game(tmp_path / "new", case, "easy", ChatPlayer(client(server)), 5), reference)
    assert told.value.code == 4, "a model that was never there is no player's fault"


def test_arguments_that_do_not_parse_stand_in_no_history(case, tmp_path):
    """Servers parse the arguments of earlier calls; the player is told what was wrong instead."""
    broken = [Reply(tool_calls=[("trigger", "{not json")])]
    with oracle_server(case) as server:
        answer = server.answer
        server.answer = lambda body: broken.pop() if broken else answer(body)
        maintain(Game(tmp_path / "run", case, "easy", ChatPlayer(client(server)), 5), reference)
        second = server.bodies[1]["messages"]
    assert second[2]["tool_calls"][0]["function"]["arguments"] == "{}" and "no JSON" in second[3]["content"]
    first = json.loads((tmp_path / "run" / "turns.jsonl").read_text().splitlines()[0])
    assert first["reply"]["calls"][0][2] == "{not json", "the record keeps what was said"


def test_an_endpoint_that_is_down_stops_the_run_and_the_same_command_goes_on(case, tmp_path):
    with oracle_server(case, fault=lambda body, number: "401" if number > 2 else None) as server:
        with pytest.raises(UserError, match="goes on") as told:
            maintain(Game(tmp_path / "run", case, "easy", ChatPlayer(client(server)), 20), reference)
        assert told.value.code == 4 and "\n" not in str(told.value)
        server.fault = lambda body, number: None
        asked = len(server.bodies)
        result, _ = maintain(Game(tmp_path / "run", case, "easy", ChatPlayer(client(server)), 20), reference)
        turns = len((tmp_path / "run" / "turns.jsonl").read_text().splitlines())
        assert len(server.bodies) - asked == turns - 2, "no answer was asked for twice"
    assert result["total"]["completion"] == "1.0000"


def test_a_spent_budget_stops_the_run_and_a_larger_one_continues_it(case, tmp_path):
    with oracle_server(case) as server:
        with pytest.raises(UserError, match="of --budget 1") as told:
            maintain(Game(tmp_path / "run", case, "easy", ChatPlayer(client(server)), 20, budget=1), reference)
        assert told.value.code == 3 and len(server.bodies) == 1
        maintain(Game(tmp_path / "run", case, "easy", ChatPlayer(client(server)), 20, budget=10**6), reference)
    assert replay_run(tmp_path / "run").over


def test_a_server_that_changes_its_model_is_noticed(case, tmp_path):
    game = Game(tmp_path / "run", case, "easy", policy("oracle", case, "easy"), 20)
    game.folder.open(list(case.files))
    game.folder.serve("model-1")
    game.folder.serve("model-1")
    with pytest.raises(UserError, match="now answers as 'model-2'"):
        game.folder.serve("model-2")


def judging_server(case, folder, **options):
    """A server whose model answers the worksheet as the reference judge would."""
    engine = replay_run(folder)
    judge = ReferenceJudge(case, engine.log)
    known = {question.condition: question for question in worksheet(case, engine.tier, engine.log)}

    def answer(body):
        found = [question for condition, question in known.items() if f": {condition}\n" in texts(body)]
        assert schema_name(body) and len(found) == 1
        return judge.verdict(found[0])

    return ChatServer(answer, served=["oracle"], **options)


def test_a_served_judge_sees_the_condition_and_accepted_triggers_alone(case, tmp_path):
    game = Game(tmp_path / "run", case, "easy", policy("sloppy", case, "easy"), 20)
    engine = game.play()
    questions = list(worksheet(case, "easy", engine.log))
    plan = ["fenced", "thinking", "500", "malformed", "missing"]
    with judging_server(case, tmp_path / "run", plan=plan) as server:
        assert judge_run(tmp_path / "run", ChatJudge(client(server)), questions) == 0
        assert len(server.bodies) == len(questions) + 3, "one call a question, but for what failed"
        for body in server.bodies:
            assert "Ann stands" not in texts(body) and "rejected" not in texts(body)
        assert judge_run(tmp_path / "run", ChatJudge(client(server)), questions) == 0
        assert len(server.bodies) == len(questions) + 3, "what is judged is not asked again"
    by_model = score_run(tmp_path / "run")
    assert by_model["total"] == play(case, tmp_path / "other", "sloppy")["total"]
    with pytest.raises(UserError, match="judges are never mixed"):
        judge_run(tmp_path / "run", ReferenceJudge(case, engine.log), questions)


def test_a_judge_that_fails_leaves_open_questions_and_is_asked_again(case, tmp_path):
    game = Game(tmp_path / "run", case, "easy", policy("oracle", case, "easy"), 20)
    questions = list(worksheet(case, "easy", game.play().log))
    with judging_server(case, tmp_path / "run", plan=["malformed"] * 2) as server:
        judge = ChatJudge(client(server, attempts=1, concurrency=1))
        assert judge_run(tmp_path / "run", judge, questions) == 2
        assert score_run(tmp_path / "run")["total"] is None
        assert judge_run(tmp_path / "run", judge, questions) == 0
    assert score_run(tmp_path / "run")["total"]["completion"] == "1.0000"


def test_text_from_the_player_is_data(case, tmp_path):
    """Calls are found in JSON objects alone; what looks like a tag or a command elsewhere does nothing."""
    assert calls_in("<tool_call>end_round</tool_call> end_round()") == ()
    assert [call.name for call in calls_in('{"tool": "end_round"} and {"calls": [{"tool": "query_log"}, 3]}')] == [
        "end_round", "query_log",
    ]  # fmt: skip
    assert calls_in('{"calls": {"tool": 1}} {"tool": 5} {broken') == ()


def test_tools_are_open_by_tier_and_their_schemas_are_whole():
    assert not {"define_type", "create_entity", "define_capability"} & set(open_tools("easy"))
    assert set(open_tools("hard")) - set(open_tools("easy")) == {"define_capability"}
    assert set(open_tools("extreme")) - set(open_tools("hard")) == {"define_type", "create_entity"}
    for schema in schemas("extreme"):
        made = schema["function"]
        assert made["description"] and made["parameters"]["type"] == "object", made["name"]


# -- the command


def test_a_run_that_is_killed_goes_on_where_it_stopped(tmp_path):
    """SIGKILL in the middle of a call; the continued run equals one that was never stopped."""
    case, line = load("mill"), ["--case", "mill", "--tier", "easy", "--out", tmp_path]
    with oracle_server(case) as server:
        stopped, answer = [], server.answer
        process: subprocess.Popen

        def kill_at_five(body):
            if not stopped and len(server.bodies) == 5:
                stopped.append(True)
                os.kill(process.pid, signal.SIGKILL)
            return answer(body)

        server.answer = kill_at_five
        asked = [sys.executable, "-m", "eval", "world-agent", "maintain", *map(str, line), "--url", server.url,
                 "--model", "oracle"]  # fmt: skip
        process = subprocess.Popen(asked, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert process.wait(120) == -signal.SIGKILL
        folder = tmp_path / "maintain" / "oracle" / "mill" / "easy"
        assert len((folder / "turns.jsonl").read_text().splitlines()) == 4
        again = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0 and "completion 1.0000, relations 1.0000" in again.stdout, again.stderr
    result = json.loads((folder / "score.json").read_text())
    whole = play(case, tmp_path / "whole", turns=40)
    assert [r["state_hash"] for r in result["rounds"]] == [r["state_hash"] for r in whole["rounds"]]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["maintain", "--case", "mil", "--player", "oracle"], "did you mean 'mill'"),
        (["maintain", "--case", "mill"], "give one of: --player; --url and --model"),
        (["maintain", "--case", "mill", "--url", "localhost:1"], "both the url and the model"),
        (["maintain", "--case", "mill", "--player", "oracle", "--turns", "0"], "at least 1"),
        (["maintain", "--case", "mill", "--player", "oracle", "--model", "m"], "give one of: --player"),
        (["maintain", "--case", "mill", "--model", "m", "--key-env", "K"], "both the url and the model"),
        (["maintain", "--case", "mill", "--model", "m", "--batch", "0"], "--batch 0: at least 1"),
        (["maintain", "--case", "mill", "--model", "m", "--temperature", "-1"], "from 0 to below 10"),
        (["maintain", "--case", "mill", "--player", "oracle", "--judge-model", "j"], "judge: give both"),
        (["deduce", "--case", "quai", "--player", "zero"], "did you mean 'quay'"),
        (["score", "nowhere"], "no run here"),
        (["validate", "--freeze"], "name the families"),
        (["validate", "--freeze", "mill"], "mill is no deduction family"),
        (["validate", "empty.yaml"], "empty.yaml"),
    ],
)
def test_the_command_tells_what_is_wrong_in_one_line(tmp_path, monkeypatch, capsys, arguments, word):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.yaml").touch()
    monkeypatch.setattr(sys, "argv", ["eval", "world-agent", *arguments])
    assert errors.run(main) == 2
    told = capsys.readouterr().err
    assert word in told and told.count("\n") == 1 and told.startswith("error: ")


def test_the_command_plays_scores_replays_and_reports(tmp_path, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["eval", "world-agent", *map(str, arguments)])
        code = errors.run(main)
        return code, capsys.readouterr().out

    runs = tmp_path / "runs"
    code, told = run("maintain", "--case", "bakery.zh", "--tier", "hard", "--player", "oracle", "--out", runs)
    assert code == 0 and "bakery.zh/hard: completion 1.0000, relations 1.0000" in told
    code, told = run("deduce", "--case", "quay", "--mode", "m1", "--condition", "naming", "--fold", "2", "--player",
                     "oracle", "--out", runs)  # fmt: skip
    assert code == 0 and "segment 1.0000, rules 1.0000" in told
    code, told = run("replay", runs, "--page", tmp_path / "page.html")
    assert code == 2, "a page shows one run"
    code, told = run("replay", runs / "maintain", "--page", tmp_path / "page.html")
    assert code == 0 and told.count("every hash is the same") == 1 and (tmp_path / "page.html").is_file()
    code, told = run("score", runs)
    assert code == 0 and told.count("1.0000") == 4
    code, told = run("report", runs, "--out", tmp_path / "report")
    assert code == 0 and (tmp_path / "report" / "report.html").is_file()
    next(runs.rglob("events.jsonl")).write_text("")
    code, told = run("score", runs)
    assert code == 3 and "finish it first" in told
    code, told = run("validate", "bakery")
    assert code == 0 and told == "bakery: sound\n"
