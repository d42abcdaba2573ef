"""Whatever is wrong with pictures, data or judge is found before any call, by id."""

import json

import eval_tools as tools
import pytest
from chat_server import ChatServer
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from eval.benchmarks import benchmark
from eval.pictures import STAMP, lines, stamp_of, survey
from unify_agent.errors import UserError

SECRET = "sk-never-to-be-seen"


def broken_folder(tmp_path):
    """Eight items: one picture is good, the rest are wrong in as many ways, and one belongs to nothing."""
    data = tools.wise(tmp_path / "data")
    images = tools.draw("wise", data, tmp_path / "images", skip=("2", "901"))
    (images / "401.png").write_bytes(b"")
    whole = (images / "530.png").read_bytes()
    (images / "530.png").write_bytes(whole[: len(whole) // 2])
    tools.picture(images / "568.jpg")
    (images / "701.png").write_bytes((images / "1.png").read_bytes())
    note = PngInfo()
    note.add_itxt("prompt", "a prompt of another edition")
    Image.open(images / "801.png").save(images / "801.png", pnginfo=note)
    tools.picture(images / "0002.png")
    return data, images


def test_every_way_a_picture_can_be_wrong_is_found_and_named(tmp_path):
    data, images = broken_folder(tmp_path)
    bench = benchmark("wise")
    found = survey(bench, bench.load(data), images)
    assert {item_id: kind for kind, item_id, _ in found.problems} == {
        "2": "missing", "901": "missing", "401": "empty", "530": "corrupt", "568": "duplicate", "801": "other_prompt",
    }  # fmt: skip
    assert [(path.name, meant) for path, meant in found.strangers] == [("0002.png", "2")]
    assert found.twins == (("701", "1"),) or found.twins == (("1", "701"),)
    told = "\n".join(lines(found))
    assert "missing: 2" in told and "2?: " in told and "same picture: " in told


def test_a_workflow_in_a_picture_says_nothing_and_a_folder_is_no_picture(tmp_path):
    data = tools.wise(tmp_path / "data")
    content = json.loads(next(data.glob("*.json")).read_text())
    images = tools.draw("wise", data, tmp_path / "images")
    (images / "9.png").mkdir()
    for number, text in ((content[0]["prompt_id"], '{"3": {"class_type": "KSampler"}}'),
                         (content[1]["prompt_id"], json.dumps(content[1]["Prompt"]))):  # fmt: skip
        note = PngInfo()
        note.add_itxt("prompt", text)
        Image.open(images / f"{number}.png").save(images / f"{number}.png", pnginfo=note)
    bench = benchmark("wise")
    found = survey(bench, bench.load(data), images)
    assert not found.problems and not found.strangers


def test_check_lists_it_and_asks_nobody(tmp_path, capsys):
    data, images = broken_folder(tmp_path)
    assert tools.command("check", "--bench", "wise", "--data", data, "--images", images) == 3
    said = capsys.readouterr().out
    assert "2 of 8 items have a picture" in said and "zero bytes" in said
    with ChatServer(tools.judge) as server:
        with pytest.raises(UserError, match="6 items cannot be scored; nothing was asked"):
            tools.score(server, "wise", data, images, tmp_path / "run")
    assert server.calls == 0 and not (tmp_path / "run").exists()


def test_check_tells_of_pictures_even_when_there_is_no_judge_to_ask(tmp_path, capsys):
    data, images = broken_folder(tmp_path)
    for judge, code in ((["--judge-url", "127.0.0.1:9"], 4), (["--judge-url", "h.example", "--judge-key-env", "N"], 2)):
        with pytest.raises(UserError) as caught:
            tools.command("check", "--bench", "wise", "--data", data, "--images", images, *judge, "--judge-model", "j")
        assert caught.value.code == code and "zero bytes" in capsys.readouterr().out


def test_a_whole_folder_passes(tmp_path, capsys):
    data = tools.factip(tmp_path / "data")
    images = tools.draw("factip", data, tmp_path / "images")
    with ChatServer(tools.judge) as server:
        code = tools.command("check", "--bench", "factip", "--data", data, "--images", images,
                             "--judge-url", server.url, "--judge-model", "judge")  # fmt: skip
    assert code == 0 and "serves judge" in capsys.readouterr().out


@pytest.mark.parametrize(("layout", "record"), [
    ("{c}/{i}", "{c}/{i}_traj.json"), ("{c}/{i}/{i}_generated", "{c}/{i}/{i}_trajectory.json"),
    ("{c}/images/{i}_0", "{c}/traj/{i}_trajectory.json"),
])  # fmt: skip
def test_the_official_layouts_and_that_of_our_agent_are_found_unrenamed(layout, record, tmp_path):
    bench = benchmark("factip")
    dataset = bench.load(tools.factip(tmp_path / "data"))
    for item in dataset.items:
        names = {"c": item.place.split("/")[0], "i": item.place.split("/")[1]}
        tools.picture(tmp_path / "im" / (layout.format(**names) + ".png"))
        path = tmp_path / "im" / record.format(**names)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"image_prompt": item.prompt}))
        tools.picture(tmp_path / "im" / names["c"] / "intermediate" / names["i"] / "image_1.png")  # found, never judged
    found = survey(bench, dataset, tmp_path / "im")
    assert not found.problems and not found.strangers and all(each.trajectory for each in found.found)
    path.write_text(json.dumps({"image_prompt": "another"}))
    assert [kind for kind, *_ in survey(bench, dataset, tmp_path / "im").problems] == ["other_prompt"]


