"""What the tests of the benchmarks share: small data sets in every official layout, pictures, a judge, commands."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
from pathlib import Path

from chat_server import pictures, schema_name, texts
from PIL import Image

from eval.__main__ import COMMANDS


def picture(path: Path, seed: object = None, size=(24, 24)) -> Path:
    """A picture of one colour, which follows from `seed` (default: its path's last parts)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    value = hashlib.sha256(str(seed if seed is not None else path.parts[-3:]).encode()).digest()
    Image.new("RGB", size, tuple(value[:3])).save(path)
    return path


def lines(path: Path, records: list) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


FACTIP_CATEGORIES = ("Animation", "Celebrity", "Food", "Cultural Relic/Art", "Landmark", "Festival")


def factip(root: Path, count: int = 6) -> Path:
    """`test.json` with true pictures; folders cannot hold a slash, so that category is spelled as a folder."""
    prompts = {}
    for number in range(count):
        category = FACTIP_CATEGORIES[number % len(FACTIP_CATEGORIES)].replace("/", "_")
        prompts[f"k{number}"] = {
            "index": f"i{number}", "ip_name": f"Thing {number}", "image_prompt": f"画 thing {number} by a lake",
            "source_category": category, "country": "中国", "language": "zh", "seed1_url": "https://x.example/1",
        }  # fmt: skip
        for k, suffix in ((1, "png"), (2, "jpg")):
            picture(root / "gt" / category / f"i{number}" / f"seed{k}.{suffix}")
    (root / "test.json").write_text(json.dumps(prompts, ensure_ascii=False), encoding="utf-8")
    return root


def wise_record(number: int, category: str) -> dict:
    return {
        "Prompt": f"riddle {number}", "Explanation": f"it must show answer {number}", "Category": category,
        "Subcategory": "Festival", "prompt_id": number,
    }  # fmt: skip


LEGACY_IDS = {
    1: "Cultural knowledge", 2: "Cultural knowledge", 401: "time", 530: "time", 568: "Space", 701: "Biology",
    801: "Physical Knowledge", 901: "Chemistry",
}  # fmt: skip
VERIFIED_IDS = {
    1: "Cultural knowledge", 401: "time", 530: "Space", 701: "Biology", 801: "Physical Knowledge", 901: "Chemistry",
}  # fmt: skip


def wise(root: Path, ids: dict[int, str] | None = None) -> Path:
    """The three lists of the official release."""
    root.mkdir(parents=True, exist_ok=True)
    ids = ids or LEGACY_IDS
    parts = {"cultural_common_sense": range(1, 401), "spatio-temporal_reasoning": range(401, 701),
             "natural_science": range(701, 1001)}  # fmt: skip
    for name, numbers in parts.items():
        records = [wise_record(n, category) for n, category in reversed(ids.items()) if n in numbers]
        (root / f"{name}.json").write_text(json.dumps(records), encoding="utf-8")
    return root


def kitten(root: Path) -> Path:
    records = []
    for number, domain in enumerate(("aircraft", "aircraft", "flower", "sport")):
        refs = [picture(root / f"refs/{domain}{number}_{k}.png").relative_to(root).as_posix() for k in range(2)]
        records.append({
            "id": f"q{number}", "domain": domain, "entity": f"Entity {number}", "entity_qid": f"Q{number}",
            "task": "creative", "prompt": f"Entity {number} in the rain", "eval_refs": refs, "support_refs": refs[:1],
        })  # fmt: skip
    lines(root / "kitten.jsonl", records)
    return root


def factual(root: Path) -> Path:
    """Levels in folders, reference paths as on the authors' cluster."""
    def row(concepts: list[str], task: str) -> dict:
        for concept in concepts:
            picture(root / "reference_image" / "animal" / f"{concept}.JPG".replace(" ", "_"))
        return {
            "concept": concepts, "type": ["animal"] * len(concepts), "sentence": f"{' and '.join(concepts)}, {task}",
            "reference_image": [f"/cluster/home/a/data/animal/{c.replace(' ', '_')}.JPG" for c in concepts],
            "addition": [], "task": task,
        }  # fmt: skip

    lines(root / "SKCM" / "animal.jsonl", [row(["red owl"], "momerization"), row(["ox"], "momerization")])
    lines(root / "SKCM" / "plant.jsonl", [row(["yew"], "momerization")])
    lines(root / "SKCI" / "action.jsonl", [row(["ox"], "action variation")])
    lines(root / "MKCC" / "size.jsonl", [row(["ox", "yew"], "size")])
    return root


def picworld(root: Path, count: int = 3) -> Path:
    records = [
        {"id": f"p{n}", "prompt": f"a lit candle beside ice, view {n}", "domain": "Physical World",
         "category": ("Thermodynamics", "Spatial")[n % 2]}
        for n in range(count)
    ]  # fmt: skip
    lines(root / "picworld.jsonl", records)
    return root


def knowgen(root: Path) -> Path:
    """The list of results of the release, with the paths of one model's pictures."""
    rows = []
    for number, category in enumerate(("Astronomy", "biology", "anime", "news")):
        picture(root / f"gt/{number}.png")
        rows.append({
            "id": number, "success": True, "prompt": f"thing {number} with a sign", "gt_image": f"gt/{number}.png",
            "meta": {"category": category, "difficulty": "hard"}, "output_path": f"out/gen_{number}.png",
        })  # fmt: skip
    (root / "results.json").write_text(json.dumps(rows), encoding="utf-8")
    return root


def mindbench(root: Path) -> Path:
    picture(root / "refs/a.jpg")
    lines(root / "mindbench.jsonl", [
        {"Type": "2_Weather", "ID": 43, "Checklist": ["10 degrees are shown", "rain"],
         "World_Knowledge": {"image": ""}},
        {"Type": "10_Event", "ID": 7, "Checklist": ["the team's new coach"], "Prompt": "the coach of today",
         "World_Knowledge": {"image": ["refs/a.jpg", "refs/b.jpg"]}},
    ])  # fmt: skip
    return root


def draw(bench: str, data: Path, images: Path, skip: tuple[str, ...] = (), seed: str = "") -> Path:
    """A picture for every item, where the benchmark expects it first."""
    from eval.benchmarks import benchmark

    made = benchmark(bench)
    for item in made.load(data).items:
        if item.id not in skip:
            picture(images / f"{made.places(item)[0]}.png", f"{seed}{item.id}")
    return images


def chance(body: dict, high: int, what: str = "", low: int = 0) -> int:
    """A number that follows from what is asked and shown."""
    seed = hashlib.sha256((texts(body) + what).encode() + b"".join(pictures(body))).digest()
    return low + int.from_bytes(seed[:4], "big") % (high - low + 1)


def judge(body: dict) -> dict | str:
    """An answer to every question of every benchmark, and to a greeting; the same question gets the same answer."""
    if texts(body) == "Say yes.":
        return "Yes."
    name = schema_name(body) or next(known for known in _BY_KEY if _BY_KEY[known] in texts(body))
    if name == "FactIPVerdict":
        grades = {k: chance(body, 10, k) for k in ("clarity", "content_quality", "aesthetics", "text_relevance_ip")}
        weight = {"clarity": 0.05, "content_quality": 0.1, "aesthetics": 0.1, "text_relevance_ip": 0.75}
        overall = round(sum(weight[k] * grades[k] for k in grades))
        return {"rationale": "a; b"} | grades | {"overall_score": overall}
    if name == "WiseVerdict":
        grades = {k: chance(body, 2, k) for k in ("consistency", "realism", "aesthetic_quality")}
        return {"reason": "seen"} | grades
    if name == "VerifiedVerdict":
        return {"reason": "seen", "score": chance(body, 1)}
    if name == "Alignment":
        return {"reason": "seen", "alignment": chance(body, 5, low=1)}
    if name == "ConceptVerdict":
        parts = {k: chance(body, 1, k) for k in ("shape", "color", "texture", "feature")}
        return {"reason": "seen"} | parts | {"total": sum(parts.values())}
    if name == "InstantiationVerdict":
        return {"reason": "seen", "present": True, "score": chance(body, 1)}
    if name == "CompositionVerdict":
        parts = {k: chance(body, 1, k) for k in ("seamless", "complete", "authentic", "prompt")}
        return {"reason": "seen", "present": True} | parts | {"total": sum(parts.values())}
    if name == "KnowGenVerdict":
        measures = ("faithfulness", "visual_correctness", "text_accuracy", "aesthetics")
        grades = {k: chance(body, 2, k) / 2 for k in measures}
        return {"rationale": "seen", "text_accuracy_na": chance(body, 1) == 1} | grades
    if name == "Demands":
        asked = body["response_format"]["json_schema"]["schema"]["properties"]
        return {k: "seen" if k == "reason" else chance(body, 3, k) > 0 for k in asked}
    if name == "Expectations":
        return {"expectations": [
            {"expectation": f"thing {k} melts", "rationale": "heat", "importance": k, "kind": "State"} for k in (3, 1)
        ]}  # fmt: skip
    if name == "Questions":
        asked = (("State", "Is there a puddle?"), ("Existence", "Any ice?"))
        return {"questions": [{"type": kind, "text": text} for kind, text in asked]}
    if name == "Perception":
        return {"answer": "I see it", "verdict": chance(body, 3) > 0, "confidence": 0.5 + chance(body, 5, "c") / 10}
    if name in ("Conclusion", "Direct"):
        layers = {f"layer_{k}_score": chance(body, 10, str(k)) for k in ("1_adherence", "2_realism", "3_nuance")}
        items = {"bonuses": [], "inconsistencies": []} if name == "Conclusion" else {}
        return {"thinking_process": "so"} | items | layers
    raise AssertionError(f"no answer for {name!r}")


_BY_KEY = {"FactIPVerdict": "text_relevance_ip", "WiseVerdict": "aesthetic_quality"}


def command(name: str, *arguments: object) -> int:
    """Runs `python -m eval NAME ARGUMENTS` in this process; returns its exit code. Raises UserError."""
    module = importlib.import_module(COMMANDS[name][0])
    parser = argparse.ArgumentParser(prog=name)
    module.add_arguments(parser)
    return module.main(parser.parse_args([str(each) for each in arguments])) or 0


def score(server, bench: str, data: Path, images: Path, out: Path, *more: object) -> int:
    """`score` against a local server."""
    return command(
        "score", "--bench", bench, "--data", data, "--images", images, "--out", out, "--judge-url", server.url,
        "--judge-model", "judge", *more,
    )  # fmt: skip
