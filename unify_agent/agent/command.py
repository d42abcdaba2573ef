"""`python infer.py`: reads what is asked for, leaves out what is done, runs the rest, accounts for every item."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from unify_agent.agent import options
from unify_agent.agent.batch import Outcome, Runner
from unify_agent.agent.console import Told
from unify_agent.agent.crew import Setup, assemble, clients_of
from unify_agent.agent.fleet import SOME_NOT, Fleet, devices
from unify_agent.agent.plan import dry_run
from unify_agent.agent.record import Recorder
from unify_agent.agent.requests import Asked, Refused, Request, check_references, read_prompts, request_of
from unify_agent.agent.summary import STATUSES, Summary
from unify_agent.agent.tools import is_down
from unify_agent.errors import USAGE, UserError

DEMO_MODEL = Path("outputs/demo/model")
DEMO_SEARCH = Path("outputs/demo/world/search")
SERVICE_DOWN = 4
GIVE_UP = 8
"""Items in a row that a service spoiled, after which the rest is not begun."""
SAVE_EVERY = 10.0
"""Seconds after which the summary is written in between."""


def main(arguments: Sequence[str] | None, about: str) -> int:
    """Runs the command; returns its exit code. `about` stands in its help."""
    args = options.parser(about).parse_args(arguments)
    options.check_read(args)
    console = Console(stderr=True, highlight=False)
    asked = asked_for(args)
    setup = options.setup_of(args, *_places(args, asked, console))
    if args.dry_run:
        return dry_run(setup, asked, args.out, args.batch, args.gpus)
    if args.demo:
        from unify_agent.agent.demo import serve

        return serve(setup, args.out, args.port)
    return draw_all(setup, asked, args, console)


def asked_for(args: argparse.Namespace) -> Asked:
    """The requests of a command. Raises UserError for what is given on the command line and cannot be taken."""
    given = check_references(args.references or (), "--references")
    if args.demo:
        return Asked()
    if args.prompts is not None:
        asked = read_prompts(args.prompts)
    else:
        unique = dict.fromkeys(args.prompt)
        asked = Asked([request_of(text, f"--prompt {number}") for number, text in enumerate(unique, 1)])
    if given:
        asked.requests = [replace(request, references=given) for request in asked.requests]
    return asked.shard(*args.shard) if args.shard else asked


def _places(args: argparse.Namespace, asked: Asked, console: Console) -> tuple[str, str]:
    """The model and the search back end: those that are named, else the demo's."""
    model = args.model or str(_demo(DEMO_MODEL, "--model", "model", console))
    needed = args.demo or not all(request.references for request in asked.requests)
    if args.search or args.no_search or not needed:
        return model, args.search or ""
    return model, f"index:{_demo(DEMO_SEARCH, '--search', 'search index', console)}"


def _demo(path: Path, option: str, what: str, console: Console) -> Path:
    if not path.exists():
        raise UserError(f"{option} is not given and the demo has left no {what} in {path} yet: run `make demo` first")
    console.print(f"{option} is not given: taking the demo's {what}, {path}")
    return path


def draw_all(setup: Setup, asked: Asked, args: argparse.Namespace, console: Console) -> int:
    """Runs what is not finished yet, each item written as soon as its batch is drawn; returns the exit code."""
    workers = devices(args.gpus) if args.gpus else []
    _check(setup)
    summary, recorder = Summary(args.out, args.shard), Recorder(args.out, setup.policy, pages=True)
    waiting = _waiting(setup, asked, recorder, summary, args.retry_failed)
    refused = [Outcome.failed(each, "bad_input", each.reason) for each in asked.refused]
    keys = [request.key for request in asked.requests] + [each.key for each in asked.refused]
    if len(waiting) < len(asked.requests):
        console.print(f"{len(asked.requests) - len(waiting)} of {len(asked.requests)} were done before")
    with Told(console, len(waiting) + len(refused), len(refused)) as told:
        for outcome in refused:
            summary.put(outcome)
            told.outcome(outcome, "")
        down = False
        if waiting:
            down = _run(setup, waiting, args, recorder, summary, told, workers)
        counts = summary.counts(keys)
        ended = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
        told.line(f"{ended}; {_saved(summary)}")
    if down:
        return SERVICE_DOWN
    return 0 if set(counts) <= {"ok"} else SOME_NOT


