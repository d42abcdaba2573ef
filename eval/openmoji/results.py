"""From chunks to figures: the results of a run as one JSON value, a table in Markdown, and a plot."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from data.openmoji.scenes import BACKGROUNDS, Scene
from eval.metrics import Figure, clustered, nearest, proportion, score_picture
from eval.openmoji.run import World
from eval.openmoji.score import Scored, by_entity, corner_box, decisions, figures, of_picture, score_item
from eval.openmoji.store import Chunk
from eval.openmoji.tasks import Task
from eval.openmoji.variants import VARIANTS, Variant


def score_chunk(chunk: Chunk, tasks: Sequence[Task], world: World, entities: Sequence[str]) -> list[Scored]:
    """Scores of a chunk's items. Identity is chosen among `entities`; common things have no gallery."""
    place = {entity: index for index, entity in enumerate(entities)}
    result = []
    for task, item, picture in zip(tasks, chunk.items, chunk.pictures, strict=True):
        shown = None
        if not task.common:
            shown = np.stack([world.compose(task.scene, entity) for entity in entities])
        result.append(score_item(task, item, picture, shown, place.get(task.entity, 0), world.entity_of))
    return result


def mean_pictures(scenes: Sequence[Scene], world: World) -> list[np.ndarray]:
    """For each scene the average of the exact pictures of all training entities: what can be known without identity."""
    training = [e.id for e in world.entities if e.split == "train"]
    result = []
    for scene in scenes:
        total = np.zeros((64, 64, 3), np.float64)
        for entity in training:
            total += world.compose(scene, entity)
        result.append(np.round(total / len(training)).astype(np.uint8))
    return result


Encode = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def pixel_controls(
    tasks: Sequence[Task], world: World, entities: Sequence[str], round_trip: Encode | None
) -> dict[str, Figure]:
    """Figures that need no agent: the identity-blind average, and the true picture through the model's VAE."""
    place = {entity: index for index, entity in enumerate(entities)}
    blind: dict[str, list[float]] = {}
    bound: dict[str, list[float]] = {}
    scene_bound: dict[str, list[float]] = {}
    averages = mean_pictures([task.scene for task in tasks], world)
    truths = [world.compose(task.scene, task.entity) for task in tasks]
    decoded = round_trip(truths) if round_trip is not None else []
    for number, task in enumerate(tasks):
        shown, truth = np.stack([world.compose(task.scene, entity) for entity in entities]), place[task.entity]
        blind.setdefault(task.entity, []).append(float(nearest(averages[number], shown) == truth))
        if round_trip is not None:
            score = score_picture(
                decoded[number], shown, truth, BACKGROUNDS, task.scene.background, corner_box(task.scene)
            )
            bound.setdefault(task.entity, []).append(float(score.identity))
            scene_bound.setdefault(task.entity, []).append(float(score.scene))
    result = {"identity_blind_average": clustered(blind)}
    if round_trip is not None:
        result |= {"vae_round_trip": clustered(bound), "vae_round_trip_scene": clustered(scene_bound)}
    return result


