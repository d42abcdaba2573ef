"""How fast the page of `python -m eval report` opens: made up runs, a page of them, headless Chromium.

    python -m benchmarks.report_page --items 1000 --models 2

Medians, in milliseconds. The browser's own, from the start of the navigation: `ready`, when the first items stand in
the page with their pictures' places, and `load`, when the document and what it names is loaded. `start_and_open` begins
before the browser is started and ends when the first picture is drawn. `data_kb`: of index.html and data.js, which are
read whole.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.report import print_rows
from eval.benchmarks import benchmark
from eval.benchmarks.base import Benchmark, Item, sha256_of
from eval.benchmarks.wise import LEGACY, category_of
from eval.pictures import Found, Survey
from eval.report import write
from eval.results import assemble, write_report
from eval.run import Run
from eval.scoring import Result
from unify_agent.errors import UserError
from unify_agent.files import digest

WATCH = """new MutationObserver((_, observer) => {
    if (!document.querySelector('#items img')) return;
    window.pictureStood = performance.now();
    observer.disconnect();
}).observe(document, {childList: true, subtree: true});"""
"""Notes in the browser when the first picture of an item stands in the page."""
WORDS = "lantern festival river bridge copper lid steam frost shadow prism comet orchard harbour loom".split()


def sentence(random: np.random.Generator, words: int) -> str:
    """So many words."""
    return " ".join(random.choice(WORDS, words)).capitalize() + "."


def make_run(root: Path, name: str, bench: Benchmark, items: list[Item], size: int) -> Run:
    """A run of invented scores, with a picture of `size` pixels a side, its trajectory and the judge's words."""
    random = np.random.default_rng(int(digest(name)[:8], 16))
    found = []
    for item in items:
        path = root / name / f"{item.id}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8))
        small.resize((size, size), Image.Resampling.BICUBIC).save(path, quality=90)
        turns = [{"response_text": sentence(random, 120), "tool_output": sentence(random, 200)} for _ in range(3)]
        trajectory = path.with_name(f"{item.id}_traj.json")
        trajectory.write_text(json.dumps({"image_prompt": item.prompt, "turns": turns}), encoding="utf-8")
        found.append(Found(item.id, path, digest(path), trajectory))
    facts: dict[str, Any] = {
        "name": name, "benchmark": bench.name, "options": {}, "template_sha256": bench.template_sha256, "images": name,
        "data": {"variant": "made up", "sha256": sha256_of(items), "all": len(items), "chosen": None,
                 "chosen_sha256": sha256_of(items)},
        "judge": {"model": "none", "served": "none", "temperature": 0.0, "seed": 0, "extra": {},
                  "pictures": {"longest": 1024, "format": "png", "quality": 95}},
        "repeats": 1,
    }  # fmt: skip
    run = Run.start(root / f"run_{name}", facts)
    run.write_items(items, Survey(tuple(found), (), (), ()), {})
    results = []
    for item in items:
        c, r, a = (int(grade) for grade in random.integers(0, 3, 3))
        scores = {"score": (0.7 * c + 0.2 * r + 0.1 * a) / 2, "consistency": c, "realism": r, "aesthetics": a}
        said = json.dumps({"consistency": c, "realism": r, "aesthetic_quality": a, "reason": sentence(random, 40)})
        trail = {"role": "judge", "model": "none", "text": said, "thinking": sentence(random, 150), "repeat": 0}
        results.append(Result(item.id, "ok", scores, trail=(trail,), tokens=(900, 60)))
    run.write_results(results)
    write_report(run, assemble(run, bench, results), bench)
    return run


def opened(index: Path) -> dict[str, float]:
    """The times of one visit with a browser of its own. Raises UserError without a browser."""
    from playwright.sync_api import sync_playwright

    browser_path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser_path is None:
        raise UserError("no chromium or google-chrome on the path")
    with sync_playwright() as driver:
        started = time.perf_counter()
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        tab.add_init_script(WATCH)
        tab.goto(index.as_uri(), wait_until="load")
        tab.evaluate("document.querySelector('#items').scrollIntoView()")
        tab.wait_for_function("[...document.querySelectorAll('#items img')].some(picture => picture.naturalWidth > 0)")
        whole = 1000 * (time.perf_counter() - started)
        times = tab.evaluate(
            "({ready: window.pictureStood, load: performance.getEntriesByType('navigation')[0].loadEventEnd})"
        )
        browser.close()
    return times | {"start_and_open": whole}


def main() -> None:
    """Makes the page and opens it."""
    parser = argparse.ArgumentParser(prog="benchmarks.report_page", description=str(__doc__))
    parser.add_argument("--items", type=int, default=1000, help="(default: %(default)s, at most 1000)")
    parser.add_argument("--models", type=int, default=2, help="runs side by side (default: %(default)s)")
    parser.add_argument("--size", type=int, default=512, help="pixels a side of a picture (default: %(default)s)")
    parser.add_argument("--visits", type=int, default=5, help="the median is told (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="keep the page there (default: a folder that is removed)")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    args = parser.parse_args()
    random = np.random.default_rng(0)
    numbers = [1 + k * 999 // max(1, args.items - 1) for k in range(args.items)]
    items = [
        Item(str(n), sentence(random, 25), category_of(n, LEGACY), place=str(n),
             extra={"explanation": sentence(random, 60), "subcategory": "Festival"})
        for n in numbers
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        root = args.out or Path(folder)
        runs = [make_run(root, f"model-{k}", benchmark("wise"), items, args.size) for k in range(args.models)]
        started = time.perf_counter()
        index = write(runs, root / "page", paper=False)
        written = time.perf_counter() - started
        visits = [opened(index) for _ in range(args.visits)]
        read = sum(path.stat().st_size for path in (index, index.parent / "data.js"))
    row = {"items": args.items, "models": args.models, "write_s": round(written, 2), "data_kb": read // 1000}
    row |= {f"{name}_ms": round(statistics.median(visit[name] for visit in visits)) for name in visits[0]}
    print_rows([row], args.json)


if __name__ == "__main__":
    main()
