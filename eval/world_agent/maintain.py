"""Plays the maintenance track: a player against the engine, then the judge, then the score.

Everything the engine does follows from the case, the tier and what the player said. So a run that was stopped is
simply played again with the recorded turns, checked row by row against the log, and continued where they end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from data.progress import Progress
from eval.world_agent.asking import INCOMPLETE, Asking, cost_of
from eval.world_agent.cases import Case, load, read_yaml
from eval.world_agent.chat import PROMPTS, ChatJudge
from eval.world_agent.engine import Engine, Snapshot, Tier, replay
from eval.world_agent.journal import Journal, read_lines
from eval.world_agent.judging import Question, ReferenceJudge, worksheet
from eval.world_agent.runs import FORMAT, RunFolder, case_file, read_run, source_digest
from eval.world_agent.scoring import score
from eval.world_agent.talk import Player, Reply, Talk, Turn, alone
from eval.world_agent.tools import Tools, schemas
from unify_agent.errors import UserError
from unify_agent.files import digest, read_json, write_json
from unify_agent.judging import Message, assistant, system, tool_result, user
from unify_agent.judging.structured import LONGEST

ENGINE = (
    "expressions.py", "world.py", "engine.py", "tools.py", "cases.py", "rounds.py", "shorthand.py", "contracts.py",
    "judging.py", "binding.py", "scoring.py",
)  # fmt: skip
ROW = ("seq", "round", "kind", "batch", "accepted", "step_after", "state_hash")
JUDGMENT = ("item", "verdict", "judge", "served")
MOST_CALLS = 32
"""Calls of one turn that are carried out; more are answered with an error."""


def words(language: str) -> dict[str, str]:
    """The prompts of a language; English where there are none."""
    prompts = read_yaml(PROMPTS / "maintain.yaml", "prompts")
    return prompts.get(language, prompts["en"])


class Game:
    """One run of one case in one tier, kept in `folder`. `turns`: of a round; `budget`: tokens of the run;
    `on_round` is called after each round."""

    def __init__(
        self, folder: Path, case: Case, tier: Tier, player: Player, turns: int, budget: int | None = None,
        on_round: Callable[[], None] = lambda: None,
    ):  # fmt: skip
        self.case, self.tier, self.player, self.turns, self.budget = case, tier, player, turns, budget
        self.on_round = on_round
        self.words = words(case.language)
        self.text_calls = player.identity.get("calls") == "text"
        identity = {
            "format": FORMAT, "track": "maintain", "case": case.id, "case_version": case.version,
            "language": case.language, "tier": tier, "player": player.identity, "turns": turns,
            "digests": {
                "engine": source_digest(*ENGINE), "case": case.digest,
                "prompts": digest(PROMPTS / "maintain.yaml", PROMPTS / "judge.yaml"),
            },
        }  # fmt: skip
        self.folder = RunFolder(folder, identity)

    def play(self) -> Engine:
        """Play to the end. Raises UserError when the endpoint fails or the budget of tokens is spent: the same
        command goes on."""
        return alone(self.talk(), self.player)

    def talk(self) -> Talk[Engine]:
        """The run as a conversation; see `play`."""
        self.folder.open(list(self.case.files))
        path = self.folder.path
        with Journal(path / "turns.jsonl", "reply") as turns, Journal(path / "log.jsonl") as log:
            engine = self.case.engine(self.tier, log.put)
            asking = Asking(self.folder, turns, self.budget)
            while not engine.over:
                yield from self._round(engine, asking)
                snapshot = engine.snapshots[-1]
                file = path / "snapshots" / f"round_{snapshot.round:02}.json"
                if not file.is_file():
                    write_json(file, snapshot.__dict__)
                self.on_round()
            return engine

    def _opening(self, engine: Engine) -> list[Message]:
        case, told = self.case, self.words
        rules = told["system"].format(tier=told[engine.tier])
        if self.text_calls:
            rules += told["text"].format(tools=json.dumps([each["function"] for each in schemas(engine.tier)],
                                                          ensure_ascii=False))  # fmt: skip
        narrative = case.rounds[engine.round - 1].narrative
        story = told["round"].format(
            number=engine.round, of=engine.rounds, step=engine.world.step, most=engine.left, facts=case.facts,
            narrative=narrative,
        )
        return [system(rules), user(story)]

    def _round(self, engine: Engine, asking: Asking) -> Talk[None]:
        messages, number, tools = self._opening(engine), engine.round, Tools(self.case, engine)
        for turn in range(1, self.turns + 1):
            engine.call = f"r{number}t{turn}"
            asked = Turn(number, turn, list(messages), schemas(self.tier))
            reply = yield from asking.reply(asked, {"round": number, "turn": turn})
            messages += self._carry_out(reply, tools, number, self.turns - turn)
            if engine.round != number:
                return
        engine.call = f"r{number}limit"
        engine.end_round(forced=True)

    def _carry_out(self, reply: Reply, tools: Tools, number: int, left: int) -> list[Message]:
        """Carry out the calls of a turn up to the end of the round; returns the messages that follow."""
        results = []
        for position, call in enumerate(reply.calls):
            if position >= MOST_CALLS or tools.engine.round != number:
                told = f"at most {MOST_CALLS} calls a turn" if position >= MOST_CALLS else "the round had ended"
                results.append(json.dumps({"error": f"not carried out: {told}"}))
            else:
                results.append(tools.call(call))
        note = self.words["left"].format(left=left)
        if self.text_calls or not reply.calls:
            answer = [*results] if reply.calls else [reply.problem or self.words["no_call"]]
            return [assistant(reply.text or "..."), user("\n".join([*answer, note]))]
        answers = [tool_result(call, result) for call, result in zip(reply.calls, results, strict=True)]
        last = answers[-1]
        answers[-1] = Message(last.role, (*last.parts, note), last.calls, last.call_id)
        fit = [call.arguments is not None and len(call.text) <= LONGEST for call in reply.calls]
        said = [call if good else replace(call, text="{}") for call, good in zip(reply.calls, fit, strict=True)]
        return [assistant(reply.text, said), *answers]  # servers parse what stands in the history


def judge_run(path: Path, judge: ReferenceJudge | ChatJudge, questions: list[Question]) -> int:
    """Ask the judge what is still open and keep each verdict. Returns how many questions stay open."""
    with Journal(path / "judgments.jsonl", *JUDGMENT) as journal:
        for record in journal.records:
            if record["judge"] != judge.identity:
                raise UserError(f"{path}: has verdicts of {record['judge']['judge']!r}; judges are never mixed")
        served_before = {record["served"] for record in journal.records}
        known = {record["item"] for record in journal.records}
        open_ = [question for question in questions if question.item not in known]

        def keep(question: Question, verdict: dict[str, Any], served: str = "") -> None:
            served_before.add(served)
            if len(served_before) > 1:
                names = ", ".join(map(repr, sorted(served_before)))
                raise UserError(f"{path}: the judge's server answers as several models ({names}); pin one, begin anew")
            journal.append({"item": question.item, "kind": question.kind, "round": question.round, "verdict": verdict,
                            "judge": judge.identity, "served": served})  # fmt: skip

        if isinstance(judge, ChatJudge):
            with Progress("judging", len(open_), "questions") as progress:

                def keep_and_tell(question: Question, verdict: dict[str, Any], served: str) -> None:
                    keep(question, verdict, served)
                    progress.advance()

                return judge.ask(open_, keep_and_tell)
        for question in open_:
            keep(question, judge.verdict(question))
        return 0


def read_snapshots(path: Path) -> list[Snapshot]:
    """The frozen snapshots of a run, in order of rounds."""
    return [Snapshot(**read_json(file, "snapshot")) for file in sorted((path / "snapshots").glob("round_*.json"))]


def case_of(path: Path) -> Case:
    """The case of a run as it was played. Raises UserError when its files were changed."""
    run = read_run(path)
    case = load(case_file(path, run))
    if case.digest != run["digests"]["case"]:
        raise UserError(f"{path / 'case'}: the case was changed after it was played")
    return case


def replay_run(path: Path) -> Engine:
    """Apply the saved log to the initial world and compare every row and every frozen snapshot. Raises UserError."""
    run, case = read_run(path), case_of(path)
    engine = replay(case.engine(run["tier"]), read_lines(path / "log.jsonl", *ROW), str(path / "log.jsonl"))
    saved = read_snapshots(path)
    for made, there in zip(engine.snapshots, saved, strict=False):
        if made != there:
            raise UserError(f"{path}: the snapshot of round {made.round} is not what the log leads to")
    if len(saved) != len(engine.snapshots):
        raise UserError(f"{path}: {len(saved)} snapshots for {len(engine.snapshots)} ended rounds")
    return engine


def score_run(path: Path) -> dict[str, Any]:
    """Score a run from its records and write `score.json`. Needs no network. Raises UserError."""
    run, case = read_run(path), case_of(path)
    snapshots = read_snapshots(path)
    if len(snapshots) != len(case.rounds):
        raise UserError(
            f"{path}: {len(snapshots)} of {len(case.rounds)} rounds are played; finish it first", INCOMPLETE
        )
    judgments = read_lines(path / "judgments.jsonl", *JUDGMENT)
    turns = [record["reply"] for record in read_lines(path / "turns.jsonl", "reply")]
    result = {
        "track": "maintain", "case": case.id, "language": case.language, "tier": run["tier"], "size": case.size,
        "genre": case.genre, "player": run["player"]["player"], "served": run["served"],
        "digests": {**run["digests"], "scorer": source_digest(*ENGINE)},
        "judge": judgments[0]["judge"] if judgments else None,
        "cost": cost_of(turns),
        **score(case, run["tier"], read_lines(path / "log.jsonl", *ROW), snapshots,
                {record["item"]: record["verdict"] for record in judgments}),
    }  # fmt: skip
    write_json(path / "score.json", result)
    return result


def maintain(game: Game, judge_of: Callable[[Case, Engine], ReferenceJudge | ChatJudge]) -> tuple[dict[str, Any], int]:
    """Play, judge and score; returns the score and how many questions stay open."""
    engine = game.play()
    return finish(game, engine, judge_of(game.case, engine))


def finish(game: Game, engine: Engine, judge: ReferenceJudge | ChatJudge) -> tuple[dict[str, Any], int]:
    """Judge and score what was played; returns the score and how many questions stay open."""
    path = game.folder.path
    left = judge_run(path, judge, list(worksheet(game.case, game.tier, engine.log)))
    return score_run(path), left
