"""Scoring: outcomes and intervals, a judge that misbehaves, runs that are killed, the same report without a network."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import eval_tools as tools
import pytest
from chat_server import ChatServer, pictures, texts

from eval.run import Run, chosen
from unify_agent.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ("report.json", "report.md", "report.csv", "results.jsonl", "items.jsonl")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("unify_agent.judging.pace.Pace.back_off", lambda self, attempt: None)


def contents(folder, names=REPORTS):
    return {name: (folder / name).read_bytes() for name in names}


def total(folder, measure="score"):
    rows = Run.open(folder).report()["totals"]
    return next(row for row in rows if row["level"] == "total" and row["measure"] == measure)


def riddle(number):
    return f"riddle {number}\n"


@pytest.mark.parametrize(("bench", "build"), [
    ("factip", tools.factip), ("wise", tools.wise), ("wise-bagel2025", tools.wise), ("kitten", tools.kitten),
    ("t2i-factual", tools.factual), ("picworld", tools.picworld), ("knowgen", tools.knowgen),
    ("mindbench", tools.mindbench),
    ("wise-verified", lambda root: tools.wise(root, tools.VERIFIED_IDS)),
])  # fmt: skip
def test_every_benchmark_runs_to_a_report_that_can_be_computed_again(bench, build, tmp_path, capsys):
    data = build(tmp_path / "data")
    images = tools.draw(bench, data, tmp_path / "images")
    with ChatServer(tools.judge) as server:
        assert tools.score(server, bench, data, images, tmp_path / "run") == 0
    report = Run.open(tmp_path / "run").report()
    assert report["complete"] and report["coverage"]["ok"] == report["coverage"]["items"] > 0
    before, said = contents(tmp_path / "run"), capsys.readouterr().out
    for path in images.rglob("*.png"):
        path.unlink()
    assert tools.command("rescore", tmp_path / "run") == 0  # no server, no pictures
    assert contents(tmp_path / "run") == before and capsys.readouterr().out.splitlines()[-1] == said.splitlines()[-1]


def wise_run(tmp_path, skip=()):
    data = tools.wise(tmp_path / "data")
    return data, tools.draw("wise", data, tmp_path / "images", skip)


@pytest.mark.parametrize("fault", ["fenced", "wordy", "strings", "thinking", "noschema", "malformed", "truncated",
                                   "missing", "range", "429", "500", "empty", "html", "drop"])  # fmt: skip
def test_a_judge_that_misbehaves_once_costs_a_call_and_changes_no_score(fault, tmp_path):
    data, images = wise_run(tmp_path)
    with ChatServer(tools.judge) as server:
        tools.score(server, "wise", data, images, tmp_path / "calm")
    seen = set()

    def once(body, number):
        question = texts(body).split("An earlier reply")[0].strip()
        if fault == "noschema":
            return fault
        if question in seen:
            return None
        seen.add(question)
        return fault

    def answer(body):  # the same whether or not it is told what was wrong with its earlier reply
        body["messages"] = body["messages"][:2]
        return tools.judge(body)

    with ChatServer(answer, fault=once) as server:
        assert tools.score(server, "wise", data, images, tmp_path / "rough", "--concurrency", 1) == 0
    rough, calm = (Run.open(tmp_path / name).results() for name in ("rough", "calm"))
    assert [r.scores for r in rough] == [r.scores for r in calm]
    usage = json.loads((tmp_path / "rough/usage.json").read_text())
    read_at_once = fault in ("fenced", "wordy", "strings", "thinking")
    expected = 8 if read_at_once else 9 if fault == "noschema" else 16  # no schemas: learned from one refusal
    assert usage["attempts"] == server.calls == expected and sum(usage["failures"].values()) == expected - 8


@pytest.mark.parametrize("said", ["NaN", "Infinity", "1e999", "true", "null", '"much"', "[1]"])
def test_what_is_no_grade_is_no_score(said, tmp_path):
    data, images = wise_run(tmp_path)
    text = f'{{"reason": "r", "consistency": {said}, "realism": 1, "aesthetic_quality": 1}}'
    with ChatServer(lambda body: text) as server:
        assert tools.score(server, "wise", data, images, tmp_path / "run", "--attempts", 1) == 3
    assert {(r.status, r.kind) for r in Run.open(tmp_path / "run").results()} == {("unresolved", "malformed")}
    row = total(tmp_path / "run")
    assert (row["value"], row["low"], row["high"]) == (None, 0, 1)


def test_a_judge_that_is_silent_once_is_asked_again(tmp_path):
    data, images = wise_run(tmp_path)
    silent = iter(["timeout"])

    def fault(body, number):
        return next(silent, None) if riddle(530) in texts(body) else None

    with ChatServer(tools.judge, fault=fault) as server:
        assert tools.score(server, "wise", data, images, tmp_path / "run", "--timeout", 4) == 0
    usage = json.loads((tmp_path / "run/usage.json").read_text())
    assert server.calls == usage["attempts"] == 9 and usage["failures"] == {"timeout": 1}


@pytest.mark.parametrize(("more", "message"), [
    (["--rate", "nan"], "--rate nan"), (["--rate", "-1"], "--rate -1"), (["--timeout", "inf"], "--timeout inf"),
    (["--repeats", "0"], "at least 1"), (["--concurrency", "0"], "at least 1"),
])  # fmt: skip
def test_a_number_that_makes_no_sense_is_refused(more, message, tmp_path):
    data, images = wise_run(tmp_path)
    with ChatServer(tools.judge) as server, pytest.raises(UserError, match=message):
        tools.score(server, "wise", data, images, tmp_path / "run", *more)
    assert server.calls == 0


@pytest.mark.parametrize("price", ["nan", "-1", "much"])
def test_a_price_is_a_number_from_zero_on(price, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        tools.command("rescore", tmp_path, "--price", "1", price)
    assert caught.value.code == 2 and price in capsys.readouterr().err


def test_what_has_no_score_is_named_and_the_total_is_an_interval(tmp_path, capsys):
    data, images = wise_run(tmp_path, skip=("901",))

    def fault(body, number):
        return "malformed" if riddle(701) in texts(body) else None

    with ChatServer(lambda body: {"reason": "", "consistency": 2, "realism": 2, "aesthetic_quality": 2},
                    fault=fault) as server:  # fmt: skip
        code = tools.score(server, "wise", data, images, tmp_path / "run", "--partial", "--attempts", 2)
    assert code == 3
    report = Run.open(tmp_path / "run").report()
    assert report["coverage"] == {"ok": 6, "unresolved": 1, "missing": 1, "items": 8} and not report["complete"]
    assert report["reasons"] == {"missing: missing": 1, "unresolved: malformed": 1}
    row = total(tmp_path / "run")
    assert row["value"] is None and (row["low"], row["high"]) == pytest.approx((0.8, 1.0))
    assert "0.800 … 1.000" in capsys.readouterr().out
    by_id = {r.id: r for r in Run.open(tmp_path / "run").results()}
    assert by_id["701"].scores == {} and "JSON" in by_id["701"].detail and by_id["901"].status == "missing"
    before = contents(tmp_path / "run")
    assert tools.command("rescore", tmp_path / "run") == 3 and contents(tmp_path / "run") == before
    tools.picture(images / "901.png")
    with ChatServer(tools.judge) as server:  # the failure is asked again, the new picture for the first time
        assert tools.score(server, "wise", data, images, tmp_path / "run") == 0
    assert server.calls == 2 and total(tmp_path / "run")["value"] is not None


def test_a_judge_that_goes_away_ends_the_run_and_it_continues(tmp_path):
    data, images = wise_run(tmp_path)
    with ChatServer(tools.judge, fault=lambda body, number: "401" if number > 3 else None) as server:
        with pytest.raises(UserError, match="run the same command again") as caught:
            tools.score(server, "wise", data, images, tmp_path / "run", "--concurrency", 1)
    assert caught.value.code == 4
    with ChatServer(tools.judge) as server:
        assert tools.score(server, "wise", data, images, tmp_path / "run") == 0
    assert server.calls == 5


def test_another_run_is_not_continued_in_the_same_folder(tmp_path):
    data, images = wise_run(tmp_path)
    with ChatServer(tools.judge, served=["judge", "other"]) as server:
        tools.score(server, "wise", data, images, tmp_path / "run")
        for more, key in ((["--judge-model", "other"], "judge.model"), (["--repeats", 2], "repeats"),
                          (["--picture-longest", 64], "judge.pictures.longest"), (["--limit", 3], "data.chosen"),
                          (["--judge-extra", '{"top_p": 0.5}'], "judge.extra.top_p")):  # fmt: skip
            with pytest.raises(UserError, match=f"another {key}"):
                tools.score(server, "wise", data, images, tmp_path / "run", *more)
    assert server.calls == 8


def test_repeats_tell_the_judge_s_noise(tmp_path):
    data, images = wise_run(tmp_path)
    lock, count = threading.Lock(), {}

    def answer(body):
        with lock:
            number = count[texts(body)] = count.get(texts(body), 0) + 1
        wavers = riddle(1) in texts(body)
        return {"reason": "", "consistency": 2 - (wavers and number % 2), "realism": 2, "aesthetic_quality": 2}

    with ChatServer(answer) as server:
        assert tools.score(server, "wise", data, images, tmp_path / "run", "--repeats", 3) == 0
    assert server.calls == 24 and sorted({body["seed"] for body in server.bodies}) == [0, 1, 2]
    noise = Run.open(tmp_path / "run").report()["noise"]
    assert (noise["repeats"], noise["agreement"]) == (3, 7 / 8) and noise["total_sd"] > 0


def test_how_pictures_are_sent_is_chosen_and_recorded(tmp_path):
    data, _ = wise_run(tmp_path)
    images = tmp_path / "large"
    for number in tools.LEGACY_IDS:
        tools.picture(images / f"{number}.png", size=(90, 60))
    with ChatServer(tools.judge) as server:
        tools.score(server, "wise", data, images, tmp_path / "run", "--picture-longest", 45, "--picture-format", "jpeg")
    sent = pictures(server.bodies[0])[0]
    assert sent[:2] == b"\xff\xd8"
    report = Run.open(tmp_path / "run").report()
    assert report["judge"]["pictures"] == {"longest": 45, "format": "jpeg", "quality": 95}
    assert report["judge"]["served"] == "judge" and report["judge"]["answered_as"] == ["judge-2026"]


def test_a_judge_that_is_exchanged_within_a_run_is_told(tmp_path, capsys):
    data, images = wise_run(tmp_path)
    with ChatServer(tools.judge) as server:
        complete = server._completion
        server._completion = lambda body, reply: complete(body, reply) | {"model": f"m-{min(server.calls, 5) // 5}"}
        tools.score(server, "wise", data, images, tmp_path / "run", "--concurrency", 1)
    assert "Several judges answered, their scores are mixed: m-0, m-1." in capsys.readouterr().out


def test_a_part_is_spread_over_the_categories_and_called_a_part(tmp_path, capsys):
    data, images = wise_run(tmp_path)
    with ChatServer(tools.judge) as server:
        tools.score(server, "wise", data, images, tmp_path / "run", "--limit", 6)
    report = Run.open(tmp_path / "run").report()
    assert len(report["data"]["chosen"]) == 6 and "a part of 8" in capsys.readouterr().out
    assert len({row["name"] for row in report["totals"] if row["level"] == "category"}) == 6


def test_the_choice_of_a_part_keeps_the_shares():
    from eval.benchmarks.base import Item

    items = [Item(f"{c}{n}", "p", c) for c, size in (("a", 60), ("b", 30), ("c", 10)) for n in range(size)]
    some = chosen(items, 20, None)
    assert [sum(i.category == c for i in some) for c in "abc"] == [12, 6, 2]
    assert chosen(items, 20, None) == some and {i.id for i in chosen(items, 10, None)} < {i.id for i in some}


def test_cost_follows_from_tokens_and_prices(tmp_path, capsys):
    data, images = wise_run(tmp_path)
    with ChatServer(tools.judge) as server:
        tools.score(server, "wise", data, images, tmp_path / "run", "--price", 1000, 2000)
    usage = json.loads((tmp_path / "run/usage.json").read_text())
    assert usage["cost"] == pytest.approx((usage["prompt_tokens"] + 2 * usage["completion_tokens"]) / 1000, abs=1e-4)
    assert "cost" in capsys.readouterr().out


def test_a_key_is_in_no_file_and_no_output(tmp_path, capsys, monkeypatch):
    secret = "sk-never-to-be-seen"
    monkeypatch.setenv("JUDGE_KEY", secret)
    data, images = wise_run(tmp_path)
    with ChatServer(tools.judge, key=secret) as server:
        assert tools.score(server, "wise", data, images, tmp_path / "run", "--judge-key-env", "JUDGE_KEY") == 0
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    said = capsys.readouterr()
    assert secret.encode() not in written and secret not in said.out + said.err


RUNNER = """
import os, sys
import eval_tools as tools  # imported once; each run is a fork of this process, made before it has any thread
class Server: url = sys.argv[1]
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1), os.dup2(devnull, 2)
        os._exit(tools.score(Server, "wise", *sys.argv[2:5], *line.split()))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def wise_ids(count):
    """That many ids, spread over all six categories."""
    names = {400: "Cultural knowledge", 567: "time", 700: "Space", 800: "Biology", 900: "Physical Knowledge",
             1000: "Chemistry"}  # fmt: skip
    numbers = [1 + k * 999 // (count - 1) for k in range(count)]
    return {n: next(name for last, name in names.items() if n <= last) for n in numbers}


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_run_killed_ten_times_ends_with_the_same_report_as_an_undisturbed_one(count, tmp_path):
    data = tools.wise(tmp_path / "data", wise_ids(count))
    images = tools.draw("wise", data, tmp_path / "images")

    def fault(body, number):  # some questions never get an answer: they must be tried again each time, and stay open
        return "malformed" if riddle(501) in texts(body) or riddle(1) in texts(body) else None

    with ChatServer(tools.judge, fault=fault) as server:
        code = tools.score(server, "wise", data, images, tmp_path / "calm", "--attempts", 2, "--concurrency", 4)
        undisturbed = server.calls
    assert code == 3
    kill_at, victim = [], []

    def deadly(body):
        if kill_at and server.calls >= kill_at[0] and victim:
            kill_at.pop()
            os.kill(victim.pop(), signal.SIGKILL)
        return tools.judge(body)

    with ChatServer(deadly, fault=fault) as server:
        runner = subprocess.Popen(
            [sys.executable, "-c", RUNNER, server.url, str(data), str(images), str(tmp_path / "rough")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
        )  # fmt: skip
        codes = []
        for attempt in range(11):
            if attempt < 10:
                kill_at[:] = [server.calls + 1 + (attempt + 1) * count // 80]
            runner.stdin.write("--attempts 2 --concurrency 4\n")
            runner.stdin.flush()
            victim[:] = [int(runner.stdout.readline())]
            codes.append(int(runner.stdout.readline()))
        runner.stdin.close()
        runner.wait(30)
    assert codes == [-signal.SIGKILL] * 10 + [3]
    assert contents(tmp_path / "rough") == contents(tmp_path / "calm")
    records = [json.loads(line) for line in (tmp_path / "rough/calls.jsonl").read_text().splitlines()]
    answered = [record["key"] for record in records if "answer" in record]
    assert len(answered) == len(set(answered))  # no success is repeated
    assert server.calls <= undisturbed + 10 * (4 + 4)  # what was under way at a kill, and the open questions again


def test_a_judge_that_answers_nobody_is_given_up(tmp_path):
    data, images = wise_run(tmp_path)
    with ChatServer(tools.judge, fault=lambda body, number: "500") as server:
        with pytest.raises(UserError, match="3 items in a row got no answer") as caught:
            tools.score(server, "wise", data, images, tmp_path / "run", "--attempts", 1, "--concurrency", 2)
    assert caught.value.code == 4 and server.calls <= 5 * 2  # with the schema and without
    assert tools.command("rescore", tmp_path / "run") == 3  # what there is of the run can be looked at
    assert {r.kind for r in Run.open(tmp_path / "run").results()} == {"server", "not_asked"}


@pytest.mark.parametrize("answered", [0, 5])
def test_a_judge_that_dies_with_the_last_items_is_noticed_whatever_the_concurrency(answered, tmp_path):
    data, images = wise_run(tmp_path)
    with ChatServer(tools.judge, fault=lambda body, number: "drop" if number > answered else None) as server:
        with pytest.raises(UserError, match=f"{8 - answered} items got no answer, nor does a") as caught:
            tools.score(server, "wise", data, images, tmp_path / "run", "--attempts", 1, "--concurrency", 20)
    assert caught.value.code == 4
    with ChatServer(tools.judge) as server:
        assert tools.score(server, "wise", data, images, tmp_path / "run") == 0
    assert server.calls == 8 - answered


def test_a_judge_that_fails_at_the_last_item_but_lives_leaves_it_unresolved(tmp_path):
    data, images = wise_run(tmp_path)
    with ChatServer(tools.judge, fault=lambda body, number: "drop" if riddle(530) in texts(body) else None) as server:
        code = tools.score(server, "wise", data, images, tmp_path / "run", "--attempts", 1, "--concurrency", 1)
    unresolved = [r.id for r in Run.open(tmp_path / "run").results() if r.status == "unresolved"]
    assert code == 3 and unresolved == ["530"] and server.calls == 9


def test_the_probe_of_a_run_is_in_its_log_and_its_cost(tmp_path):
    data, images = wise_run(tmp_path)
    with ChatServer(tools.judge) as server:
        server.lists_models = False
        assert tools.score(server, "wise", data, images, tmp_path / "run") == 0
    usage = json.loads((tmp_path / "run/usage.json").read_text())
    assert usage["attempts"] == server.calls == 9
    before = contents(tmp_path / "run", (*REPORTS, "usage.json"))
    assert tools.command("rescore", tmp_path / "run") == 0
    assert contents(tmp_path / "run", (*REPORTS, "usage.json")) == before


def test_another_run_in_the_folder_is_refused_before_the_judge_is_asked(tmp_path):
    data, images = wise_run(tmp_path)
    with ChatServer(tools.judge) as server:
        tools.score(server, "wise", data, images, tmp_path / "run")
    with pytest.raises(UserError, match="another repeats"):  # nobody serves there any more
        tools.score(server, "wise", data, images, tmp_path / "run", "--repeats", 2)


def test_prompts_that_were_changed_after_they_were_judged_are_refused(tmp_path):
    data, images = wise_run(tmp_path)
    with ChatServer(tools.judge) as server:
        tools.score(server, "wise", data, images, tmp_path / "run")
    path = tmp_path / "run/items.jsonl"
    path.write_text(path.read_text().replace("riddle 530", "riddle 531"))
    for command in ("rescore", "report"):
        with pytest.raises(UserError, match="holds other prompts"):
            tools.command(command, tmp_path / "run")


def test_a_table_of_hashes_decides_which_edition_the_data_are(tmp_path, capsys):
    data, images = wise_run(tmp_path)
    tools.command("check", "--bench", "wise", "--data", data)
    sha256 = capsys.readouterr().out.split("sha256 ")[1].split()[0]
    table = tmp_path / "editions.json"
    table.write_text(json.dumps({"other": ["0" * 64], "our-wise": sha256}))
    with ChatServer(tools.judge) as server:
        tools.score(server, "wise", data, images, tmp_path / "run", "--editions", table)
    assert Run.open(tmp_path / "run").report()["data"]["variant"] == "our-wise"
    part = data / "natural_science.json"
    part.write_text(part.read_text().replace("riddle 701", "riddle 7O1"))
    with pytest.raises(UserError, match=r"no edition of .*knows other, our-wise"):
        tools.command("check", "--bench", "wise", "--data", data, "--editions", table)


@pytest.mark.parametrize(("content", "message"), [
    ([], "an object of hashes"), ({"a": "abc"}, "a: a SHA-256"), ({"a": 5}, "a: a SHA-256"),
    ({"a": "0" * 64, "b": ["0" * 64]}, "both a and b"),
])  # fmt: skip
def test_a_table_of_hashes_that_is_none_is_refused(content, message, tmp_path):
    (tmp_path / "editions.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        tools.command("check", "--bench", "wise", "--data", tools.wise(tmp_path / "data"), "--editions",
                      tmp_path / "editions.json")  # fmt: skip


def test_missing_pictures_do_not_hide_that_the_judge_is_gone(tmp_path):
    data, images = wise_run(tmp_path, skip=("401", "530", "701"))
    with ChatServer(tools.judge, fault=lambda body, number: "500") as server:
        with pytest.raises(UserError, match="2 items in a row got no answer"):
            tools.score(server, "wise", data, images, tmp_path / "run", "--partial", "--attempts", 1,
                        "--concurrency", 1)  # fmt: skip


def test_a_torn_line_stops_no_rescoring_and_names_stay_in_their_cell(tmp_path):
    data, images = wise_run(tmp_path)
    with ChatServer(tools.judge) as server:
        tools.score(server, "wise", data, images, tmp_path / "run", "--name", "a|b <b>")
    before = contents(tmp_path / "run")
    with open(tmp_path / "run/calls.jsonl", "ab") as file:
        file.write(b'{"key": "torn')
    assert tools.command("rescore", tmp_path / "run") == 0 and contents(tmp_path / "run") == before
    tools.command("report", tmp_path / "run")
    rows = (tmp_path / "run/page/table.md").read_text().splitlines()
    assert rows[2].startswith("| a\\|b &lt;b> |")


def test_a_picture_that_changes_under_the_judge_ends_the_run(tmp_path):
    data, images = wise_run(tmp_path)

    def answer(body):
        tools.picture(images / "1.png", "another")
        return tools.judge(body)

    with ChatServer(answer) as server, pytest.raises(UserError, match=r"1: picture changed.*1\.png"):
        tools.score(server, "wise", data, images, tmp_path / "run", "--concurrency", 1)


def test_other_true_pictures_make_other_scores(tmp_path):
    data = tools.factip(tmp_path / "data")
    images = tools.draw("factip", data, tmp_path / "im")
    with ChatServer(tools.judge) as server:
        tools.score(server, "factip", data, images, tmp_path / "a", "--name", "a")
        tools.picture(data / "gt/Food/i2/seed1.png", "a better photograph")
        tools.score(server, "factip", data, images, tmp_path / "b", "--name", "b")
    with pytest.raises(UserError, match="references_sha256 differs"):
        tools.command("compare", tmp_path / "a", tmp_path / "b")
