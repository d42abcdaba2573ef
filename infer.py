"""Ask the agent for pictures: it thinks, searches, rewrites and draws.

    python infer.py --prompt "Draw Velmora on a red background, small, on the left."
    python infer.py --prompts requests.jsonl --model DIR --search index:DIR --out DIR

A file of prompts is JSON (a list of texts or objects, or an object of objects by id, as the release's ip_data), JSON
lines, or plain text with a request a line. Objects hold image_prompt (or prompt) and may hold id, language, ip_name,
country, category. Each item ends as ok, partial or failed in OUT/summary.jsonl; the same command again goes on where it
was stopped. Exit codes: 0 all are ok, 3 some are not, 2 the command was wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from unify_agent.errors import UserError, run
from unify_agent.files import read_json

if TYPE_CHECKING:
    from unify_agent.agent.episode import Episode
    from unify_agent.agent.unified import UnifiedPolicy
    from unify_agent.agent.wording import Prompts

DEMO_MODEL = Path("outputs/demo/model")
DEMO_SEARCH = Path("outputs/demo/world/search")
LONGEST = 4000
"""Characters of the longest request that is taken."""
SOME_NOT = 3
RENORMS = ("global", "channel", "text_channel")


@dataclass(frozen=True)
class Request:
    """One thing to draw."""

    id: str
    prompt: str
    language: str
    name: str = ""
    country: str = ""
    category: str = "prompts"


def language_of(text: str) -> str:
    """`zh` for a text with Chinese characters, else `en`."""
    return "zh" if re.search(r"[\u3400-\u9fff]", text) else "en"


def request_of(record: Any, where: str, item_id: str | None = None) -> Request:
    """A request from a text or an object. Raises UserError that says where and which key is at fault."""
    from unify_agent.agent.record import check_id

    record = {"image_prompt": record} if isinstance(record, str) else record
    if not isinstance(record, dict):
        raise UserError(f"{where}: a text or an object is expected, not {type(record).__name__}")
    prompt = record.get("image_prompt", record.get("prompt"))
    if not isinstance(prompt, str) or not prompt.strip():
        raise UserError(f"{where}: the prompt is empty; give the text of a request (key image_prompt)")
    prompt = prompt.strip()
    if len(prompt) > LONGEST:
        raise UserError(f"{where}: the prompt has {len(prompt)} characters, at most {LONGEST} are taken")
    texts = {key: record.get(key, "") for key in ("language", "ip_name", "country", "category", "ip_category")}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise UserError(f"{where}: {key} must be a text")
    language = texts["language"] or language_of(prompt)
    if language not in ("en", "zh"):
        raise UserError(f"{where}: language {language!r} is not known; choose en or zh")
    item_id = item_id or record.get("id") or record.get("ip_index") or hashlib.sha256(prompt.encode()).hexdigest()[:10]
    category = texts["category"] or texts["ip_category"] or "prompts"
    return Request(
        check_id(str(item_id), f"{where}: id"), prompt, language, texts["ip_name"], texts["country"],
        check_id(category, f"{where}: category"),
    )  # fmt: skip


def read_prompts(path: Path) -> list[Request]:
    """The requests in a file. Raises UserError for one that is missing, empty or does not parse, naming the place."""
    if not path.is_file():
        raise UserError(f"{path}: no such file of prompts")
    if path.suffix == ".json":
        content = read_json(path, "file of prompts")
        if isinstance(content, dict):
            found = [request_of(value, f"{path}: {key}", key) for key, value in content.items()]
        elif isinstance(content, list):
            found = [request_of(value, f"{path}: item {n}") for n, value in enumerate(content)]
        else:
            raise UserError(f"{path}: a list or an object is expected, not {type(content).__name__}")
    else:
        found = list(_lines(path))
    if not found:
        raise UserError(f"{path}: holds no prompt")
    for item, count in Counter((each.category, each.id) for each in found).items():
        if count > 1:
            raise UserError(f"{path}: the id {item[1]!r} occurs {count} times; give each item an id of its own")
    return found


def _lines(path: Path) -> Iterator[Request]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record: Any = line
        if path.suffix == ".jsonl":
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{path}:{number}: not JSON ({error.msg})") from None
        yield request_of(record, f"{path}:{number}")


def size_of(text: str) -> tuple[int, int]:
    """`512` or `512x768` (height x width)."""
    found = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is neither N nor HEIGHTxWIDTH")
    return int(found[1]), int(found[2] or found[1])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="infer.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("--prompt", action="append", help="a request; may be given several times")
    what.add_argument("--prompts", type=Path, metavar="FILE", help="a file of requests")
    made.add_argument("--model", help=f"model folder in BAGEL's layout, or a hub id (default: {DEMO_MODEL})")
    made.add_argument("--search", metavar="index:DIR", help=f"where to search (default: index:{DEMO_SEARCH})")
    made.add_argument("--words", metavar="NAME|FILE", help="prompts: full, compact or a YAML file (default: model's)")
    made.add_argument("--out", type=Path, default=Path("outputs/infer"), help="results (default: %(default)s)")
    made.add_argument("--seed", type=int, default=0, help="of noise and sampling (default: %(default)s)")
    drawn = made.add_argument_group("drawing (defaults: the model's)")
    drawn.add_argument("--steps", type=int, help="points of time of the sampler")
    drawn.add_argument("--shift", type=float, help="of the times towards noise")
    drawn.add_argument("--text-scale", type=float, help="guidance by the text; 1 is none")
    drawn.add_argument("--image-scale", type=float, help="guidance by the references; 1 is none")
    drawn.add_argument("--interval", type=float, nargs=2, metavar=("LO", "HI"), help="guidance where LO < t <= HI")
    drawn.add_argument("--renorm", choices=RENORMS, help="how guided velocities are scaled back")
    drawn.add_argument("--renorm-min", type=float, help="least factor of that")
    drawn.add_argument("--history", action="store_true",
                       help="draw from the whole history, as layout released is trained to (else from a fresh context)")
    written = made.add_argument_group("writing (default: the most likely token)")
    written.add_argument("--temperature", type=float, help="of sampling; 0 takes the most likely token")
    written.add_argument("--top-k", type=int, help="sample among so many tokens; 0: all")
    written.add_argument("--top-p", type=float, help="sample among the fewest tokens that reach this probability")
    written.add_argument("--max-new", type=int, help="tokens of the longest reply")
    drawn.add_argument("--size", type=size_of, metavar="N|HxW", help="of the picture, in pixels")
    made.add_argument("--device-map", choices=("auto", "none"), default="none",
                      help="auto: over all cards and host memory there are; none: the first card, or the CPU (default)")
    made.add_argument("--dtype", choices=("bf16", "fp32"), help="of the weights (default: bf16 on a card, else fp32)")
    made.add_argument("--quant", choices=("8bit", "4bit"), help="of the decoder's matrices; needs bitsandbytes")
    made.add_argument("--batch", type=int, default=32, help="requests that run together (default: %(default)s)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    args = parser().parse_args(arguments)
    if args.batch < 1:
        raise UserError(f"--batch {args.batch}: at least 1")
    console = Console(stderr=True, highlight=False)
    if args.prompt is not None:
        unique = dict.fromkeys(args.prompt)
        requests = [request_of(text, f"--prompt {n}") for n, text in enumerate(unique, 1)]
    else:
        requests = read_prompts(args.prompts)
    model = args.model or _demo(DEMO_MODEL, "--model", "model", console)
    place = args.search or f"index:{_demo(DEMO_SEARCH, '--search', 'search index', console)}"
    kind, _, path = place.partition(":")
    if kind != "index" or not path:
        raise UserError(f"--search {place}: expected index:DIR")

    from unify_agent.search.index import Index

    search = Index.open(path)
    from unify_agent.agent.load import load_policy  # torch: only when there is something to draw

    policy, words = load_policy(
        model, prompts=args.words, size=args.size, steps=args.steps,
        dtype=args.dtype, spread=args.device_map == "auto", quant=args.quant, shift=args.shift,
        text_scale=args.text_scale, image_scale=args.image_scale, renorm=args.renorm, renorm_min=args.renorm_min,
        interval=args.interval and tuple(args.interval),
    )  # fmt: skip
    if args.history and policy.preset == "isolated":
        raise UserError(f"--history: {model} has layout isolated, which never draws from the history; leave it out")
    given = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "max_new")}
    policy.sampling = replace(policy.sampling, **{name: value for name, value in given.items() if value is not None})
    return draw_all(requests, policy, words, search, args, console)


def _demo(path: Path, option: str, what: str, console: Console) -> Path:
    if not path.exists():
        raise UserError(f"{option} is not given and the demo has left no {what} in {path} yet: run `make demo` first")
    console.print(f"{option} is not given: taking the demo's {what}, {path}")
    return path


def draw_all(
    requests: Sequence[Request],
    policy: UnifiedPolicy,
    words: Prompts,
    search: Any,
    args: argparse.Namespace,
    console: Console,
) -> int:
    """Runs what is not finished yet, a batch at a time, each item written as soon as its batch is drawn.

    Of `args` it takes out, seed, batch and history.
    """
    from unify_agent.agent.loop import Loop
    from unify_agent.agent.pixeljudge import PixelJudge
    from unify_agent.agent.record import Recorder
    from unify_agent.generation.progress import steps_in

    out, seed, batch = args.out, args.seed, args.batch
    recorder = Recorder(out, policy.name)
    settings = {"seed": seed} | {key: value for key, value in policy.described().items() if key != "model"}
    if args.history:
        settings["drawn_from"] = "history"
    waiting = [r for r in requests if not recorder.finished(r.category, r.id, r.prompt, settings)]
    if len(waiting) < len(requests):
        console.print(f"{len(requests) - len(waiting)} of {len(requests)} were done before")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("starting", total=len(waiting))
        policy.on_step = steps_in(progress)

        def told(episode: Episode, what: str) -> None:
            if what == "reply":
                progress.update(bar, description=f"{episode.id}: turn {len(episode.turns)}")
            elif what == "drawn":
                progress.update(bar, description=f"{episode.id}: drawn", advance=1)

        loop = Loop(policy, search, PixelJudge(), words, on_event=told)
        for start in range(0, len(waiting), batch):
            group = [episode_of(request, seed, args.history) for request in waiting[start : start + batch]]
            loop.run(group)
            for number, episode in enumerate(group, start + 1):
                path = recorder.write(episode)
                reason = f"{episode.stop}{f' ({episode.error})' if episode.error else ''}"
                shown = path if episode.picture is None else path.parents[1] / "images" / f"{episode.id}_0.png"
                console.print(
                    f"{number}/{len(waiting)} {episode.id}: {episode.status}, {reason}, "
                    f"{len(episode.references)} references -> {shown}", soft_wrap=True, markup=False,
                )  # fmt: skip
            recorder.write_summary()
    asked = [recorder.summary.get(f"{r.category}/{r.id}", {}).get("status", "ok") for r in requests]
    counts = Counter(asked)
    console.print(f"{', '.join(f'{n} {status}' for status, n in sorted(counts.items()))}; {out / 'summary.jsonl'}")
    return 0 if set(counts) == {"ok"} else SOME_NOT


def episode_of(request: Request, seed: int, history: bool = False) -> Episode:
    """The loop's view of a request."""
    from unify_agent.agent.episode import AgentOptions, Episode

    return Episode(
        id=request.id, request=request.prompt, language=request.language, name=request.name,
        category=request.category, country=request.country, seed=seed,
        options=AgentOptions(history=True if history else None),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(run(main))
