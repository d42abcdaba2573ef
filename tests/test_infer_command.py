"""`python infer.py`: what is asked, what is written, exit codes, and one clear line for whatever is wrong."""

import json

import pytest
from agent_tools import FINAL, IMAGE_CALL, TEXT_CALL
from datasets_tools import grammar, tokenizer
from generation_tools import tiny
from test_search_index import small_index

import infer
from unify_agent import errors
from unify_agent.agent.record import png_metadata
from unify_agent.datasets.trajectory import parse_trajectories
from unify_agent.errors import UserError
from unify_agent.generation.session import Session
from unify_agent.generation.text import Sampling
from unify_agent.interleave.transforms import Transform
from unify_agent.model.weights import Description, save_folder


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


PROMPT_FILES = {
    "a.json": json.dumps({"x1": {"image_prompt": "Draw it.", "ip_name": "It", "language": "en", "category": "toy"}}),
    "b.json": json.dumps(["Draw it.", {"prompt": "Draw that.", "id": "that"}]),
    "c.jsonl": '"Draw it."\n\n{"prompt": "画它。"}\n',
    "d.txt": "Draw it.\n画它。\n",
}


@pytest.mark.parametrize("name", PROMPT_FILES)
def test_files_of_prompts_are_read_in_every_form(tmp_path, name):
    (tmp_path / name).write_text(PROMPT_FILES[name], encoding="utf-8")
    found = infer.read_prompts(tmp_path / name)
    assert found[0].prompt == "Draw it." and found[0].language == "en"
    assert len(found) == (1 if name == "a.json" else 2)
    if name == "a.json":
        assert (found[0].id, found[0].name, found[0].category) == ("x1", "It", "toy")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "{", "does not parse"),
        ("a.json", "[]", "holds no prompt"),
        ("a.json", "3", "a list or an object"),
        ("a.json", '[""]', "item 0: the prompt is empty"),
        ("a.json", '[{"prompt": 3}]', "item 0: the prompt is empty"),
        ("a.json", '[{"prompt": "x", "id": "a"}, {"prompt": "y", "id": "a"}]', "'a' occurs 2 times"),
        ("a.json", '[{"prompt": "x", "id": "../a"}]', "only letters"),
        ("a.json", '[{"prompt": "x", "language": "xx"}]', "choose en or zh"),
        ("a.jsonl", '{"prompt": "x"}\n{', "a.jsonl:2: not JSON"),
        ("a.txt", "x" * 5000, "a.txt:1: the prompt has 5000 characters"),
        ("a.txt", "", "holds no prompt"),
    ],
)
def test_a_faulty_file_of_prompts_is_refused_with_its_place(tmp_path, name, text, said):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="(?s).*" + said.replace(".", r"\.").replace("(", r"\(")):
        infer.read_prompts(tmp_path / name)


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
        (("--prompts", "nowhere.json"), "no such file of prompts"),
        ((*search, "--model", "nowhere"), "no such folder"),
        ((*search, "--model", "empty"), "llm_config.json is missing"),
        ((*search, "--model", str(place / "model"), "--size", "30"), "multiples of 16"),
        ((*search, "--model", str(place / "model"), "--steps", "1"), "at least 2"),
        ((*search, "--model", str(place / "model"), "--words", "fulll"), "did you mean 'full'"),
        (("--prompt", "x", "--model", str(place / "model"), "--search", "index:nowhere"), "no search index here"),
        (("--prompt", "x", "--model", str(place / "model"), "--search", "google"), "expected index:DIR"),
    ]:
        assert said in refused(tmp_path, monkeypatch, capsys, *command)
