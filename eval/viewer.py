"""The static page of one or several runs: opens from disk, needs no server and no network.

    index.html     totals, plots, and the script that shows items
    data.js        id, prompt, category and score of every item: what is filtered and sorted by
    cards/K.js     the rest of what is shown of the K-th twenty items, read as they come into view
    details/K.js   what the judge said of them and how their pictures were made, read when opened
    thumbs/        small copies of pictures, named by content

Pictures are files that the browser loads as they come into view; text enters the page as text, never as markup.
`python -m benchmarks.report_page` measures how fast it opens.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

from eval import charts
from eval.benchmarks.base import Benchmark, Item
from eval.pictures import Found, read_trajectory
from eval.results import cells, summary
from eval.run import Run
from eval.scoring import Result
from eval.tables import Table, cell
from unify_agent.files import digest, write_bytes, write_text
from unify_agent.interleave.segments import Unusable
from unify_agent.interleave.transforms import open_picture
from unify_agent.judging import PicturePolicy
from unify_agent.page import escape, page, tag, write_script
from unify_agent.page import table as html_table

THUMB = PicturePolicy(longest=320, format="jpeg", quality=85)
CHUNK = 20
LONGEST = 4000
"""Characters of one text of a trajectory that are shown."""
_HERE = Path(__file__).parent


def write_page(
    out: Path, bench: Benchmark, runs: Sequence[Run], reports: Sequence[dict[str, Any]], table: Table
) -> Path:
    """Writes the page; returns the path of index.html."""
    judged = [run.items() for run in runs]
    items = {item.id: item for some, _, _ in judged for item in some}
    found = [each for _, each, _ in judged]
    results = [{result.id: result for result in run.results()} for run in runs]
    digests = {path: sha256 for _, _, some in judged for path, sha256 in some.items()}
    shown = {(each.path, each.sha256) for some in found for each in some.values() if each.path is not None}
    thumbs = _thumbs(out, shown | {(path, digests[path]) for item in items.values() for path in item.references})
    ordered = list(items.values())
    categories = {name: number for number, name in enumerate(dict.fromkeys(item.category for item in ordered))}
    data = {
        "runs": [report["name"] for report in reports],
        "measures": [[m.name, m.title] for m in bench.measures],
        "scale": [bench.measures[0].low, bench.measures[0].high],
        "digits": table.digits,
        "chunk": CHUNK,
        "categories": list(categories),
        "items": [
            [item.id, item.prompt, categories[item.category], [_row(bench, some.get(item.id)) for some in results]]
            for item in ordered
        ],
    }
    write_script(out / "data.js", "DATA", data)
    for number in range(0, len(ordered), CHUNK):
        part, place = ordered[number : number + CHUNK], number // CHUNK
        cards = [_card(out, item, found, results, digests, thumbs) for item in part]
        details = [[_detail(f.get(i.id), r.get(i.id)) for f, r in zip(found, results, strict=True)] for i in part]
        write_script(out / "cards" / f"{place}.js", f"CARDS[{place}]", cards)
        write_script(out / "details" / f"{place}.js", f"DETAILS[{place}]", details)
    write_text(out / "index.html", _page(bench, reports, table))
    return out / "index.html"


def _page(bench: Benchmark, reports: Sequence[dict[str, Any]], table: Table) -> str:
    names = ", ".join(report["name"] for report in reports)
    told = "".join(
        tag("h3", escape(report["name"])) + tag("ul", "".join(tag("li", escape(line[2:])) for line in summary(report)))
        for report in reports
    )
    rows = [
        [escape(model if source == "run" else f"{model} (paper)"),
         *(escape(cell(v, table.digits, with_interval=True)) for v in values)]
        for model, source, values in table.rows
    ]  # fmt: skip
    body = "".join(
        (
            tag("section", told, "card"),
            tag("h2", "Totals"),
            tag("section", html_table(["Model", *map(escape, table.titles)], rows, len(table.titles)), "card"),
            tag("h2", "By category"),
            tag("div", _plots(bench, reports), "charts"),
            tag("h2", "Items"),
            (_HERE / "viewer.html").read_text(encoding="utf-8"),
            tag("style", (_HERE / "viewer.css").read_text(encoding="utf-8")),
            '<script>window.CARDS = {}; window.DETAILS = {};</script><script src="data.js"></script>',
            tag("script", (_HERE / "viewer.js").read_text(encoding="utf-8")),
        )
    )
    return page(f"{bench.title}: {names}", "<p>Each picture with what the judge saw in it.</p>", body)


def _plots(bench: Benchmark, reports: Sequence[dict[str, Any]]) -> str:
    """A radar over categories, and bars of each run."""
    main = bench.measures[0]

    def share(value: float | None) -> float | None:
        return None if value is None else (value - main.low) / (main.high - main.low)

    found = [cells(report) for report in reports]
    names = list(dict.fromkeys(place for each in found for place in each if place[0] == "category"))
    series = {}
    for report, each in zip(reports, found, strict=True):
        values = [each[place].get(main.name) if place in each else None for place in names]
        series[report["name"]] = [None if value is None else share(value.value) for value in values]
    parts = [charts.radar([name for _, name in names], series)]
    for report, each in zip(reports, found, strict=True):
        bars = [
            charts.Bar(place[1], share(t.value), share(t.ci_low), share(t.ci_high),
                       kind="main" if place[0] == "total" else "control" if place[0] == "group" else "plain")
            for place, row in each.items() if (t := row.get(main.name)) is not None
        ]  # fmt: skip
        title = f"{report['name']}: {main.title} as a share of {main.low:g} to {main.high:g}"
        parts.append(tag("h3", escape(title)) + charts.bars(bars, width=520, label_width=170))
        for who, spread in report.get("spread", {}).items():
            shares = [
                charts.Bar(f"{k} to {k + 1}", n / spread["n"], kind="plain") for k, n in enumerate(spread["histogram"])
            ]
            title = f"{report['name']}: share of items by the score of the {who}"
            parts.append(tag("h3", escape(title)) + charts.bars(shares, width=520, label_width=90))
    return "".join(tag("div", part, "card") for part in parts if part)


def _row(bench: Benchmark, result: Result | None) -> list[Any] | None:
    """What is filtered and sorted by: score, status, whether it has flags, whether the judge's sum differs."""
    if result is None:
        return None
    main = bench.measures[0].name
    score = round(result.scores[main], 6) if result.status == "ok" else None
    return [score, result.status, int(bool(result.flags)), int(bool(result.differs))]


