"""The command line of `infer.py`, and the `Setup` that it means."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from unify_agent.agent.crew import JUDGES, POLICIES, Service, Setup
from unify_agent.errors import UserError

RENORMS = ("global", "channel", "text_channel")
GUIDANCE = ("none", "agent", "bagel", "interleave", "references")
"""Names in `generation.sampler.GUIDANCE`, which would bring torch with it."""


def size_of(text: str) -> tuple[int, int]:
    """`512` or `512x768` (height x width)."""
    found = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is neither N nor HEIGHTxWIDTH")
    return int(found[1]), int(found[2] or found[1])


def aspect_of(text: str) -> float:
    """`16:9` (width:height) as a number."""
    found = re.fullmatch(r"(\d{1,4}(?:\.\d{1,4})?):(\d{1,4}(?:\.\d{1,4})?)", text)
    value = float(found[1]) / float(found[2]) if found and float(found[2]) else 0.0
    if not 1 / 20 <= value <= 20:
        raise argparse.ArgumentTypeError(f"{text!r} is no WIDTH:HEIGHT between 1:20 and 20:1")
    return value


def shard_of(text: str) -> tuple[int, int]:
    """`2/8`: part 2 of 8."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no I/N with I from 1 to N")
    return int(found[1]), int(found[2])


def at_least_one(text: str) -> int:
    """A count."""
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def count_of(text: str) -> int:
    """A count that may be 0."""
    return 0 if text == "0" else at_least_one(text)


