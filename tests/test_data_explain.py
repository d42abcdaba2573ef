"""What `data explain` and `data stats` say is what training does with the sample."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datasets_tools import add_sample, context, grammar, picture, pixels, record, rules
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from PIL import Image
from rich.console import Console

from data.__main__ import main
from data.explain import runs, show
from data.figure import COLOURS, blocks_of, draw, pieces_of
from data.stats import TOKENS, look, plot, summarise
from unify_agent import errors
from unify_agent.datasets.kinds import trajectories
from unify_agent.interleave.batch import pack
from unify_agent.interleave.grammar import STRUCTURE_TAGS
from unify_agent.interleave.layout import PARTS, PRESETS, Exchange, lay_out
from unify_agent.interleave.packing import Limits
from unify_agent.interleave.segments import Document, Text
from unify_agent.interleave.visibility import dense_mask, document_spans

words = st.text(st.sampled_from("owl kite 夜里"), min_size=1, max_size=6)


@st.composite
def trained(draw_: st.DrawFn) -> Document:
    turns = [
        Exchange(draw_(words), grammar().encode(f"<think>{draw_(words)}</think><tool_call>{draw_(words)}</tool_call>"))
        for _ in range(draw_(st.integers(0, 2)))
    ]
    final = f"<think>{draw_(words)}</think><recaption>{draw_(words)}</recaption>{draw_(st.sampled_from(['', ' end']))}"
    shown = [picture(number) for number in range(draw_(st.integers(0, 2)))]
    preset = draw_(st.sampled_from(PRESETS))
    return lay_out(
        "birds/owl", [*turns, Exchange(draw_(words), grammar().encode(final))], shown, picture(9), grammar=grammar(),
        pixels=pixels(), preset=preset, part=draw_(st.sampled_from(PARTS[preset])), copies=draw_(st.integers(1, 2)),
        context=draw_(st.sampled_from(["recaption", "request"])),
    )  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(trained())
def test_the_weights_shown_are_those_of_a_pack(document: Document) -> None:
    tags = frozenset(grammar().tag_ids[tag] for tag in STRUCTURE_TAGS)
    batch = pack([document], replace(rules(), tag_ids=tags, tag_weight=3.0))
    shown = [run for s in document.segments if isinstance(s, Text) for run in runs(s, grammar(), 3.0)]
    weights = [run.weight for run in shown for _ in range(run.tokens)]
    np.testing.assert_allclose(weights, batch.ce_weights.numpy(), rtol=1e-6)
    assert "".join(run.text for run in shown) == grammar().decode(batch.ce_labels.tolist())


@settings(max_examples=25, deadline=None)
@given(trained())
def test_what_is_drawn_is_the_attention_mask(document: Document) -> None:
    spans = document_spans(document)
    drawn = np.zeros((document.slots, document.slots), int)
    for block in blocks_of(spans):
        cells = np.ones((block.rows[1] - block.rows[0], block.columns[1] - block.columns[0]), int)
        drawn[slice(*block.rows), slice(*block.columns)] += np.tril(cells) if block.causal else cells
    np.testing.assert_array_equal(drawn, dense_mask(spans))
    pieces = pieces_of(document)
    assert [piece.start for piece in pieces] + [document.slots] == [0] + [piece.stop for piece in pieces]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(3):
        name = f"owl{number}"
        add_sample(tmp_path / "root/birds", name, number, content=record(name, number, language="en"))
    return tmp_path / "root"


@pytest.mark.parametrize("preset", PRESETS)
def test_segments_losses_and_visibility_are_told(root: Path, preset: str) -> None:
    source = trajectories(context(preset), root)
    out = Console(width=220, file=io.StringIO())
    for index in source.by_sample()["birds/owl2"]:
        show(source.outline(index), grammar(), 3.0, out)
    text = out.file.getvalue()
    (drawing,) = [line for line in text.splitlines() if " drawing " in line]
    seen = {"paper": "3-6, recaption of 8", "released": "3-6, 9", "isolated": "1-5"}[preset]
    assert seen in drawing and "MSE 6" in drawing
    references = [line for line in text.splitlines() if "reference_2.vit" in line]
    own = {"paper": ["its block 3-6"], "released": ["itself"], "isolated": ["its block 3-6", "its block 1-4"]}[preset]
    assert all(block in line for block, line in zip(own, references, strict=True))
    assert " CE " in text and "(4 tags x 3)" in text and "</recaption>" in text


def test_the_figure_shows_every_kind_in_its_colour(root: Path) -> None:
    source = trajectories(context(), root)
    image = Image.open(io.BytesIO(draw([source.outline(2)])))
    colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    for kind, name in COLOURS.items():
        assert tuple(round(255 * part) for part in to_rgb(name)) in colours, kind


def test_the_statistics_add_up(root: Path, tmp_path: Path) -> None:
    source = trajectories(context(), root)
    samples = [look(source, index) for index in range(3)]
    stats = summarise(source, samples, Limits(350, 400, 300, packs_per_step=2))
    slots = [source.slots(index) for index in range(3)]
    assert sum(stats["tokens"].values()) == sum(slots) and set(stats["tokens"]) == set(TOKENS)
    assert stats["pictures"] == {"0": 1, "1": 1, "2": 1} and stats["languages"] == {"en": 3}
    assert stats["tags"]["<recaption>"] == stats["tags"]["</tool_call>"] == 3 and stats["turns"] == {"2": 3}
    assert stats["packing"]["steps"] * 2 >= stats["packing"]["packs"] >= sum(slots) / 400
    assert stats["length"]["p100"] == max(slots) and stats["categories"] == {"birds": 3}
    assert Image.open(io.BytesIO(plot(stats))).size[0] > 1000


def test_the_commands_write_their_files(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for words in (
        ["explain", root, "birds/owl2", "--layout", "released", "--png", tmp_path / "owl.png"],
        ["stats", root, "--out", tmp_path / "stats", "--workers", "1"],
        ["pack", root, tmp_path / "packed"],
        ["unpack", tmp_path / "packed", tmp_path / "again"],
    ):
        monkeypatch.setattr(sys, "argv", ["data", *map(str, words)])
        assert errors.run(main) == 0
    out = capsys.readouterr().out
    assert "layout released" in out and "3 records" in out and "files" in out
    assert Image.open(tmp_path / "owl.png").format == Image.open(tmp_path / "stats/stats.png").format == "PNG"
    assert json.loads((tmp_path / "stats/stats.json").read_text())["samples"] == 3
    assert (tmp_path / "again/birds/traj/owl1_trajectory.json").is_file()


def test_a_sample_that_cannot_be_used_is_explained_by_its_reason(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (root / "birds/images/owl1_0.png").unlink()
    monkeypatch.setattr(sys, "argv", ["data", "explain", str(root), "birds/owl1"])
    assert errors.run(main) == 2 and "birds/owl1: cannot be used: no target picture" in capsys.readouterr().err
