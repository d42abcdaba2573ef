"""How many samples a second one worker makes, from JPEG files on disk to packs that are ready for the model.

    python -m benchmarks.loader [--samples 60] [--json]
    a list of {pictures, tokens, samples_per_s, memory_mib}

A sample is a trajectory of two turns in the release's layout with two references and a target of one size, laid out,
resized and packed as the paper's recipe does. The clock runs from the first pack's arrival to the last one's.
`memory_mib`: resident memory of this process and its worker after a third of the epoch and at its end (Linux).
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.report import print_rows
from unify_agent.datasets.folder import TrajectorySource
from unify_agent.datasets.loader import Loader
from unify_agent.datasets.sources import Mixture, SourceContext
from unify_agent.interleave.batch import PackRules
from unify_agent.interleave.grammar import Grammar
from unify_agent.interleave.layout import Pixels
from unify_agent.interleave.packing import Limits
from unify_agent.interleave.transforms import Transform

TOKENIZER = Path(__file__).resolve().parents[1] / "data" / "openmoji" / "base"
PIXELS = Pixels(Transform(1024, 512, 16), Transform(980, 378, 14))
SIZES = ((1280, 960), (512, 512))
TEXT_TOKENS = 2000


def photograph(seed: int, width: int, height: int) -> bytes:
    """A JPEG of about as much detail as a photograph: coarse shapes under fine grain."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (height // 40, width // 40, 3), dtype=np.uint8))
    shapes = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    pixels = np.clip(shapes + rng.integers(-12, 13, shapes.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


def write_samples(root: Path, samples: int, size: tuple[int, int], grammar: Grammar) -> None:
    """A category folder of trajectories whose texts have about `TEXT_TOKENS` tokens."""
    for folder in ("traj", "images", "intermediate"):
        (root / folder).mkdir(parents=True)
    sentence = "The visitor centre lies to the north of the old harbour, and its roof is made of copper. "
    words = sentence * (TEXT_TOKENS // 2 // len(grammar.encode(sentence)))
    answer = 'Look first. <tool_call>\n{"name": "image_search"}\n</tool_call>'
    final = f"<think>\n{words}\n</think>\n<recaption>\n{sentence}\n</recaption>"
    turns = [
        {"turn": 0, "input": "Draw the visitor centre.", "response_text": answer},
        {"turn": 1, "input": f"<observation>\n{words}\n</observation>\nNow write.", "response_text": final},
    ]
    pictures = [photograph(seed, *size) for seed in range(12)]
    for number in range(samples):
        name = f"sample_{number:04d}"
        record = {"ip_index": name, "full_response": turns, "recaption": sentence}
        (root / "traj" / f"{name}_trajectory.json").write_text(json.dumps(record))
        (root / "intermediate" / name).mkdir()
        places = (f"intermediate/{name}/image_1", f"intermediate/{name}/image_2", f"images/{name}_0")
        for slot, file in enumerate(places):
            (root / f"{file}.jpg").write_bytes(pictures[(number + 4 * slot) % len(pictures)])


def resident() -> float:
    """MiB held by this process and its workers."""
    pages = 0
    for number in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
        pages += int(Path(f"/proc/{number}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def measure(size: tuple[int, int], samples: int) -> dict:
    grammar = Grammar.load(TOKENIZER)
    rules = PackRules(
        grammar.bos, grammar.eos, grammar.start_of_image, grammar.end_of_image, latent_side=64, vit_side=70
    )
    with tempfile.TemporaryDirectory() as folder:
        write_samples(Path(folder), samples, size, grammar)
        limits = Limits()
        source = TrajectorySource(SourceContext(grammar, PIXELS), folder)
        mixture = Mixture([source], limit=limits.max_tokens_per_sample)
        loader = Loader(mixture, limits, rules, seed=0, workers=1)
        total = loader.plan(0).steps
        built, began, memory = 0, 0.0, []
        for number, data in enumerate(loader.steps(0, total)):
            if not number:
                began = time.perf_counter()
            else:
                built += sum(len(batch.sample_ids) for batch in data.packs)
            if number in (total // 3, total - 2):
                memory.append(resident())
        seconds = time.perf_counter() - began
    return {
        "pictures": f"3 x {size[0]}x{size[1]}",
        "tokens": source.slots(0),
        "samples_per_s": round(built / seconds, 2),
        "memory_mib": memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loader", description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=60, help="samples of each size (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    options = parser.parse_args()
    if options.samples < 30:
        parser.error(f"--samples {options.samples}: at least 30 make enough packs to measure")
    print_rows([measure(size, options.samples) for size in SIZES], options.json)


if __name__ == "__main__":
    main()