def named_value(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return name, value


def parser(about: str) -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="infer.py", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("--prompt", action="append", help="a request; may be given several times")
    what.add_argument("--prompts", type=Path, metavar="FILE", help="a file of requests")
    what.add_argument("--demo", action="store_true", help="serve a web page to ask from")
    made.add_argument("--out", type=Path, default=Path("outputs/infer"), help="results (default: %(default)s)")
    made.add_argument("--seed", type=count_of, default=0, help="of noise and sampling (default: %(default)s)")
    made.add_argument("--dry-run", action="store_true", help="show the plan and the first request; call nothing")

    who = made.add_argument_group("who works")
    who.add_argument("--model", help="model folder in BAGEL's layout, or a hub id (default: the demo's)")
    who.add_argument("--policy", choices=POLICIES, default="unified",
                     help="who thinks: the model, or an endpoint, while the model draws (default: %(default)s)")
    who.add_argument("--judge", choices=JUDGES,
                     help="who judges found pictures (default: self; pixels for tiny models)")
    who.add_argument("--endpoint", metavar="URL", help="OpenAI-compatible server, for --policy and --judge openai")
    who.add_argument("--endpoint-model", metavar="NAME", help="the model to ask there")
    who.add_argument("--endpoint-key", metavar="VARIABLE", help="variable of the environment that holds its key")
    who.add_argument("--endpoint-mode", choices=("tools", "tags"), default="tools",
                     help="native tool calls, or tags in plain text (default: %(default)s)")
    who.add_argument("--judge-endpoint", metavar="URL", help="another server for --judge openai")
    who.add_argument("--judge-model", metavar="NAME", help="the model to ask there")
    who.add_argument("--words", metavar="NAME|FILE", help="prompts: full, compact or a YAML file (default: model's)")
    who.add_argument("--judging-words", metavar="FILE", help="a YAML file of how pictures are judged")

    search = made.add_argument_group("evidence")
    search.add_argument("--search", metavar="SPEC", help="index:PATH, serper, wikipedia, record:DIR:SPEC, replay:DIR "
                        "(default: the demo's index)")
    search.add_argument("--search-option", metavar="NAME=VALUE", action="append", type=named_value, default=[],
                        help="of live back ends: cache, allow_local, reader, user_agent, ...")
    search.add_argument("--no-search", action="store_true", help="tell the model that there is nothing to search with")
    search.add_argument("--references", nargs="+", type=Path, metavar="FILE", help="use these pictures; search nothing")

    batch = made.add_argument_group("many requests")
    batch.add_argument("--batch", type=at_least_one, default=32,
                       help="requests that run together (default: %(default)s)")
    batch.add_argument("--gpus", type=at_least_one, metavar="N",
                       help="a worker on each of N visible devices; without any, N workers on the CPU")
    batch.add_argument("--shard", type=shard_of, metavar="I/N", help="only part I of N, for job arrays")
    batch.add_argument("--retry-failed", action="store_true", help="run again what failed, and nothing else")

    drawn = made.add_argument_group("drawing (defaults: the model's)")
    drawn.add_argument("--size", type=size_of, metavar="N|HxW", help="of the picture, in pixels")
    drawn.add_argument("--aspect", type=aspect_of, metavar="W:H", help="shape of a picture of that area")
    drawn.add_argument("--steps", type=int, help="points of time of the sampler")
    drawn.add_argument("--guidance", choices=GUIDANCE, help="a preset of the next five")
    drawn.add_argument("--text-scale", type=float, help="guidance by the text; 1 is none")
    drawn.add_argument("--image-scale", type=float, help="guidance by the references; 1 is none")
    drawn.add_argument("--interval", type=float, nargs=2, metavar=("LO", "HI"), help="guidance where LO < t <= HI")
    drawn.add_argument("--renorm", choices=RENORMS, help="how guided velocities are scaled back")
    drawn.add_argument("--renorm-min", type=float, help="least factor of that")
    drawn.add_argument("--shift", type=float, help="of the times towards noise")
    drawn.add_argument("--history", action="store_true",
                       help="draw from the whole history, as layout released is trained to (else from a fresh context)")

    written = made.add_argument_group("writing (default: the most likely token)")
    written.add_argument("--temperature", type=float, help="of sampling; 0 takes the most likely token")
    written.add_argument("--top-k", type=int, help="sample among so many tokens; 0: all")
    written.add_argument("--top-p", type=float, help="sample among the fewest tokens that reach this probability")
    written.add_argument("--max-new", type=int, help="tokens of the longest reply")
    written.add_argument("--redraw", type=count_of, default=2,
                         help="times that a cut-off, useless reply is drawn anew, sampled (default: %(default)s)")

    machine = made.add_argument_group("machine")
    machine.add_argument("--device-map", choices=("auto", "none"), default="none",
                         help="auto: over all cards and host memory; none: the first card, or the CPU (default)")
    machine.add_argument("--dtype", choices=("bf16", "fp32"),
                         help="of the weights (default: bf16 on a card, else fp32)")
    machine.add_argument("--quant", choices=("8bit", "4bit"), help="of the decoder's matrices; needs bitsandbytes")
    machine.add_argument("--port", type=int, default=7860, help="of --demo (default: %(default)s)")
    return made


def check_read(args: argparse.Namespace) -> None:
    """Raises UserError for an option that nobody would read."""
    openai = ("--policy openai or --judge openai", "openai" in (args.policy, args.judge))
    judge = ("--judge openai", args.judge == "openai")
    for option, (wanted, there) in {
        "endpoint": openai, "endpoint_model": openai, "endpoint_key": openai,
        "judge_endpoint": judge, "judge_model": judge,
    }.items():  # fmt: skip
        if getattr(args, option) is not None and not there:
            raise UserError(f"{_written(option)} is read with {wanted} only; add that, or leave it out")
    for option in ("references", "shard", "gpus", "retry_failed", "dry_run") if args.demo else ():
        if getattr(args, option):
            raise UserError(f"{_written(option)} is not for --demo; leave it out")
    names = [name for name, _ in args.search_option]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--search-option {name} is given {names.count(name)} times; give it once")


def _written(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def setup_of(args: argparse.Namespace, model: str, search: str) -> Setup:
    """What the arguments mean, given where the model lies and what is searched."""
    sampler = {"preset": args.guidance} if args.guidance else {}
    names = ("steps", "shift", "text_scale", "image_scale", "renorm", "renorm_min", "interval")
    sampler |= {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    texts = ("temperature", "top_k", "top_p", "max_new")
    return Setup(
        model=model, search=search, policy=args.policy, judge=args.judge, words=args.words,
        judging=args.judging_words, size=args.size, aspect=args.aspect, sampler=sampler,
        sampling={name: getattr(args, name) for name in texts if getattr(args, name) is not None},
        endpoint=_service(args.endpoint, args.endpoint_model, args.endpoint_key, args.endpoint_mode),
        judge_endpoint=_service(args.judge_endpoint, args.judge_model or args.endpoint_model, args.endpoint_key),
        seed=args.seed, history=args.history, redraw=args.redraw, tools=not args.no_search,
        search_options=dict(args.search_option), dtype=args.dtype, spread=args.device_map == "auto", quant=args.quant,
    )  # fmt: skip


def _service(url: str | None, model: str | None, key: str | None, mode: str = "tools") -> Service | None:
    return None if url is None else Service(url, model or "", key, mode)
