"""What a player said in a run, each thing asked for once: replies that are recorded already are used again, new ones
are paid for from a budget of tokens and recorded before anything follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eval.world_agent.journal import Journal
from eval.world_agent.runs import RunFolder
from eval.world_agent.talk import Reply, Talk, Turn
from unify_agent.errors import UserError

INCOMPLETE = 3
"""Exit code of a run that is not complete; the same command goes on."""


class Asking:
    """The replies of the run in `folder`, kept in `record`. `budget`: tokens that the run may spend; None: any."""

    def __init__(self, folder: RunFolder, record: Journal, budget: int | None):
        self.folder, self.record, self.budget = folder, record, budget
        self.spent = sum(Reply.from_dict(each["reply"]).tokens for each in record.records)

    def reply(self, turn: Turn, names: Mapping[str, int]) -> Talk[Reply]:
        """The reply to a turn, from the record or from whoever holds the conversation. `names`: the turn in the
        record. Raises UserError when the budget is spent or the run goes differently now."""
        if self.record.at < len(self.record.records):
            reply = Reply.from_dict(self.record.records[self.record.at]["reply"])
        else:
            if self.budget is not None and self.spent >= self.budget:
                place = ", ".join(f"{key} {value}" for key, value in names.items())
                raise UserError(
                    f"{self.folder.path}: {self.spent} tokens are spent of --budget {self.budget}, at {place}; the "
                    "same command with a larger one goes on", INCOMPLETE
                )  # fmt: skip
            reply = yield turn
            self.spent += reply.tokens
            self.folder.serve(reply.served)
        self.record.put({**names, "reply": reply.as_dict()})
        return reply


def cost_of(replies: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What the recorded replies of a run cost. `unusable`: those that were empty, cut off, too long, or that did not
    fit into the context; the record says which."""
    return {
        "turns": len(replies), "unusable": sum(bool(each["problem"]) for each in replies),
        "tokens_in": sum(each["tokens_in"] for each in replies),
        "tokens_out": sum(each["tokens_out"] for each in replies),
    }  # fmt: skip