def test_true_pictures_never_come_from_what_an_agent_found(tmp_path):
    data = tools.factip(tmp_path / "data")
    (data / "gt/Food/i2/seed1.png").unlink()
    images = tools.draw("factip", data, tmp_path / "im")
    tools.picture(images / "Food/intermediate/i2/image_1.png")
    bench = benchmark("factip")
    problems = survey(bench, bench.load(data), images).problems
    assert [(kind, item_id) for kind, item_id, _ in problems] == [("reference", "Food/i2")]


def test_pictures_made_for_other_data_are_refused(tmp_path):
    bench = benchmark("wise")
    data = tools.wise(tmp_path / "data")
    images = tools.draw("wise", data, tmp_path / "im")
    stamp = stamp_of(bench, bench.load(data))
    (images / STAMP).write_text(json.dumps(stamp))
    assert not survey(bench, bench.load(data), images).problems
    (images / STAMP).write_text(json.dumps(stamp | {"sha256": "0" * 64, "variant": "wise-verified"}))
    with pytest.raises(UserError, match="made for other data"):
        survey(bench, bench.load(data), images)


@pytest.mark.parametrize(("more", "message", "code"), [
    (["--data", "nowhere"], "no such file", 2),
    (["--judge-model", "other"], "refused", 4),
    (["--judge-url", "127.0.0.1:9"], "unreachable", 4),
    (["--judge-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY", 2),
    (["--judge-key-env", "A_WRONG_KEY"], "auth", 4),
    (["--timeout", "21"], "auth", 4),  # no key where one is needed
    (["--timeout", "0"], "more than 0", 2),
    (["--timeout", "nan"], "more than 0", 2),
    (["--judge-extra", '{"top_p": NaN}'], "NaN is no number", 2),
    (["--judge-extra", "[1]"], "an object is expected", 2),
    (["--ids", "1,77"], "has no 77", 2),
])  # fmt: skip
def test_what_cannot_start_says_why_with_its_exit_code(more, message, code, tmp_path, monkeypatch):
    monkeypatch.setenv("A_WRONG_KEY", SECRET)
    data = tools.wise(tmp_path / "data")
    with ChatServer(tools.judge, key="right" if {"A_WRONG_KEY", "21"} & set(more) else None) as server:
        arguments = ["--bench", "wise", "--data", data, "--judge-url", server.url, "--judge-model", "judge", *more]
        with pytest.raises(UserError, match=message) as caught:
            tools.command("check", *arguments)
    assert caught.value.code == code and SECRET not in str(caught.value)
