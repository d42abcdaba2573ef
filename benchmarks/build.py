"""How near a data build comes to the rate that its services allow, and whether its memory stays flat.

    python -m benchmarks.build [--items 1000] [--at-once 32] [--latency 0.2] [--json]

`--items` things, one prompt each, against local chat and image servers that answer after `--latency` seconds, at most
`--at-once` calls at a time; the search is a local index. The ideal takes calls x latency / at-once seconds;
`rate_ratio` is the ideal over what it took from the first call to the last item, so 1 is the best there is. Memory is
the resident memory of the build's process after a fifth of the items, and at its peak from there to the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import yaml
from PIL import Image

from benchmarks.build_servers import name_of, serving
from data.build.command import finish
from data.build.journal import Journal
from data.build.pipeline import Pipeline
from data.build.services import Services
from data.build.spec import read_spec
from data.build.stages import all_stages
from unify_agent.errors import UserError, run
from unify_agent.search.building import build_index

BARS = {"rate_ratio": 0.9, "growth_mib": 50.0}


def write_world(folder: Path, items: int, url: str, at_once: int) -> Path:
    """A list of things with seeds, an index with a page and two pictures of each, and the spec; returns its path."""
    for name in ("seeds", "raw"):
        (folder / name).mkdir()
    rows, docs, pictures = ["id,name_en,category,country,seed1,seed2"], [], []
    random = np.random.default_rng(0)
    for number in range(items):
        name, files = name_of(number), []
        for k in range(4):
            files.append(f"{number:05d}_{k}.png")
            coarse = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8))
            coarse.resize((96, 96), Image.Resampling.BICUBIC).save(folder / ("seeds" if k < 2 else "raw") / files[-1])
        rows.append(f"{number:05d},{name},toy,Nowhere,seeds/{files[0]},seeds/{files[1]}")
        docs.append(
            {"title": name, "text": f"{name} is a rare toy.", "lang": "en", "source": f"https://a.example/{name}"}
        )
        pictures += [
            {"id": file[:-4], "path": file, "title": {"en": name}, "source": "https://a.example", "licence": "CC0"}
            for file in files[2:]
        ]
    (folder / "list.csv").write_text("\n".join(rows) + "\n")
    for name, records in (("docs", docs), ("images", pictures)):
        (folder / "raw" / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    build_index(folder / "raw" / "docs.jsonl", folder / "raw" / "images.jsonl", folder / "index")
    roles = {role: {"same_as": "teacher", "model": role} for role in ("metadata", "prompts", "references", "verifier")}
    spec = {
        "entities": "list.csv", "out": "out", "at_once": 2 * at_once,
        "services": {
            "teacher": {"url": url, "model": "teacher", "concurrency": at_once}, **roles,
            "image": {"url": url, "model": "painter", "size": "64x64", "concurrency": at_once},
            "search": {"spec": "index:index", "concurrency": at_once}, "concurrency": at_once,
        },
        "prompts": {"per_entity": 1}, "trajectories": {"words": "compact"}, "references": {"candidates": 2},
        "benchmark": {"share": 0.0},
    }  # fmt: skip
    (folder / "build.yaml").write_text(yaml.safe_dump(spec))
    return folder / "build.yaml"


def resident() -> float:
    """Resident memory in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def measure(items: int, at_once: int, latency: float) -> dict[str, Any]:
    """The figures of one build."""
    with tempfile.TemporaryDirectory() as place, serving(latency) as url:
        folder = Path(place)
        spec = read_spec(write_world(folder, items, url, at_once))
        stages = all_stages()
        listed, _ = stages.read(spec)
        memory: list[tuple[int, float]] = []
        with Journal(spec.out / "journal.jsonl") as journal, Services(spec, spec.out) as services:
            pipeline = Pipeline(listed, spec, services, stages, journal)
            began = time.perf_counter()
            pipeline.run(lambda: memory.append((pipeline.tally.settled("task"), resident())))
            seconds = time.perf_counter() - began
            if (done := pipeline.tally.count("task", "done")) != items:
                raise UserError(f"{done} of {items} items were made: {pipeline.halted or pipeline.tally.record()}", 1)
            finished = time.perf_counter()
            finish(spec.out, spec, stages, pipeline.current())
            finished = time.perf_counter() - finished
        calls = httpx.get(f"{url.removesuffix('/v1')}/count").json()["calls"]
    at_fifth = next(mib for done, mib in memory if done >= items / 5)
    return {
        "items": items, "at_once": at_once, "latency": latency, "calls": calls, "seconds": seconds,
        "ideal_seconds": calls * latency / at_once, "rate_ratio": calls * latency / at_once / seconds,
        "items_per_second": items / seconds, "mib_after_a_fifth": at_fifth,
        "growth_mib": max(mib for done, mib in memory if done >= items / 5) - at_fifth, "finish_seconds": finished,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.build", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("--at-once", type=int, default=32, help="calls at a time (default: 32)")
    parser.add_argument("--latency", type=float, default=0.2, help="seconds of an answer (default: 0.2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    args = parser.parse_args(arguments)
    found = measure(args.items, args.at_once, args.latency)
    if args.json:
        print(json.dumps(found))
        return 0
    for name, value in found.items():
        bar = f"   (bar {BARS[name]:g})" if name in BARS else ""
        print(
            f"{name.replace('_', ' '):20} {value:10.3f}{bar}" if isinstance(value, float) else f"{name:20} {value:10}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
