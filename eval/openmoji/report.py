"""The demo's report: one page that a newcomer understands without reading code."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from data.openmoji.words import caption
from eval import charts
from eval.metrics import Figure, PictureScore
from eval.openmoji.store import Item, Step
from eval.openmoji.tasks import Task
from unify_agent.agent.story import candidate, turn_card
from unify_agent.interleave.segments import Unusable
from unify_agent.interleave.transforms import open_picture
from unify_agent.page import badge, data_uri, escape, figure, page, table

MEANINGS: dict[str, tuple[str, str]] = {
    "identity_top1": (
        "The right thing was drawn",
        "Of the exact pictures of all tested things in the same scene, the right one is nearest to what was drawn.",
    ),
    "scene_correct": ("The scene is right", "Background colour and place (within 4 of 64 pixels) are as asked for."),
    "tool_calls_valid": (
        "Tool calls are valid",
        "Each search is written in the agreed form, without any mending, and names the tool that is due.",
    ),
    "query_exact": (
        "Search words are exact",
        "The alias is copied into the text search, the real name into the picture search.",
    ),
    "references_right": ("The references show the thing", "The pictures that the agent chose are pictures of it."),
    "recaption_complete": (
        "The recaption is complete",
        "It names the references there are and every part of the scene.",
    ),
    "recaption_true": ("The recaption is true", "Besides, name and scene are the ones that were asked for."),
}
"""Figures of the results table, in order: title, explanation."""


@dataclass(frozen=True)
class Drawn:
    """What one variant made of a task."""

    item: Item
    picture: np.ndarray | None
    score: PictureScore


@dataclass(frozen=True)
class Shown:
    """One task with search, without search, and the true picture. `meaning` is the thing's English name."""

    task: Task
    meaning: str
    full: Drawn
    closed: Drawn
    truth: np.ndarray


@dataclass(frozen=True)
class Report:
    """All that the page shows.

    full, closed: figures of the agent with and without search. controls: further identity figures, label -> figure.
    curves: rows of the training log, each with `step`. facts: what was run, label -> text. candidates: how many
    things identity is chosen from.
    """

    shown: Sequence[Shown]
    full: Mapping[str, Figure]
    closed: Mapping[str, Figure]
    world: Path
    controls: Mapping[str, Figure] = field(default_factory=dict)
    curves: Sequence[Mapping[str, Any]] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    candidates: int = 100
    examples: int = 8


def render(report: Report) -> str:
    """The page as HTML."""
    introduction = (
        "<p>A small model was asked to draw things that it has never seen, under names that it has never read. "
        "It finds out what a name means, looks for pictures, judges them, writes down what the picture has to show, "
        "and draws. Everything on this page happened on this computer: the training, the searches, the pictures.</p>"
    )
    sections = [
        _tiles(report),
        _how(),
        _examples(report),
        _results(report),
        _gallery(report),
        _training(report),
        _run(report),
    ]
    return page("Drawing the unknown: search first, then draw", introduction, "".join(sections))


def _share(value: Figure | None) -> str:
    return "–" if value is None or value.value is None else f"{100 * value.value:.0f} %"


def _tiles(report: Report) -> str:
    n = report.full["identity_top1"].n
    guess = f"recognised among {report.candidates} things; a guess gives {100 / report.candidates:.0f} %"
    tiles = [
        ("main", report.full["identity_top1"], "the right thing, with search", guess),
        (
            "",
            report.closed["identity_top1"],
            "the right thing, without search",
            "the same model, from its memory alone",
        ),
        ("", report.full["scene_correct"], "the right scene", "background and place as asked for"),
        ("", report.full["query_exact"], "exact search words", "names copied letter by letter"),
    ]
    cells = [
        f'<div class="card tile {kind}"><b>{_share(value)}</b><span class="name">{escape(name)}</span>'
        f"<span>{escape(note)}</span></div>"
        for kind, value, name, note in tiles
    ]
    return (
        f'<div class="tiles">{"".join(cells)}</div><p class="lead under">Measured on {n} requests about things that '
        "were kept out of everything the model was trained on.</p>"
    )