def summarise(
    scored: Mapping[str, Sequence[Scored]], controls: Mapping[str, Figure], made: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that was measured, as plain JSON."""
    variants: dict[str, Any] = {}
    for name, items in scored.items():
        unseen = [each for each in items if not each.task.common]
        variants[name] = {key: value.as_dict() for key, value in figures(unseen).items()}
    result: dict[str, Any] = {"made": dict(made), "variants": variants}
    result["controls"] = {key: value.as_dict() for key, value in controls.items()}
    if "full" in scored:
        unseen = [each for each in scored["full"] if not each.task.common]
        common = [each for each in scored["full"] if each.task.common]
        result["decision_right"] = decisions(unseen, common).as_dict()
        result["common_direct"] = proportion([not each.searched for each in common]).as_dict()
        result["languages"] = {
            language: clustered(
                by_entity([s for s in unseen if s.task.language == language], of_picture("identity"))
            ).as_dict()
            for language in ("en", "zh")
        }
    return result


# ---------------------------------------------------------------- as text and as a picture

WORDS = {
    "tool_calls_valid": "tool calls that parse and name the right tool",
    "replies_valid": "the same of all replies, those that were drawn again included",
    "query_exact": "queries that carry the name exactly",
    "references_right": "references show the thing",
    "recaption_complete": "recaption complete, naming the references there are",
    "recaption_true": "recaption complete, name and scene as asked",
    "identity_top1": "identity, top-1",
    "background_right": "background right",
    "place_right": "place right (within 4 pixels)",
    "scene_correct": "background and place right",
    "identity_when_evidence_right": "identity where references and recaption are right",
}
CONTROLS = {
    "identity_blind_average": "identity-blind average of the training entities",
    "vae_round_trip": "upper bound: the true picture through the VAE",
    "vae_round_trip_scene": "upper bound for background and place: the same",
}


def text(value: Mapping[str, Any] | None) -> str:
    """`0.71 [0.65, 0.77]`, or a dash."""
    if value is None or value["value"] is None:
        return "–"
    return f"{value['value']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"


def rows(results: Mapping[str, Any], group: Sequence[str]) -> list[Variant]:
    """The variants of some groups that were run, best identity first."""
    there = [each for each in VARIANTS.values() if each.group in group and each.name in results["variants"]]
    return sorted(there, key=lambda each: -(results["variants"][each.name]["identity_top1"]["value"] or 0))


def to_markdown(results: Mapping[str, Any]) -> str:
    """The tables of a run. Every figure with its 95 % interval."""
    made, variants = results["made"], results["variants"]
    lines = ["# The embedded world: results", "", f"`{made['command']}`", ""]
    lines += [
        f"{made['entities']} unseen test entities, seeds {', '.join(map(str, made['seeds']))} "
        f"({made['entities'] * len(made['seeds'])} requests, half in English, half in Chinese), "
        f"{made['seconds']:.0f} s of computing. In brackets 95 % intervals (bootstrap over entities). Identity: which "
        f"of the {made['entities']} exact pictures of the same scene is nearest by RGB error at 64x64; chance "
        f"{1 / made['entities']:.2f}.",
        "",
    ]
    if "full" in variants:
        lines += ["## The agent", "", "| measure | full agent | closed book | n |", "|---|---|---|---|"]
        closed = variants.get("closed_book", {})
        for key, title in WORDS.items():
            other = text(closed.get(key)) if key.startswith(("identity_top1", "background", "place", "scene")) else ""
            lines.append(f"| {title} | {text(variants['full'][key])} | {other} | {variants['full'][key]['n']} |")
        more = {
            "decision to search or to draw directly": results["decision_right"],
            "of these, common things drawn directly": results["common_direct"],
            "identity, requests in English": results["languages"]["en"],
            "identity, requests in Chinese": results["languages"]["zh"],
        }
        lines += [f"| {title} | {text(value)} | | {value['n']} |" for title, value in more.items()]
        lines.append("")
    lines += [
        "## Controls and stages on their own",
        "",
        "| what | identity, top-1 | background and place |",
        "|---|---|---|",
    ]
    for each in rows(results, ("control", "stage")):
        values = variants[each.name]
        lines.append(f"| {each.title} | {text(values['identity_top1'])} | {text(values['scene_correct'])} |")
    for key, title in CONTROLS.items():
        if key in results["controls"] and key != "vae_round_trip_scene":
            scene = results["controls"].get(f"{key}_scene")
            lines.append(f"| {title} | {text(results['controls'][key])} | {text(scene) if scene else ''} |")
    ablations = rows(results, ("ablation", "agent"))
    if any(each.group == "ablation" for each in ablations):
        lines += [
            "", "## Ablations (the rows of the paper's Table 5, in the order found)", "",
            "| variant | identity, top-1 | background and place | recaption complete | paper, Overall |",
            "|---|---|---|---|---|",
        ]  # fmt: skip
        for each in ablations:
            values = variants[each.name]
            paper = "" if each.paper is None else f"{each.paper:.1f}"
            cells = [text(values[key]) for key in ("identity_top1", "scene_correct", "recaption_complete")]
            if each.speaker == "nobody":
                cells[-1] = "none is written"
            lines.append(f"| {each.title} | {' | '.join(cells)} | {paper} |")
    return "\n".join(lines) + "\n"


def plot(results: Mapping[str, Any]) -> bytes:
    """Identity and scene of all variants with their intervals, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    drawn = rows(results, ("agent", "ablation", "control", "stage"))[::-1]
    labels = [each.title for each in drawn]
    identity = [results["variants"][each.name]["identity_top1"] for each in drawn]
    scene = [results["variants"][each.name]["scene_correct"] for each in drawn]
    canvas = Canvas(figsize=(9, 0.52 * len(drawn) + 1.6), layout="constrained")
    FigureCanvasAgg(canvas)
    axis = canvas.subplots()
    for values, shift, colour, label in (
        (identity, 0.18, "#2f6fdb", "identity, top-1"),
        (scene, -0.18, "#f2a33a", "background and place"),
    ):
        middle = np.array([each["value"] or 0.0 for each in values])
        reach = np.array([[m - (v["low"] or 0), (v["high"] or 0) - m] for m, v in zip(middle, values, strict=True)]).T
        at = np.arange(len(drawn)) + shift
        axis.barh(at, middle, 0.34, color=colour, label=label)
        axis.errorbar(middle, at, xerr=np.maximum(reach, 0), fmt="none", ecolor="#1d2433", elinewidth=1, capsize=2)
    for key, style in (("vae_round_trip", "--"), ("identity_blind_average", ":")):
        value = results["controls"].get(key)
        if value:
            axis.axvline(value["value"], color="#1f8a5b", linestyle=style, linewidth=1, label=CONTROLS[key])
    axis.set_yticks(np.arange(len(drawn)), labels)
    axis.set(xlim=(0, 1.02), xlabel="share of requests, 95 % intervals")
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    canvas.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
