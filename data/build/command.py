"""`python -m data build [STEP] --spec FILE`: from a list of names to verified trajectories.

Steps, each up to and including itself (docs/data_build.md); without one, all of them and what is made at the end:

    entities       the list is read, each entity described from what a search finds
    prompts        its tasks are written
    trajectories   each is researched and recaptioned by the teacher
    pictures       and drawn once
    verify         and drawn again until the verifier accepts it
    assemble       and written in the training layout (the same as no step)

    status         how the run stands, also while it runs            [--json]
    sheet, stats   the contact sheet; statistics and near-duplicates, made anew
    merge          shards become one build                           [--partial]

Exit codes: 0 all is settled, 3 something failed, waits for a budget or is left, 4 a service is down or refuses the
key, 2 usage, 130 and 143 interrupted. The same command continues.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from data.build import merging, quality
from data.build.assembly import items_of
from data.build.journal import JOURNAL, SETTLED, Journal
from data.build.pipeline import STEPS, Pipeline, Until
from data.build.price import ENOUGH, Job, estimate, measured, record, usual
from data.build.services import Services
from data.build.spec import Spec, read_spec
from data.build.stages import Stages, all_stages
from data.build.status import View, comparison, read_status, services_table, table
from unify_agent.agent.options import at_least_one, shard_of
from unify_agent.errors import UserError

OTHER = ("status", "sheet", "stats", "merge")
SOME = 3
"""Exit code: something is not settled."""
PATIENT = 0.5
"""Seconds until it is told what a stop waits for."""
AGAIN = "interrupted; run the same command again to continue"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description, parser.formatter_class = __doc__, argparse.RawDescriptionHelpFormatter
    parser.add_argument("step", nargs="?", choices=(*STEPS, *OTHER), metavar="STEP", help="see above (default: all)")
    parser.add_argument("--spec", type=Path, required=True, metavar="FILE", help="the YAML file that says it all")
    parser.add_argument("--shard", type=shard_of, metavar="I/N", help="part I of N, for several machines; then merge")
    parser.add_argument("--limit", type=at_least_one, metavar="N", help="the first N entities only")
    parser.add_argument("--retry-failed", action="store_true", help="only what failed or waited for a budget")
    parser.add_argument("--dry-run", action="store_true", help="price what is left; no call is made")
    parser.add_argument("--partial", action="store_true", help="merge: shards as far as they are")
    parser.add_argument("--json", action="store_true", help="with status and --dry-run: one JSON object")


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    if args.partial and args.step != "merge":
        raise UserError("--partial: only merge knows it")
    if args.json and not (args.step == "status" or args.dry_run):
        raise UserError("--json: only status and --dry-run print JSON")
    for name in ("limit", "retry_failed", "dry_run"):
        if args.step in OTHER and getattr(args, name):
            raise UserError(f"--{name.replace('_', '-')}: {args.step} does not know it; leave it out")
    if args.step == "merge" and args.shard is not None:
        raise UserError("--shard: merge takes all shards; leave it out")
    spec = read_spec(args.spec)
    folder = merging.folder_of(spec.out, args.shard)
    if args.step == "status":
        return _status(folder, args.json)
    if args.step == "merge":
        return _merge(spec, args.partial)
    if args.step == "sheet":
        print(quality.sheet(folder, spec))
        return 0
    if args.step == "stats":
        quality.statistics(folder, spec)
        print(folder / quality.FOLDER / "statistics.json")
        return 0
    merging.check_free(spec.out, args.shard)
    with _Signals() as signals:
        try:
            return _build(args, spec, folder, all_stages(), signals)
        except _Interrupted as error:
            print(f"stopped: {AGAIN}", file=sys.stderr)
            return error.code


def _build(args: argparse.Namespace, spec: Spec, folder: Path, stages: Stages, signals: _Signals) -> int:
    listed, refused = stages.read(spec)
    entities = merging.part_of(listed, args.shard)
    for where, why in refused:
        print(f"refused: {why.detail or f'{where}: {why.reason}'}", file=sys.stderr)
    with Journal(folder / JOURNAL) as journal, Services(spec, folder) as services:
        until: Until = args.step or "assemble"
        pipeline = Pipeline(entities, spec, services, stages, journal, until, args.retry_failed, args.limit)
        if args.dry_run:
            return _priced(pipeline, args.json)
        with View(pipeline, folder) as view, signals.awaited(pipeline):
            pipeline.run(lambda: _tick(view, signals, pipeline))
        if pipeline.halted:
            view.write("halted")
            print(f"stopped: {pipeline.halted}", file=sys.stderr)
            return pipeline.code
        whole = until == "assemble"
        if whole and args.shard is None:
            finish(folder, spec, stages, pipeline.current())
        left = any(pipeline.tally.left(spec.prompts.per_entity))
        state = "unfinished" if left or len(pipeline.entities) < len(entities) or not whole else "done"
        found = view.write(state)
        _tell(found, pipeline, folder, args.shard)
    return SOME if left and (whole or found["failed"] or found["waiting"]) else 0


def _tick(view: View, signals: _Signals, pipeline: Pipeline) -> None:
    signals.look(pipeline)
    view()


def finish(folder: Path, spec: Spec, stages: Stages, current: set[str]) -> None:
    """What is made when all ran: the benchmark, the training layout of the tasks in `current`, quality control."""
    withheld = stages.split(folder, spec)
    for why, count in sorted(Counter(withheld.values()).items()):
        print(f"left out of train: {count} done ({why})", file=sys.stderr)
    stages.lay_out(folder, spec, set(withheld) | (set(items_of(folder)) - current))
    stages.report(folder, spec)


def _tell(found: dict[str, Any], pipeline: Pipeline, folder: Path, shard: tuple[int, int] | None) -> None:
    """The end of a run, on stderr, and on stdout where to look."""
    tally, console = pipeline.tally, Console(stderr=True, width=None if sys.stderr.isatty() else 120)
    console.print(table(found))
    if pipeline.short:
        print(f"budget spent: {', '.join(sorted(pipeline.short))}; raise it in the spec to go on", file=sys.stderr)
    tasks, entities = (
        sum(known.state in SETTLED for _, known in pipeline.journal.all(kind)) for kind in ("task", "entity")
    )
    if pipeline.until == "assemble" and tasks:
        print(comparison(pipeline.spec, pipeline.services, tasks, entities), file=sys.stderr)
    if pipeline.until != "assemble":
        print(f"{pipeline.reached} came as far as {pipeline.until}", file=sys.stderr)
    elif shard is not None:
        print(f"{folder}: {tally.count('task', 'done')} done; `merge` makes one build of all shards")
    else:
        print(f"{folder / 'train'}: {tally.count('task', 'done')} trajectories; {folder / 'quality' / 'index.html'}")


def _priced(pipeline: Pipeline, as_json: bool) -> int:
    """`--dry-run`: what is left to pay."""
    spec, tally = pipeline.spec, pipeline.tally
    entities, tasks = tally.left(spec.prompts.per_entity)
    ended = tally.settled("task")
    on_measure = ended >= ENOUGH
    if on_measure:
        found, basis = measured(pipeline.services.totals(), ended, tasks), f"the mean of the {ended} tasks that ended"
    else:
        told = [
            f"{name}: {each.entity:g} calls an entity, {each.task:g} a task, {each.prompt} + {each.completion} tokens"
            for name, each in usual(spec).items()
        ]
        found, basis = estimate(spec, Job(entities, tasks)), "\n  ".join(["assumptions", *told])
    if as_json:
        said = {"entities": entities, "tasks": tasks, "basis": basis, "measured": on_measure, "currency": spec.currency}
        print(json.dumps(said | record(found), ensure_ascii=False))
        return 0
    priced = record(found)
    print(f"{entities} entities to describe, {tasks} tasks to make; {basis}")
    Console(width=None if sys.stdout.isatty() else 120).print(services_table(priced["services"], spec.currency))
    print(f"in all {priced['money']:,.2f} {spec.currency}")
    return 0


def _status(folder: Path, as_json: bool) -> int:
    found = read_status(folder)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return 0
    print(f"{folder}: {found['state']}" + (f" ({found['why']})" if found.get("why") else ""))
    Console(width=None if sys.stdout.isatty() else 120).print(table(found))
    return 0


def _merge(spec: Spec, partial: bool) -> int:
    stages = all_stages()
    listed, _ = stages.read(spec)
    merging.merge(spec, partial)
    done = merging.done_in(spec.out, {entity.id for entity in listed})
    finish(spec.out, spec, stages, done)
    print(f"{spec.out / 'train'}: {len(done)} done in all shards; {spec.out / 'quality' / 'index.html'}")
    return 0


class _Interrupted(BaseException):
    """A signal came where nothing is under way that must be brought to an end."""

    def __init__(self, number: int) -> None:
        self.code = 128 + number
        super().__init__(number)


class _Signals:
    """SIGINT and SIGTERM: the first ends a run in order, the second leaves at once. What is kept stays whole.

    While threads work a handler takes a note and nothing else: the main thread may hold a lock, or be printing.
    """

    def __init__(self) -> None:
        self._awaited, self._caught, self._since = False, 0, math.inf

    def __enter__(self) -> _Signals:
        self._before = {each: signal.signal(each, self._note) for each in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)
        if not self._awaited:
            raise _Interrupted(number)
        self._caught = number

    @contextmanager
    def awaited(self, pipeline: Pipeline) -> Iterator[None]:
        """While this lasts `look` sees to signals."""
        self._awaited = True
        try:
            yield
        finally:
            self._awaited = False
        self.look(pipeline)

    def look(self, pipeline: Pipeline) -> None:
        """Stops the pipeline when a signal came."""
        if self._caught and not pipeline.halted:
            self._since = time.monotonic()
            pipeline.stop(AGAIN, 128 + self._caught)
        elif self._caught and self._awaited and time.monotonic() - self._since > PATIENT:
            self._since = math.inf
            print("stopping: calls under way are brought to an end; once more to leave at once", file=sys.stderr)