def _how() -> str:
    steps = [
        ("Think", "The model reads the request and notices a name that it does not know."),
        (
            "Research",
            "It searches texts to learn what the name means, then pictures of that thing. A judge that sees only "
            "pixels and titles sorts out the bad ones.",
        ),
        ("Recaption", "It rewrites the request: what to keep of the reference pictures, and how the scene must look."),
        ("Generate", "From the references and the recaption, and nothing else, it draws a new picture."),
    ]
    items = "".join(f'<li class="card"><h3>{escape(name)}</h3><p>{escape(text)}</p></li>' for name, text in steps)
    return (
        '<h2>What happens</h2><p class="lead">One model does all four steps in one go; its own words decide what is '
        f'searched.</p><ol class="steps">{items}</ol>'
    )


# ---------------------------------------------------------------- examples


def spread(shown: Sequence[Shown], count: int) -> list[Shown]:
    """Examples with the same share of right ones as all, in order: what is shown is not better than what is true."""
    right = [each for each in shown if each.full.score.identity]
    wrong = [each for each in shown if not each.full.score.identity]
    count = min(count, len(shown))
    good = min(len(right), round(count * len(right) / max(1, len(shown))))
    kept = right[:good] + wrong[: count - good]
    return [each for each in shown if any(each is other for other in kept)]


def _examples(report: Report) -> str:
    chosen = spread(report.shown, report.examples)
    cards = "".join(_example(each, report.world) for each in chosen)
    return (
        "<h2>Examples, step by step</h2>"
        f'<p class="lead">{len(chosen)} of {len(report.shown)} requests, right and wrong in the same proportion as '
        "over all. Read the left side from top to bottom; the numbers under the found pictures are the judge’s marks "
        f"out of 10. The right side compares the result with the truth, which the model never saw.</p>{cards}"
    )


@lru_cache(maxsize=512)
def _candidate_uri(path: Path) -> str | None:
    try:
        return data_uri(open_picture(path), largest=168)
    except Unusable:
        return None


def _turn(step: Step, world: Path) -> str:
    items = [
        candidate(_candidate_uri(world / each.file), each.title, each.reason, each.score,
                  chosen=each.chosen, usable=each.usable)
        for each in step.candidates
    ]  # fmt: skip
    return turn_card(step.reply, step.calls, step.observation or "", items, discarded=step.discarded)


def _example(shown: Shown, world: Path) -> str:
    task, item = shown.task, shown.full.item
    gloss = ""
    if task.language == "zh":
        gloss = f" · asked in Chinese; in English: {caption(task.scene, shown.meaning, 'en')}"
    turns = [_turn(step, world) for step in item.steps]
    if item.recaption and turns:
        text = f'<p class="recaption">{escape(item.recaption)}</p>'
        turns[-1] = turns[-1].removesuffix("</div>") + text + "</div>"
    verdict = (
        badge(shown.full.score.identity, "the right thing", "not recognised")
        + " "
        + badge(shown.full.score.scene, "right scene", "wrong scene")
    )
    references = [each for step in item.steps for each in step.candidates if each.chosen]
    pictures = [_candidate_uri(world / each.file) for each in references[:2]]
    cells = "".join(
        f'<figure><img src="{uri}" alt=""><figcaption><b>reference {number}</b>found by the agent</figcaption></figure>'
        for number, uri in enumerate(pictures, 1)
        if uri
    )
    outcome = (
        '<div class="pair">'
        + figure(shown.full.picture, "drawn with search", verdict)
        + figure(shown.truth, "the truth", "composed exactly", alt=shown.meaning)
        + "</div>"
        + '<div class="pair">'
        + figure(shown.closed.picture, "without search", "the same model, from memory")
        + (cells.split("</figure>")[0] + "</figure>" if cells else "<figure></figure>")
        + "</div>"
    )
    return (
        '<article class="card example"><div class="ask">'
        f"<q>{escape(task.request)}</q>"
        f'<span class="who">“{escape(task.asked)}” means: <b>{escape(shown.meaning)}</b>{escape(gloss)}</span></div>'
        f'<div class="body"><div class="talk">{"".join(turns)}</div>'
        f'<div class="outcome">{outcome}</div></div></article>'
    )


# ---------------------------------------------------------------- results


