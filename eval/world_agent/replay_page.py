"""A page that shows a maintenance run step by step on its map: one file, no server, nothing fetched."""

from __future__ import annotations

import json
from pathlib import Path

from eval.world_agent.maintain import case_of, replay_run
from eval.world_agent.runs import read_run
from unify_agent.errors import UserError
from unify_agent.files import read_json, write_text
from unify_agent.page import escape, page, tag

PARTS = Path(__file__).parent / "page"


def write_page(runs: list[Path], out: Path) -> Path:
    """Write the page of one maintenance run, whose log is replayed first. Raises UserError."""
    if len(runs) != 1 or read_run(runs[0])["track"] != "maintain":
        raise UserError(f"--page shows one maintenance run; {len(runs)} runs are given")
    run, case, engine = read_run(runs[0]), case_of(runs[0]), replay_run(runs[0])
    start = case.world(engine.tier).as_dict()
    score = runs[0] / "score.json"
    items = {}
    if score.is_file():
        items = {each["round"]: each["items"] for each in read_json(score, "score")["rounds"]}
    data = {
        **{part: start[part] for part in ("tiles", "types", "entities")}, "rows": engine.log, "items": items,
        "narratives": [round_.narrative for round_ in case.rounds],
    }  # fmt: skip
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    body = "".join([
        f"<style>{(PARTS / 'replay.css').read_text(encoding='utf-8')}</style>",
        '<div class="bar"><button id="back">back</button><input id="at" type="range" min="0" value="0" '
        'aria-label="row of the log"><button id="next">next</button><span id="place"></span></div>',
        '<div id="map" class="world"></div><p id="offstage"></p>',
        tag("h2", "What happens"), '<ul id="what"></ul>', tag("h2", "What is told"), '<p id="story"></p>',
        f'<script type="application/json" id="run">{text}</script>',
        f"<script>{(PARTS / 'replay.js').read_text(encoding='utf-8')}</script>",
    ])  # fmt: skip
    about = f"<p>{escape(run['player']['player'])}, tier {escape(run['tier'])}, {len(engine.log)} rows of the log.</p>"
    write_text(out, page(case.title, about, body))
    return out
