"""Items through their stages, each in a thread of its own, so that stages overlap and no slow one holds others up.

An entity is described and its tasks are written; each task is researched, recaptioned, drawn and verified until a trial
is accepted, and assembled. `at_once` threads work, those with a task before those that begin an entity: so as many
things are in memory as are in work, however long the list is. What is settled stands in the journal and is passed over
by the next run as long as nothing that decided it has changed; the rest is done again from the answers that were kept.
"""

from __future__ import annotations

import json
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

from data.build.contracts import Dropped, Entity, Failed, Halted, OverBudget, Task, Trial, is_of_the_disk
from data.build.items import ITEMS
from data.build.journal import SETTLED, Journal, Outcome
from data.build.services import Services
from data.build.spec import Spec
from data.build.stages import Stages
from data.build.tally import Tally
from unify_agent.errors import STOPPED, USAGE, UserError
from unify_agent.files import digest
from unify_agent.judging import ChatError
from unify_agent.search.base import SearchError

Until = Literal["entities", "prompts", "trajectories", "pictures", "verify", "assemble"]
STEPS: tuple[Until, ...] = get_args(Until)
TICK = 0.1
"""Seconds between two looks at the signals."""
DOWN = 4
"""Exit code: a service is down, or does not take the key."""
WHOLE = ("done", "held_out")
"""States that a stop cannot have brought about."""


