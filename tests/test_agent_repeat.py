"""What a picture's file says is enough to have the same picture again: nothing else is read but model and index."""

import json
from dataclasses import fields

import numpy as np
import pytest
from test_infer_command import arguments, place, spoken  # noqa: F401 (fixtures)

import infer
from unify_agent import UnifyAgent
from unify_agent.agent.record import png_metadata
from unify_agent.generation.sampler import SamplerSettings

SAMPLING = ("temperature", "top_k", "top_p", "max_new")


def again(told, folder, given=()):
    """The drawing that the metadata of a picture describes."""
    assert told["policy"] == "unified"
    settings = {field.name: told[field.name] for field in fields(SamplerSettings)}
    agent = UnifyAgent.from_pretrained(
        folder / "model",
        search="" if told["search"] == "none" else f"index:{folder / told['search'].partition(':')[2]}",
        judge=told["judge"], words=told["prompts"], size=(told["height"], told["width"]), seed=told["seed"],
        sampler=settings | ({"preset": "references"} if settings["text_scale"] is None else {}),
        sampling={name: told[name] for name in SAMPLING}, redraw=told["redraw"],
        history=told["layout"] != "paper" and told["drawn_from"] == "history",
        dtype={"float32": "fp32", "bfloat16": "bf16"}[told["dtype"]],
    )  # fmt: skip
    return agent.draw(told["prompt"], references=given, id=told["id"], language=told["language"])


def written(tmp_path):
    (file,) = (tmp_path / "out").rglob("images/*.png")
    (record,) = (tmp_path / "out").rglob("*_trajectory.json")
    return png_metadata(file), file, json.loads(record.read_text(encoding="utf-8"))


def compare(drawing, told, file, record, tmp_path):
    drawing.save(tmp_path / "again.png")
    from PIL import Image

    assert np.asarray(Image.open(tmp_path / "again.png")).tobytes() == np.asarray(Image.open(file)).tobytes()
    assert [turn.reply for turn in drawing.episode.turns] == [turn["response_text"] for turn in record["turns"]]
    repeated = png_metadata(tmp_path / "again.png")
    assert {key for key in told if repeated.get(key) != told[key]} <= {"setup"}  # the same, said in other words


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--seed", "7", "--guidance", "agent", "--interval", "0.2", "0.9", "--size", "48x32", "--shift", "2"),
        ("--guidance", "references", "--image-scale", "1.5", "--renorm", "channel", "--renorm-min", "0.2"),
    ],
)
def test_a_picture_is_drawn_again_from_its_file_alone(place, tmp_path, spoken, more):  # noqa: F811
    assert infer.main(arguments(place, tmp_path, "--prompt", "Draw Velmora.", *more)) == 0
    told, file, record = written(tmp_path)
    compare(again(told, place), told, file, record, tmp_path)


@pytest.mark.parametrize("more", [(), ("--temperature", "0.8", "--top-p", "0.9", "--max-new", "24")])
def test_what_was_sampled_and_drawn_again_is_repeated_too(place, tmp_path, more):  # noqa: F811
    """A model that says nothing of use: its replies are drawn again by sampling that hangs on the id."""
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps({"an odd/id": {"image_prompt": "画薇尔莫拉。", "language": "en"}}), encoding="utf-8")
    assert infer.main(arguments(place, tmp_path, "--prompts", str(asked), *more)) == 3
    told, file, record = written(tmp_path)
    assert record["turns"][0].get("discarded") and told["given_id"] == "an odd/id"
    told.pop("given_id")
    compare(again(told, place), told, file, record, tmp_path)


def test_given_references_are_named_by_their_content(place, tmp_path):  # noqa: F811
    from PIL import Image

    mine = tmp_path / "mine.png"
    Image.new("RGB", (48, 40), (200, 90, 10)).save(mine)
    infer.main(arguments(place, tmp_path, "--prompt", "Draw it.", "--references", str(mine)))
    told, file, record = written(tmp_path)
    assert len(told["given"]) == 1
    compare(again(told, place, [mine]), told, file, record, tmp_path)
