"""Scripted players without files: what validation and tests run."""

from __future__ import annotations

from typing import Any

from eval.world_agent.cases import Case
from eval.world_agent.engine import Engine, Tier
from eval.world_agent.judging import ReferenceJudge, worksheet
from eval.world_agent.policies import Scripted
from eval.world_agent.scoring import score
from eval.world_agent.talk import Turn
from eval.world_agent.tools import Tools


def rehearse(case: Case, tier: Tier, player: Scripted, turns: int = 40) -> Engine:
    """Play a case to its end."""
    engine = case.engine(tier)
    tools = Tools(case, engine)
    while not engine.over:
        number = engine.round
        for turn in range(1, turns + 1):
            for call in player.reply(Turn(number, turn, [])).calls:
                tools.call(call)
            if engine.round != number:
                break
        else:
            engine.end_round(forced=True)
    return engine


def judged(case: Case, engine: Engine) -> dict[str, Any]:
    """The score of a finished engine by the reference judge."""
    judge = ReferenceJudge(case, engine.log)
    verdicts = {each.item: judge.verdict(each) for each in worksheet(case, engine.tier, engine.log)}
    return score(case, engine.tier, engine.log, engine.snapshots, verdicts)