class Pipeline:
    """One run over `entities`, or the first `limit` of them. `until`: the last step that is taken; `again`: only those
    that failed or wait.

    made: digest of what decides each entity, by id. halted, code: why the run could not go on ("" while it can) and
    the exit code that it means. short: services whose budget is spent. reached: entities or
    tasks that came as far as `until`, which is not the end. tally: the counts.
    """

    def __init__(
        self, entities: Sequence[Entity], spec: Spec, services: Services, stages: Stages, journal: Journal,
        until: Until = "assemble", again: bool = False, limit: int | None = None,
    ) -> None:  # fmt: skip
        self.spec, self.services, self.stages, self.journal, self.until = spec, services, stages, journal, until
        self.entities, self.again = entities[:limit], again
        self.halted, self.code = "", 0
        self.reached = 0
        self.short: set[str] = set()
        self._parts = digest(json.dumps({k: v for k, v in spec.parts.items() if k != "entities"}, sort_keys=True))
        self.made = {entity.id: self._digest(entity) for entity in entities}
        self.tally = Tally(journal, {entity.id: self.made[entity.id] for entity in self.entities})
        self._feed = self._due()
        self._tasks: deque[tuple[Task, str]] = deque()
        self._busy = 0
        self._change = threading.Condition()
        self._stopped = threading.Event()

    # ------------------------------------------------------------ the run

    def run(self, tick: Callable[[], object] = lambda: None) -> None:
        """Works until nothing is left or `stop` is called. `tick`: called now and then from this thread; what it raises
        ends the run once no thread works any more.
        """
        workers = [
            threading.Thread(target=self._work, name=f"build-{number}", daemon=True)
            for number in range(self.spec.at_once)
        ]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                while worker.is_alive():
                    worker.join(TICK)
                    tick()
        except BaseException as error:
            self.stop(str(error))
            for worker in workers:
                if worker.ident is not None:
                    worker.join()
            raise

    def stop(self, why: str, code: int = USAGE) -> None:
        """Nothing new is begun and no call is made any more; the first reason stands."""
        with self._change:
            if not self.halted:
                self.halted, self.code = why, code
            self._stopped.set()
            self._change.notify_all()
        self.services.stop()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._do(*job)
            except Exception as error:
                self.stop(f"crashed: {type(error).__name__}: {_told(error)}", STOPPED)
            finally:
                with self._change:
                    self._busy -= 1
                    self._change.notify_all()

    def _next(self) -> tuple[Entity | Task, str] | None:
        """The next job, with the digest of what decides it; waits while one that is under way may bring new ones."""
        with self._change:
            while not self._stopped.is_set():
                job: tuple[Entity | Task, str] | None = self._tasks.popleft() if self._tasks else None
                if job is None and not self.short:
                    job = next(self._feed, None)
                if job is not None:
                    self._busy += 1
                    return job
                if not self._busy:
                    return None
                self._change.wait()
        return None

    def _do(self, thing: Entity | Task, made: str) -> None:
        """A job, and what became of it. Nothing that a stage raises ends a thread."""
        tasks: Sequence[Task] = ()
        outcome: Outcome | None
        try:
            if isinstance(thing, Entity):
                outcome, tasks = self._entity(thing, made)
            else:
                outcome = self._task(thing, made)
        except Dropped as dropped:
            outcome = self._outcome(thing, made, "dropped", dropped.stage, dropped.reason, dropped.detail)
        except OverBudget as over:
            with self._change:
                self.short.add(over.service)
            outcome = self._outcome(thing, made, "waiting", "budget", over.service)
        except Halted as halted:
            return self.stop(str(halted), DOWN)
        except Failed as failed:
            outcome = self._outcome(thing, made, "failed", failed.stage, failed.reason, failed.detail)
        except (ChatError, SearchError) as error:
            outcome = self._outcome(thing, made, "failed", "service", error.kind, str(error))
        except UserError as error:  # the log of answers cannot be written
            return self.stop(str(error))
        except OSError as error:
            if is_of_the_disk(error):
                return self.stop(f"{error.filename or 'a file'} cannot be written: {error.strerror}")
            outcome = self._outcome(thing, made, "failed", "file", error.strerror or "error", str(error))
        except Exception as error:
            outcome = self._outcome(thing, made, "failed", "crashed", type(error).__name__, _told(error))
        if outcome is None or (self._stopped.is_set() and outcome.state not in WHOLE):
            return None  # what was broken off says nothing about the item
        if self._noted(outcome):
            with self._change:
                self._tasks += [(task, made) for task in tasks]
                self._change.notify_all()
        return None

    def _noted(self, outcome: Outcome) -> bool:
        """Whether an outcome could be written down."""
        try:
            self.journal.append(outcome)
        except OSError as error:
            self.stop(f"{self.journal.path} cannot be written: {error.strerror}")
            return False
        self.tally.take(outcome)
        return True

    # ------------------------------------------------------------ what is due

    def _due(self) -> Iterator[tuple[Entity, str]]:
        for entity in self.entities:
            made = self.made[entity.id]
            if self.again and not self._unfinished(entity):
                continue
            if not self._settled(entity, made):
                yield entity, made

    def _digest(self, entity: Entity) -> str:
        """Digest of all that decides what becomes of an entity and its tasks, short."""
        said = asdict(entity)
        said["seeds"] = [_state(seed) for seed in entity.seeds]
        return digest(self._parts, json.dumps(said, sort_keys=True, ensure_ascii=True))[:16]

    def _settled(self, entity: Entity, made: str) -> bool:
        known = self.journal.known("entity", entity.id)
        if known is None or known.made != made or known.state not in SETTLED:
            return False
        return all(self._is(task, made) for task in known.tasks)

    def _is(self, task: str, made: str) -> bool:
        known = self.journal.known("task", task)
        return known is not None and known.made == made and known.state in SETTLED

    def _unfinished(self, entity: Entity) -> bool:
        known = self.journal.known("entity", entity.id)
        found = [] if known is None else [known, *(self.journal.known("task", task) for task in known.tasks)]
        return any(each is not None and each.state not in SETTLED for each in found)

    def current(self) -> set[str]:
        """The tasks that are done as the spec and the list now have them, of all entities."""
        found = set()
        for name, made in self.made.items():
            known = self.journal.known("entity", name)
            for task in known.tasks if known is not None and known.made == made else ():
                of = self.journal.known("task", task)
                if of is not None and of.made == made and of.state == "done":
                    found.add(task)
        return found

    # ------------------------------------------------------------ the steps

    def _takes(self, step: Until) -> bool:
        return STEPS.index(step) <= STEPS.index(self.until)

    def _reached(self) -> None:
        with self._change:
            self.reached += 1

    def _entity(self, entity: Entity, made: str) -> tuple[Outcome | None, Sequence[Task]]:
        """What became of an entity, and its tasks that are due."""
        described = self.stages.describe(entity, self.spec, self.services)
        if not self._takes("prompts"):
            self._reached()
            return None, ()
        tasks, refused = self.stages.tasks(described, self.spec, self.services)
        due = [task for task in tasks if self._due_task(entity.id, task.id, made)]
        for task, why in refused:
            if not self._is(task.id, made):
                self._noted(self._outcome(task, made, "dropped", why.stage, why.reason, why.detail))
        names = [task.id for task in (*tasks, *(task for task, _ in refused))]
        return self._outcome(described, made, "done", tasks=names), due

    def _due_task(self, entity: str, task: str, made: str) -> bool:
        """Whether a task is to be taken up; with `again` none that neither failed nor waits, nor its entity did."""
        if self._is(task, made):
            return False
        before, known = self.journal.known("entity", entity), self.journal.known("task", task)
        if not self.again or before is None or before.state not in SETTLED:
            return True
        return known is not None and known.state not in SETTLED

    def _task(self, task: Task, made: str) -> Outcome | None:
        if self.stages.held_out(task.entity, self.spec):
            return self._outcome(task, made, "held_out")
        if not self._takes("trajectories"):
            self._reached()
            return None
        trials: list[Trial] = []
        try:
            done = self._through(task, trials)
        except (Dropped, Failed) as fault:
            state: Literal["dropped", "failed"] = "dropped" if isinstance(fault, Dropped) else "failed"
            return self._outcome(task, made, state, fault.stage, fault.reason, fault.detail, trials)
        if not done:
            self._reached()
            return None
        return self._outcome(task, made, "done", trials=trials)

    def _through(self, task: Task, trials: list[Trial]) -> bool:
        """Stages 2 to 6; whether it came to the end. `trials` is filled on the way."""
        spec, services, stages = self.spec, self.services, self.stages
        trajectory = stages.recaption(task, stages.research(task, spec, services), spec, services)
        if not self._takes("pictures"):
            return False
        for number in range(1, spec.verification.trials + 1):
            picture = stages.draw(task, trajectory, number, spec, services)
            if not self._takes("verify"):
                return False
            trials.append(stages.verify(task, trajectory, number, picture, spec, services))
            if trials[-1].accepted:
                break
        else:
            reason, _, said = trials[-1].reason.partition(": ")  # of the judge's own words no two are the same
            raise Dropped("verification", reason, f"none of {len(trials)} trials was accepted; the last: {said}")
        if self._takes("assemble"):
            stages.assemble(task, trajectory, trials, services.folder / ITEMS, spec, services)
        return self._takes("assemble")

    def _outcome(
        self, thing: Entity | Task, made: str, state: Any, stage: str = "", reason: str = "", detail: str = "",
        trials: Sequence[Trial] = (), tasks: Sequence[str] = (),
    ) -> Outcome:  # fmt: skip
        said = {"stage": stage, "reason": reason, "detail": " ".join(detail.split())[:500], "made": made}
        if isinstance(thing, Entity):
            known = self.journal.known("entity", thing.id)
            if state not in SETTLED and known is not None and known.made == made:
                tasks = known.tasks  # that it fails now makes nothing undone
            about: dict[str, Any] = {
                "category": thing.category, "country": thing.country, "names": dict(thing.names),
                "remark": thing.remark, "attributes": list(thing.attributes), "seeds": [str(s) for s in thing.seeds],
            }  # fmt: skip
            if thing.given_id:
                about["given_id"] = thing.given_id
            return Outcome("entity", thing.id, state, about=about | {"tasks": list(tasks)}, **said)
        about = {
            "category": thing.entity.category, "prompt": thing.prompt, "language": thing.language, "form": thing.form,
            "difficulty": thing.difficulty, "trials": [self._trial(each) for each in trials],
        }  # fmt: skip
        return Outcome("task", thing.id, state, thing.entity.id, about=about, **said)

    def _trial(self, trial: Trial) -> dict[str, Any]:
        picture = trial.picture.relative_to(self.services.folder).as_posix()
        return asdict(trial) | {"picture": picture, "scores": dict(trial.scores)}


def _state(file: Path) -> list[Any]:
    """What tells one version of a file from another, without reading it."""
    try:
        stat = file.stat()
    except OSError:
        return [file.name]
    return [file.name, stat.st_size, stat.st_mtime_ns]


def _told(error: Exception) -> str:
    """What went wrong in our own code, and where."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error} ({Path(place.filename).name}:{place.lineno})"