def _card(
    out: Path,
    item: Item,
    found: Sequence[dict[str, Found]],
    results: Sequence[dict[str, Result]],
    digests: Mapping[Path, str],
    thumbs: Mapping[tuple[Path, str], str | None],
) -> dict[str, Any]:
    runs: list[dict[str, Any] | None] = []
    for pictures, verdicts in zip(found, results, strict=True):
        picture, result = pictures.get(item.id), verdicts.get(item.id)
        if picture is None or result is None:
            runs.append(None)
            continue
        path = picture.path
        runs.append({
            "kind": result.kind, "detail": result.detail,
            "scores": {name: round(value, 6) for name, value in result.scores.items()}, "differs": result.differs,
            "flags": result.flags, "thumb": thumbs[path, picture.sha256] if path else "",
            "file": _relative(path, out) if path else "",
        })  # fmt: skip
    return {
        "group": item.group,
        "extra": {key: value for key, value in item.extra.items() if value not in ("", [], None)},
        "references": [[thumbs[p, digests[p]], _relative(p, out)] for p in item.references], "runs": runs,
    }  # fmt: skip


def _detail(picture: Found | None, result: Result | None) -> dict[str, Any] | None:
    if picture is None or result is None:
        return None
    made = None if picture.trajectory is None else steps_of(read_trajectory(picture.trajectory))
    return {"trail": list(result.trail), "evidence": result.evidence, "made": made}


def steps_of(trajectory: Any) -> list[dict[str, str]]:
    """How a picture was made, as titled texts: the agent's turns and its recaption, or the text of a thought."""
    if not isinstance(trajectory, dict):
        return [] if trajectory is None else [{"title": "thought", "text": _cut(trajectory)}]
    steps = []
    for key in ("turns", "full_response"):
        turns = trajectory.get(key)
        if isinstance(turns, list) and turns:
            for number, turn in enumerate(t for t in turns if isinstance(t, dict)):
                steps.append({"title": f"turn {number}: model", "text": _cut(turn.get("response_text", ""))})
                if turn.get("tool_output"):
                    steps.append({"title": f"turn {number}: found", "text": _cut(turn["tool_output"])})
            break
    if trajectory.get("recaption"):
        steps.append({"title": "recaption", "text": _cut(trajectory["recaption"])})
    return steps


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text) - LONGEST} more characters)"


def _thumbs(out: Path, pictures: set[tuple[Path, str]]) -> dict[tuple[Path, str], str | None]:
    """(picture, its SHA-256 when it was judged, "" when it was not there) -> its small copy below the page.

    "" for one that is gone or does not decode, None for one that is not what was judged any more.
    """

    def make(picture: tuple[Path, str]) -> str | None:
        path, judged = picture
        if not path.is_file():
            return ""
        sha256 = digest(path)
        if judged not in ("", sha256):
            return None
        name = f"thumbs/{sha256[:20]}.jpg"
        if not (out / name).is_file():
            try:
                write_bytes(out / name, THUMB.encode(open_picture(path)))
            except Unusable:
                return ""
        return name

    ordered = sorted(pictures)
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(ordered, pool.map(make, ordered), strict=True))


def _relative(path: Path, out: Path) -> str:
    """The path as a link from the page."""
    return quote(Path(os.path.relpath(path.resolve(), out.resolve())).as_posix())