def _saved(summary: Summary) -> str:
    """Writes the summary; says where it is, or why it is not."""
    try:
        summary.write()
        summary.write_page()
    except OSError as error:
        return f"{summary.path} cannot be written: {error.strerror}"
    return str(summary.path)


def _waiting(
    setup: Setup, asked: Asked, recorder: Recorder, summary: Summary, failed_only: bool
) -> list[Request]:
    """The requests that have to be run. Ids that hold another request are refused."""
    from unify_agent.agent.load import weights_hash
    from unify_agent.model.folder import ModelFolder

    weights = weights_hash(ModelFolder(setup.model))
    waiting, kept = [], []
    for request in asked.requests:
        try:
            made = setup.made_with(request, weights)
            record = recorder.finished(request.category, request.id, request.prompt, made)
        except UserError as error:
            asked.refused.append(Refused(request.given_id or request.id, str(error)))
            continue
        kept.append(request)
        if record is not None:
            summary.recall(request.key, record, request.given_id)
        elif not failed_only or summary.failed(request.key) or recorder.failed(request.category, request.id):
            waiting.append(request)
    asked.requests = kept
    return waiting


def _check(setup: Setup) -> None:
    """Whether services that are asked all the time answer at all. Raises UserError with the exit code for that."""
    for client in clients_of(setup).values():
        from unify_agent.judging import ChatError

        try:
            client.probe()
        except ChatError as error:
            raise UserError(f"{client.endpoint.base_url}: {error}", SERVICE_DOWN if is_down(error) else USAGE) from None
        finally:
            client.close()


def _run(
    setup: Setup,
    waiting: Sequence[Request],
    args: argparse.Namespace,
    recorder: Recorder,
    summary: Summary,
    told: Told,
    workers: Sequence[str | None],
) -> bool:
    """Runs requests; whether a service was down for any of them."""
    left = {request.key: request for request in waiting}
    last: deque[bool] = deque(maxlen=GIVE_UP)
    down, saved = False, time.monotonic()
    outcomes = _in_workers(setup, waiting, args, told, workers) if workers else _here(setup, waiting, args, told)
    try:
        for outcome in outcomes:
            left.pop(outcome.key, None)
            summary.put(outcome)
            told.outcome(outcome, _shown(recorder, outcome))
            down = down or outcome.down
            last.append(outcome.down)
            if time.monotonic() - saved > SAVE_EVERY:
                _saved(summary)
                saved = time.monotonic()
            if len(last) == GIVE_UP and all(last) and left:
                told.line(f"{GIVE_UP} items in a row failed by a service ({outcome.error}); the rest is not begun")
                for request in left.values():
                    summary.put(Outcome.failed(request, "not_run", "a service is down", down=True))
                break
    finally:
        outcomes.close()
        if len(left) < len(waiting):
            _saved(summary)
    return down


def _here(
    setup: Setup, waiting: Sequence[Request], args: argparse.Namespace, told: Told
) -> Generator[Outcome, None, None]:
    """Outcomes from a crew in this process."""
    crew = assemble(setup)
    crew.painter.on_step = told.on_step
    runner = Runner(crew, Recorder(args.out, crew.policy.name, pages=True), told.episode_event)
    for start in range(0, len(waiting), args.batch):
        yield from runner.run(waiting[start : start + args.batch])


def _in_workers(
    setup: Setup, waiting: Sequence[Request], args: argparse.Namespace, told: Told, workers: Sequence[str | None]
) -> Generator[Outcome, None, None]:
    yield from Fleet(setup, args.out, workers, args.batch, told.event).run(waiting)


def _shown(recorder: Recorder, outcome: Outcome) -> str:
    """Where to look at an item."""
    picture = recorder.out / outcome.category / "images" / f"{outcome.id}_0.png"
    if picture.is_file():
        return str(picture)
    path = recorder.path(outcome.category, outcome.id)
    return str(path) if path.is_file() else ""