def _results(report: Report) -> str:
    rows = []
    for name, (title, explanation) in MEANINGS.items():
        if name not in report.full:
            continue
        cells = [f'<b>{escape(title)}</b><span class="explain">{escape(explanation)}</span>', escape(report.full[name])]
        closed = report.closed.get(name) if name in ("identity_top1", "scene_correct") else None
        rows.append([*cells, "" if closed is None else escape(closed), str(report.full[name].n)])
    bars = [
        charts.Bar("with search", *_interval(report.full["identity_top1"]), kind="main"),
        charts.Bar("without search", *_interval(report.closed["identity_top1"])),
    ]
    bars += [
        charts.Bar(label, *_interval(value), kind="bound" if "best" in label else "control")
        for label, value in report.controls.items()
    ]
    return (
        "<h2>Results</h2>"
        '<p class="lead">Shares from 0 to 1. In brackets the 95 % interval: with so few requests a share is only '
        "known that well.</p>"
        f'<div class="card">{table(["", "with search", "without", "n"], rows, 3)}</div>'
        "<h2>Was the right thing drawn?</h2>"
        '<p class="lead">The same measure for the agent, for the same model without search, and for comparisons that '
        "say what a figure is worth.</p>"
        f'<div class="card">{charts.bars(bars)}</div>'
    )


def _interval(value: Figure) -> tuple[float | None, float | None, float | None]:
    return value.value, value.low, value.high


def _gallery(report: Report) -> str:
    cards = []
    for each in report.shown:
        trio = "".join(
            figure(picture, title)
            for picture, title in (
                (each.truth, "truth"),
                (each.full.picture, "search"),
                (each.closed.picture, "memory"),
            )
        )
        mark = badge(each.full.score.identity, "✓", "✗")
        cards.append(f'<div class="card"><p>{mark} {escape(each.meaning)}</p><div class="trio">{trio}</div></div>')
    return (
        f"<h2>All {len(report.shown)} requests</h2>"
        '<p class="lead">The truth, what was drawn with search, and what was drawn from memory. '
        "✓: the right thing was recognised in the picture drawn with search.</p>"
        f'<div class="gallery">{"".join(cards)}</div>'
    )


def _training(report: Report) -> str:
    rows = report.curves
    if not rows:
        return ""

    def points(key: str) -> list[tuple[float, float]]:
        return [(row["step"], row[key]) for row in rows if key in row]

    roles = sorted({key for row in rows for key in row if key.startswith("ce_role/")})
    writing = {"all": points("ce_mean")} | {key.partition("/")[2]: points(key) for key in roles}
    pictures = [
        charts.lines("Writing: surprise per word piece", writing, "training step"),
        charts.lines("Drawing: error of the velocity", {"": points("mse")}, "training step"),
    ]
    cards = "".join(f'<div class="card">{picture}</div>' for picture in pictures if picture)
    return (
        "<h2>How it learned</h2>"
        '<p class="lead">Both losses of the fine-tuning, lower is better: how surprised the model is by the next '
        "piece of the teacher’s words (in nats), and how far the direction in which it moves noise towards a picture "
        f'is off (mean squared error).</p><div class="charts">{cards}</div>'
    )


def _run(report: Report) -> str:
    rows = [[escape(name), escape(value)] for name, value in report.facts.items()]
    facts = f'<div class="card">{table(["", ""], rows, 0)}</div>' if rows else ""
    asked = next((each.task.request for each in report.shown if each.task.language == "en"), "")
    commands = (
        f"<pre><code>python infer.py --prompt {escape(shlex.quote(asked))}\n"
        "python -m eval openmoji --model outputs/demo/model --world outputs/demo/world --out outputs/eval</code></pre>"
    )
    return (
        f"<h2>This run</h2>{facts}<h2>What next</h2>"
        f'<p class="lead">Ask it yourself, or measure it with more things, seeds and ablations:</p>{commands}'
        '<footer>Drawings: <a href="https://openmoji.org">OpenMoji</a>, the open-source emoji and icon project, '
        "CC BY-SA 4.0; changed by rendering, scaling, turning and placing them, and by the model. "
        "Pictures of this page may be shared under the same licence.</footer>"
    )
