"""`python infer.py`: what is asked, what is written, exit codes, and one clear line for whatever is wrong."""

import errno
import json
from collections import Counter

import pytest
from agent_tools import FINAL, IMAGE_CALL, TEXT_CALL
from datasets_tools import context, grammar, tokenizer
from generation_tools import tiny
from PIL import Image
from test_search_index import small_index

import infer
from data.check import check
from unify_agent import errors
from unify_agent.agent import options, record
from unify_agent.agent.record import png_metadata
from unify_agent.datasets.folder import TrajectorySource
from unify_agent.datasets.trajectory import parse_trajectories
from unify_agent.errors import UserError
from unify_agent.generation import sampler
from unify_agent.generation.session import Session
from unify_agent.generation.text import Sampling
from unify_agent.interleave.packing import Limits
from unify_agent.interleave.transforms import Transform
from unify_agent.model.weights import Description, save_folder
from unify_agent.search.base import SearchError


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny model and an index."""
    folder = tmp_path_factory.mktemp("place")
    model, vae = tiny()
    (folder / "tokenizer").mkdir()
    tokenizer().save(str(folder / "tokenizer" / "tokenizer.json"))
    transforms = {"vae": Transform(32, 32, 16), "vit": Transform(28, 28, 14)}
    save_folder(folder / "model", model.state_dict(), model.config, vae, folder / "tokenizer",
                Description("paper", transforms, "compact"))  # fmt: skip
    small_index(folder)
    return folder


@pytest.fixture
def spoken(monkeypatch):
    """The model says what a good one would say."""
    decode = Session.decode

    def forced(session, rows, sampling, *, prefix=None, seeds=None):
        spoken_turns = [sum(entry.kind == "text" for entry in session.history[row]) // 2 for row in rows]
        ids = [grammar().encode((TEXT_CALL, IMAGE_CALL, FINAL)[turn]) for turn in spoken_turns]
        return decode(session, rows, Sampling(max_new=0), prefix=ids, seeds=seeds)

    monkeypatch.setattr(Session, "decode", forced)


@pytest.fixture
def spoken_at_once(monkeypatch):
    """The model recaptions in its first turn."""
    decode = Session.decode

    def forced(session, rows, sampling, *, prefix=None, seeds=None):
        return decode(session, rows, Sampling(max_new=0), prefix=[grammar().encode(FINAL)] * len(rows), seeds=seeds)

    monkeypatch.setattr(Session, "decode", forced)


def arguments(place, tmp_path, *more):
    return ["--model", str(place / "model"), "--search", f"index:{place / 'index'}", "--out", str(tmp_path / "out"),
            "--steps", "2", *more]  # fmt: skip


def test_prompts_become_pictures_trajectories_and_references(place, tmp_path, spoken, capsys):
    prompts = ("--prompt", "Draw Velmora.", "--prompt", "画薇尔莫拉。")
    code = infer.main(arguments(place, tmp_path, *prompts, "--seed", "5"))
    told = capsys.readouterr().err
    assert code == 0 and "2 ok" in told
    folder = tmp_path / "out" / "prompts"
    paths = sorted((folder / "traj").iterdir())
    assert len(paths) == 2
    for path in paths:
        (record,) = parse_trajectories(path.read_text(encoding="utf-8"), path)
        assert record.stop == "grounded" and record.language == ("zh" if "画" in record.image_prompt else "en")
        assert record.turns[0].ids_for(grammar().fingerprint) == grammar().encode(TEXT_CALL)
        assert (folder / record.generated_image).is_file() and (folder / record.references[0].file).is_file()
        assert record.options["seed"] == 5 and record.options["steps"] == 2 and record.options["weights"]
    lines = [json.loads(line) for line in (tmp_path / "out" / "summary.jsonl").read_text().splitlines()]
    assert {line["status"] for line in lines} == {"ok"}


def test_the_same_command_again_repeats_nothing_and_other_settings_do(place, tmp_path, spoken, capsys):
    command = arguments(place, tmp_path, "--prompt", "Draw Velmora.")
    assert infer.main(command) == 0
    picture = next((tmp_path / "out").rglob("*_0.png"))
    before = picture.stat().st_mtime_ns, picture.read_bytes()
    assert infer.main(command) == 0
    assert "1 of 1 were done before" in capsys.readouterr().err
    assert (picture.stat().st_mtime_ns, picture.read_bytes()) == before
    assert infer.main([*command, "--seed", "9"]) == 0
    assert picture.read_bytes() != before[1]


def test_settings_reach_the_picture_and_its_file(place, tmp_path, spoken):
    given = ["--shift", "2", "--text-scale", "3", "--image-scale", "1.5", "--interval", "0.2", "0.9"]
    written = ["--renorm", "global", "--renorm-min", "0.1", "--history"]
    written += ["--temperature", "0.5", "--top-k", "5", "--top-p", "0.8"]
    infer.main(arguments(place, tmp_path, "--prompt", "Draw Velmora.", *given, *written))
    found = png_metadata(next((tmp_path / "out").rglob("*_0.png")))
    asked = {
        "shift": 2.0, "text_scale": 3.0, "image_scale": 1.5, "interval": [0.2, 0.9], "renorm": "global",
        "renorm_min": 0.1, "drawn_from": "history", "temperature": 0.5, "top_k": 5, "top_p": 0.8,
    }  # fmt: skip
    assert {key: found[key] for key in asked} == asked


@pytest.mark.parametrize(("option", "value"), [("--top-p", "0"), ("--renorm-min", "2"), ("--temperature", "-1")])
def test_settings_out_of_range_are_one_line(place, tmp_path, option, value):
    with pytest.raises(UserError, match=option[2:].replace("-", "_")):
        infer.main(arguments(place, tmp_path, "--prompt", "Draw Velmora.", option, value))


def test_a_model_that_says_nothing_useful_leaves_partial_items_and_exit_code_3(place, tmp_path):
    assert infer.main(arguments(place, tmp_path, "--prompt", "Draw Velmora.")) == 3
    (line,) = (tmp_path / "out" / "summary.jsonl").read_text().splitlines()
    assert json.loads(line)["status"] == "partial"


def test_what_was_written_is_data_to_train_on(place, tmp_path, spoken):
    prompts = tmp_path / "asked.jsonl"
    lines = [{"id": "a/b 猫", "prompt": "Draw Velmora.", "category": "traj"}, {"id": 0, "prompt": "画薇尔莫拉。"}]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    assert infer.main(arguments(place, tmp_path, "--prompts", str(prompts))) == 0
    source = TrajectorySource(context(), tmp_path / "out")
    report = check(source, Limits().max_tokens_per_sample, 1)
    assert report.samples == 2 and not report.unusable
    assert {entry.split("/")[0] for entry in source.ids()} == {"traj_", "prompts"}
    given = {line["id"]: line.get("given_id") for line in summary(tmp_path)}
    assert given["0"] is None and sorted(map(str, given.values())) == ["None", "a/b 猫"]


def summary(tmp_path):
    return [json.loads(line) for line in (tmp_path / "out/summary.jsonl").read_text(encoding="utf-8").splitlines()]


def test_bad_requests_have_a_line_each_and_the_rest_is_drawn(place, tmp_path, spoken, capsys):
    prompts = tmp_path / "asked.jsonl"
    lines = ['{"prompt": "Draw Velmora.", "id": "a"}', '{"prompt": ""}', '{"prompt": "Draw it.", "id": "a"}', "{"]
    prompts.write_text("\n".join(lines))
    assert infer.main(arguments(place, tmp_path, "--prompts", str(prompts))) == 3
    told = capsys.readouterr().err
    assert "asked.jsonl:2: failed, bad_input (the prompt is empty" in told
    assert "asked.jsonl:3: failed, bad_input (the id 'a' occurs before" in told
    assert "1 ok, 3 failed" in told
    assert Counter(line["status"] for line in summary(tmp_path)) == {"ok": 1, "failed": 3}
    assert "asked.jsonl:4" in (tmp_path / "out/index.html").read_text(encoding="utf-8")


def test_a_full_disk_fails_its_item_and_the_batch_goes_on(place, tmp_path, spoken, monkeypatch):
    write = record.write_bytes

    def full(path, data):
        if "second" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, data)

    monkeypatch.setattr(record, "write_bytes", full)
    prompts = tmp_path / "asked.json"
    prompts.write_text(json.dumps({name: {"prompt": "Draw Velmora."} for name in ("first", "second", "third")}))
    command = arguments(place, tmp_path, "--prompts", str(prompts))
    assert infer.main(command) == 3
    found = {line["id"]: (line["status"], line["reason"]) for line in summary(tmp_path)}
    assert found == {"first": ("ok", "grounded"), "second": ("failed", "write_error"), "third": ("ok", "grounded")}
    monkeypatch.setattr(record, "write_bytes", write)
    before = (tmp_path / "out/prompts/images/first_0.png").stat().st_mtime_ns
    assert infer.main([*command, "--retry-failed"]) == 0
    assert {line["status"] for line in summary(tmp_path)} == {"ok"}
    assert (tmp_path / "out/prompts/images/first_0.png").stat().st_mtime_ns == before


def test_given_references_are_drawn_from_without_a_search(place, tmp_path, spoken_at_once, monkeypatch):
    Image.new("RGB", (60, 40), "red").save(tmp_path / "mine.png")
    monkeypatch.setattr("unify_agent.agent.crew.Index", None)
    command = ["--model", str(place / "model"), "--out", str(tmp_path / "out"), "--steps", "2", "--prompt", "Draw it.",
               "--references", str(tmp_path / "mine.png")]  # fmt: skip
    assert infer.main(command) == 0
    (path,) = (tmp_path / "out").rglob("*_trajectory.json")
    (made,) = parse_trajectories(path.read_text(encoding="utf-8"), path)
    assert made.stop == "grounded" and [each.source for each in made.references] == ["given: mine.png"]
    assert made.turns[0].input.endswith("Recaption with image_1.") and len(made.turns) == 1
    assert not TrajectorySource(context(), tmp_path / "out").unusable
    before = path.stat().st_mtime_ns
    assert infer.main(command) == 0 and path.stat().st_mtime_ns == before
    Image.new("RGB", (60, 40), "blue").save(tmp_path / "mine.png")
    assert infer.main(command) == 0 and path.stat().st_mtime_ns > before


@pytest.mark.parametrize(
    ("given", "size"), [((), (32, 32)), (("--aspect", "2:1"), (16, 48)), (("--size", "16x48"), (16, 48))]
)
def test_size_and_aspect_reach_the_picture(place, tmp_path, spoken, given, size):
    assert infer.main(arguments(place, tmp_path, "--prompt", "Draw Velmora.", *given)) == 0
    found = png_metadata(next((tmp_path / "out").rglob("*_0.png")))
    assert (found["height"], found["width"]) == size


def test_a_guidance_preset_is_a_bundle_that_single_options_change(place, tmp_path, spoken):
    given = ("--guidance", "bagel", "--image-scale", "1.25")
    assert infer.main(arguments(place, tmp_path, "--prompt", "Draw Velmora.", *given)) == 0
    found = png_metadata(next((tmp_path / "out").rglob("*_0.png")))
    assert (found["text_scale"], found["image_scale"]) == (4, 1.25)
    assert (found["interval"], found["renorm"]) == ([0.4, 1], "global")
    assert (found["policy"], found["judge"], found["search"]) == ("unified", "pixels", "index:index")


def test_the_command_knows_every_name_that_the_sampler_knows():
    assert options.GUIDANCE == tuple(sampler.GUIDANCE) and options.RENORMS == sampler.RENORMS


def test_without_search_the_model_is_told_so(place, tmp_path, spoken_at_once):
    command = ["--model", str(place / "model"), "--out", str(tmp_path / "out"), "--steps", "2", "--no-search"]
    assert infer.main([*command, "--prompt", "Draw Velmora."]) == 0
    (path,) = (tmp_path / "out").rglob("*_trajectory.json")
    assert json.loads(path.read_text())["turns"][0]["input"].startswith("<tools></tools>")


def test_shards_part_the_requests_and_have_a_summary_each(place, tmp_path, spoken):
    prompts = tmp_path / "asked.txt"
    prompts.write_text("Draw Velmora.\nDraw a kiwi.\nDraw an owl.\n")
    for part, count in (("1/2", 2), ("2/2", 1)):
        assert infer.main(arguments(place, tmp_path, "--prompts", str(prompts), "--shard", part)) == 0
        file = tmp_path / "out" / f"summary.{part.replace('/', '-of-')}.jsonl"
        assert len(file.read_text().splitlines()) == count
    assert infer.main(arguments(place, tmp_path, "--prompts", str(prompts))) == 0
    assert len(summary(tmp_path)) == 3


def test_a_dry_run_shows_the_plan_and_the_first_request_and_calls_nothing(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("unify_agent.agent.load.UnifiedPolicy", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    given = ("--prompt", "Draw Velmora.", "--prompt", "Draw it.", "--dry-run", "--gpus", "2")
    assert infer.main(arguments(place, tmp_path, *given)) == 0
    told = capsys.readouterr().out
    assert "2, of which 0 are done" in told and "workers   4, 7" in told and "picture   32x32" in told
    assert told.endswith("<tools>text_search, search_image</tools>\n\nDraw Velmora.\n")
    assert not (tmp_path / "out").exists()


def test_a_dry_run_of_an_endpoint_shows_its_messages_and_no_key(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret")
    given = ("--policy", "openai", "--endpoint", "localhost:9", "--endpoint-model", "planner")
    given += ("--endpoint-key", "MY_KEY")
    assert infer.main(arguments(place, tmp_path, "--prompt", "Draw Velmora.", "--dry-run", *given)) == 0
    told = capsys.readouterr().out
    assert '"model": "planner"' in told and "You prepare a picture" in told and "sk-secret" not in told


@pytest.mark.parametrize("search", ["wikipedia", "serper", "record:somewhere:wikipedia", "replay:somewhere"])
def test_a_dry_run_opens_no_connection_and_writes_nothing(place, tmp_path, capsys, monkeypatch, search):
    def refuse(*given, **more):
        raise AssertionError("a dry run calls nothing")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(f"socket.socket.{name}", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    given = ("--policy", "openai", "--endpoint", "http://planner.example/v1", "--endpoint-model", "planner")
    given += ("--judge", "openai", "--model", str(place / "model"), "--search", search)
    assert infer.main(["--prompt", "Draw Velmora.", "--dry-run", *given]) == 0
    assert "Draw Velmora." in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_a_dry_run_never_shows_a_password_in_an_address(place, tmp_path, capsys):
    given = ("--policy", "openai", "--endpoint", "http://me:sk-secret@localhost:9", "--endpoint-model", "planner")
    assert errors.run(lambda: infer.main(arguments(place, tmp_path, "--prompt", "x", "--dry-run", *given))) == 2
    told = capsys.readouterr()
    assert "must not hold a user name or password" in told.err and "sk-secret" not in told.out + told.err


def test_what_failed_just_before_a_kill_is_run_again_with_the_failed(place, tmp_path, spoken, monkeypatch):
    draw = Session.draw

    def fails(*given, **more):
        raise RuntimeError("out of memory")

    command = arguments(place, tmp_path, "--prompt", "Draw Velmora.")
    monkeypatch.setattr(Session, "draw", fails)
    assert infer.main(command) == 3
    (tmp_path / "out/summary.jsonl").unlink()  # as if it had not been written yet
    monkeypatch.setattr(Session, "draw", draw)
    assert infer.main([*command, "--prompt", "Draw it.", "--retry-failed"]) == 3
    assert [(line["status"], line["reason"]) for line in summary(tmp_path)] == [("ok", "grounded")]


def test_an_endpoint_that_is_down_is_exit_code_4_before_anything_is_loaded(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("unify_agent.agent.load.UnifiedPolicy", None)
    given = ("--policy", "openai", "--endpoint", "http://127.0.0.1:9", "--endpoint-model", "planner")
    assert errors.run(lambda: infer.main(arguments(place, tmp_path, "--prompt", "x", *given))) == 4
    assert "unreachable" in capsys.readouterr().err


def test_a_search_that_is_down_is_exit_code_4_and_the_rest_is_not_begun(place, tmp_path, spoken, monkeypatch):
    class Down:
        name = "down"

        def text_search(self, *_, **__):
            raise SearchError("service_down", "no route")

        search_image = text_search

    prompts = tmp_path / "asked.txt"
    prompts.write_text("".join(f"Draw thing {number}.\n" for number in range(12)))
    command = arguments(place, tmp_path, "--prompts", str(prompts), "--batch", "4")
    with monkeypatch.context() as patch:
        patch.setattr("unify_agent.agent.crew.open_search", lambda setup: Down())
        assert infer.main(command) == 4
    assert Counter(line["reason"] for line in summary(tmp_path)) == {"search_failed": 8, "not_run": 4}
    assert infer.main(command) == 0
    assert Counter(line["reason"] for line in summary(tmp_path)) == {"grounded": 12}


def refused(tmp_path, monkeypatch, capsys, *command):
    monkeypatch.chdir(tmp_path)
    assert errors.run(lambda: infer.main([*command])) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(told) == 1
    assert not (tmp_path / "outputs").exists()
    return told[0]


def test_without_a_demo_it_says_how_to_get_one(place, tmp_path, monkeypatch, capsys):
    assert "run `make demo` first" in refused(tmp_path, monkeypatch, capsys, "--prompt", "x")
    with_model = ("--prompt", "x", "--model", str(place / "model"))
    assert "no search index in outputs/demo/world/search" in refused(tmp_path, monkeypatch, capsys, *with_model)


def test_bad_places_and_settings_are_one_line(place, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    search = ("--prompt", "x", "--search", f"index:{place / 'index'}")
    for command, said in [
        (("--prompt", " "), "--prompt 1: the prompt is empty"),
        (("--prompt", "x", "--endpoint", "localhost:9"), "--endpoint is read with --policy openai or"),
        (("--prompt", "x", "--policy", "openai", "--judge-model", "m"), "--judge-model is read with --judge openai"),
        (("--demo", "--gpus", "2"), "--gpus is not for --demo"),
        (("--demo", "--dry-run"), "--dry-run is not for --demo"),
        ((*search, "--search-option", "cache=x", "--search-option", "cache=y"), "cache is given 2 times"),
        (("--prompts", "nowhere.json"), "no such file of prompts"),
        ((*search, "--model", "nowhere"), "no such folder"),
        ((*search, "--model", "empty"), "llm_config.json is missing"),
        ((*search, "--model", str(place / "model"), "--size", "30"), "multiples of 16"),
        ((*search, "--model", str(place / "model"), "--steps", "1"), "at least 2"),
        ((*search, "--model", str(place / "model"), "--words", "fulll"), "did you mean 'full'"),
        (("--prompt", "x", "--model", str(place / "model"), "--search", "index:nowhere"), "no search index here"),
        (("--prompt", "x", "--model", str(place / "model"), "--search", "google"), "search 'google' is not known"),
        ((*search, "--model", str(place / "model"), "--search-option", "cache=x"), "'cache': index takes no options"),
        ((*search, "--model", str(place / "model"), "--search-option", "x=1", "--dry-run"), "option 'x' is not known"),
        ((*search, "--model", str(place / "model"), "--no-search", "--search-option", "cache=x"), "nothing is searche"),
    ]:
        assert said in refused(tmp_path, monkeypatch, capsys, *command)
