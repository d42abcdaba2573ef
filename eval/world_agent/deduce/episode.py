"""Plays and scores an episode of the deduction track.

    answers.jsonl   every answer, with why it was not taken where it was not
    events.jsonl    what the world did between two questions, with a hash of the whole state

As in maintenance, all of it follows from the family, the fold and the answers, so a stopped run is gone through again.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

from eval.world_agent.asking import INCOMPLETE, Asking, cost_of
from eval.world_agent.chat import PROMPTS
from eval.world_agent.deduce.brief import Condition, Mode, brief, words
from eval.world_agent.deduce.family import Family, load_family
from eval.world_agent.deduce.questions import Prediction, Problem, Question, Refused, Walk, read_answer
from eval.world_agent.deduce.readouts import READOUTS, asked_of, readout_values
from eval.world_agent.journal import Journal, read_lines
from eval.world_agent.runs import FORMAT, RunFolder, case_file, read_run, source_digest
from eval.world_agent.scoring import decimal, mean
from eval.world_agent.talk import Player, Talk, Turn, alone
from unify_agent.errors import UserError
from unify_agent.files import digest, write_json
from unify_agent.judging import assistant, system, user

ENGINE = ("expressions.py", "deduce/family.py", "deduce/simulation.py", "deduce/questions.py", "deduce/readouts.py")
EVENT = ("number", "action", "rejected", "answered", "fired", "seen", "state_hash")


class Episode:
    """One episode, kept in `folder`. `attempts`: answers that a question may take."""

    def __init__(
        self, folder: Path, family: Family, mode: Mode, condition: Condition, fold: int, player: Player,
        attempts: int = 3, budget: int | None = None,
    ):  # fmt: skip
        self.family, self.mode, self.condition, self.fold = family, mode, condition, fold
        self.player, self.attempts, self.budget = player, attempts, budget
        identity = {
            "format": FORMAT, "track": "deduce", "case": family.id, "case_version": family.file.version,
            "language": family.language, "mode": mode, "condition": condition, "fold": fold,
            "player": player.identity, "attempts": attempts,
            "digests": {
                "engine": source_digest(*ENGINE), "case": family.digest,
                "prompts": digest(PROMPTS / "deduce.yaml", source_digest("deduce/brief.py")),
            },
        }  # fmt: skip
        self.folder = RunFolder(folder, identity)

    def play(self) -> None:
        """Play to the end. Raises UserError when the endpoint fails or the budget of tokens is spent."""
        alone(self.talk(), self.player)

    def talk(self) -> Talk[None]:
        """The episode as a conversation; see `play`."""
        self.folder.open([file for file in self.family.files if file.is_file()])
        path, told = self.folder.path, words(self.family.language)
        with Journal(path / "answers.jsonl", "number", "reply") as answers, Journal(path / "events.jsonl") as events:
            asking, walk = Asking(self.folder, answers, self.budget), Walk(self.family, self.mode, self.fold)
            messages = [system(brief(self.family, self.mode, self.condition))]
            while not walk.over:
                question = walk.question()
                messages.append(user(question.text()))
                prediction, rejected = None, 0
                for attempt in range(1, self.attempts + 1):
                    asked = Turn(question.number, attempt, list(messages), question=question)
                    reply = yield from asking.reply(asked, {"number": question.number, "attempt": attempt})
                    messages.append(assistant(reply.text or "..."))
                    problem = reply.problem
                    if not problem:
                        try:
                            prediction = read_answer(reply.text, question)
                            break
                        except Problem as found:
                            problem = str(found)
                            rejected += isinstance(found, Refused)
                    if attempt < self.attempts:
                        messages.append(user(told["problem"].format(problem=problem)))
                action = prediction.action if prediction else None
                walk.advance(action)
                events.put({
                    "number": question.number, "t0": question.t0, "t1": question.t1, "action": action,
                    "rejected": rejected, "answered": prediction is not None,
                    "fired": walk.world.fired_since(question.t0), "seen": walk.world.seen(),
                    "state_hash": walk.world.hash(),
                })  # fmt: skip


def family_of(path: Path) -> Family:
    """The family of a run as it was played. Raises UserError when its files were changed."""
    run = read_run(path)
    family = load_family(case_file(path, run))
    if family.digest != run["digests"]["case"]:
        raise UserError(f"{path / 'case'}: the case was changed after it was played")
    return family


def replay_episode(path: Path) -> list[tuple[Question, dict[str, Any]]]:
    """Run the engine along the recorded actions and compare every hash. Raises UserError where they differ.

    Returns the questions with what the world did after each.
    """
    run, family = read_run(path), family_of(path)
    walk, found = Walk(family, run["mode"], run["fold"]), []
    events = read_lines(path / "events.jsonl", *EVENT)
    for event in events:
        if walk.over:
            raise UserError(f"{path / 'events.jsonl'}: more than {walk.of} events")
        question = walk.question()
        if refusal := walk.world.refusal(event["action"]):
            raise UserError(f"{path / 'events.jsonl'}: event {event['number']}: {refusal}")
        walk.advance(event["action"])
        made = walk.world.hash(), walk.world.seen(), walk.world.fired_since(question.t0)
        if made != (event["state_hash"], event["seen"], event["fired"]):
            raise UserError(f"{path / 'events.jsonl'}: event {event['number']} replays differently")
        found.append((question, event))
    return found


def _final(path: Path, question: Question, answers: list[dict[str, Any]]) -> Prediction | None:
    for record in answers:
        reply = record["reply"]
        if record["number"] == question.number and not reply["problem"]:
            try:
                return read_answer(reply["text"], question)
            except Problem:
                continue
    return None


def score_episode(path: Path) -> dict[str, Any]:
    """Score a finished episode from its records and write `score.json`. Needs no network. Raises UserError."""
    run, family = read_run(path), family_of(path)
    played = replay_episode(path)
    walk = Walk(family, run["mode"], run["fold"])
    if len(played) != walk.of:
        raise UserError(f"{path}: {len(played)} of {walk.of} questions are played; finish it first", INCOMPLETE)
    answers = read_lines(path / "answers.jsonl", "number", "reply")
    questions, values = [], {name: [] for name in READOUTS}  # type: ignore[var-annotated]
    missing = dict.fromkeys(READOUTS, 0)
    for question, event in played:
        said = _final(path, question, answers)
        found = {} if said is None else readout_values(question, event, said)
        for name in asked_of(question):
            if name in found:
                values[name].append(found[name])
            else:
                missing[name] += 1
        questions.append({
            "number": question.number, "t0": question.t0, "action": event["action"], "rejected": event["rejected"],
            "state_hash": event["state_hash"],
            "f1": {name: decimal(f) for name, (f, _) in found.items()} if found else "unanswered",
        })  # fmt: skip
        walk.advance(event["action"])
    result = {
        "track": "deduce", "case": family.id, "language": family.language, "mode": run["mode"],
        "condition": run["condition"], "fold": run["fold"], "player": run["player"]["player"], "served": run["served"],
        "digests": {**run["digests"], "scorer": source_digest(*ENGINE)},
        "readouts": {name: _readout(values[name], missing[name]) for name in READOUTS if values[name] or missing[name]},
        "outcome": {
            "goal": walk.world.holds("task", family.goal),
            "upkeep": {key: decimal(Fraction(n, family.file.horizon)) for key, n in walk.world.kept.items()},
        },
        "rejected": sum(event["rejected"] for _, event in played),
        "unanswered": sum(not event["answered"] for _, event in played),
        "cost": cost_of([each["reply"] for each in answers]),
        "questions": questions,
    }  # fmt: skip
    write_json(path / "score.json", result)
    return result


def _readout(values: list[tuple[Fraction, Fraction]], missing: int) -> dict[str, Any]:
    """The mean of a readout; null as long as a question of it is unanswered."""
    answered = mean(f for f, _ in values)
    return {
        "f1": None if missing else decimal(answered), "f1_of_answered": decimal(answered),
        "path_f1": decimal(mean(f for _, f in values)), "answered": len(values), "unanswered": missing,
    }  # fmt: skip
