"""A model of this project as a player, in plain text: it reads the conversation and writes its calls as JSON.

The context is the text form of a conversation as training packs texts: the instructions with the first question, then
reply and answer in turn, each a segment of its own. Everything comes from outside and none of it becomes a tag. All
is encoded from its text, never from the ids that were generated, so a run that was stopped goes on as one that was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from eval.world_agent.talk import Reply, Turn, calls_in
from unify_agent.errors import UserError
from unify_agent.files import digest
from unify_agent.judging.structured import objects_in

if TYPE_CHECKING:
    from unify_agent.agent.unified import UnifiedPolicy
    from unify_agent.generation.session import Session

ROOM = 1024
"""Tokens of one reply, where the context has room for four of them."""
Texts = list[tuple[int, ...]]


class OwnPlayer:
    """`policy`: a loaded model. `name`: how it is called in results. `room`: tokens of one reply (None: `ROOM`, or a
    quarter of the context). `temperature` 0 is greedy; else `seed` keys the draws, with round and turn."""

    def __init__(
        self, policy: UnifiedPolicy, name: str, room: int | None = None, temperature: float = 0.0, seed: int = 0
    ):
        self.policy, self.seed = policy, seed
        self.context = min(policy.max_tokens, policy.model.config.llm.max_position_embeddings)
        self.room = min(ROOM, self.context // 4) if room is None else room
        if self.room >= self.context:
            raise UserError(f"--room {self.room}: the model reads {self.context} tokens in all; give it less")
        self.sampling = replace(policy.sampling, max_new=self.room, temperature=temperature)
        self.identity: dict[str, Any] = {
            "player": name, "weights": policy.provenance["weights"], "dtype": policy.provenance["dtype"],
            "calls": "text", "context": self.context, "room": self.room, "temperature": temperature, "seed": seed,
        }  # fmt: skip
        self._session: Session | None = None

    def reply(self, turn: Turn) -> Reply:
        """See Player."""
        return self.replies([turn])[0]

    def replies(self, turns: Sequence[Turn]) -> list[Reply]:
        """Replies to turns of several conversations, decoded together."""
        talks = [self._texts(turn) for turn in turns]
        used = [sum(len(text) + 2 for text in talk) for talk in talks]
        fits = [number for number, tokens in enumerate(used) if tokens + self.room + 2 <= self.context]
        replies = [
            Reply("", problem=f"The conversation has {tokens} tokens; with {self.room} for a reply there is room for "
                  f"{self.context - self.room - 2}.", served=self.policy.provenance["weights"])
            for tokens in used
        ]  # fmt: skip
        if not fits:
            return replies
        session, rows = self._placed([talks[number] for number in fits]), range(len(fits))
        seeds = [int(digest(f"{self.seed} {turns[n].round} {turns[n].number}")[:12], 16) for n in fits]
        for number, written in zip(fits, session.decode(rows, self.sampling, seeds=seeds), strict=True):
            text = self.policy.grammar.said(written.ids)
            whole = written.stopped or any(objects_in(text))
            problem = "" if whole else f"Your last answer was cut off after {self.room} tokens."
            replies[number] = Reply(text, calls_in(text), problem, replies[number].served, used[number],
                                    len(written.ids))  # fmt: skip
        return replies

    def _texts(self, turn: Turn) -> Texts:
        """The segments of a conversation."""
        said = ["\n".join(str(part) for part in message.parts) for message in turn.messages]
        return [self.policy.grammar.encode_untrusted(text) for text in ["\n".join(said[:2]), *said[2:]]]

    def _placed(self, talks: Sequence[Texts]) -> Session:
        """A session whose rows hold these conversations. The last one's rows serve as far as they agree."""
        from unify_agent.generation.session import Session  # torch
        from unify_agent.interleave.segments import Text

        policy, rows = self.policy, range(len(talks))
        session = self._session
        if session is None or session.rows != len(talks):
            session = Session(policy.model, None, policy.grammar, policy.pixels, rows=len(talks))
        kept = [_agreement(session, row, talk) for row, talk in zip(rows, talks, strict=True)]
        for row, (texts, tokens) in enumerate(kept):
            session.rewind(row, tokens)
            talks[row][:texts] = []
        behind = [row for row in rows if talks[row]]
        if behind:
            session.append(behind, [[Text(ids) for ids in talks[row]] for row in behind])
        self._session = session
        return session


def _agreement(session: Session, row: int, talk: Texts) -> tuple[int, int]:
    """How many of a conversation's texts a row begins with, and their tokens."""
    texts, tokens = 0, 0
    for entry, ids in zip(session.history[row], talk, strict=False):
        if entry.ids != ids:
            break
        texts, tokens = texts + 1, entry.stop
    return texts, tokens


def load_player(source: str, room: int | None, temperature: float, seed: int) -> OwnPlayer:
    """The model of a folder in BAGEL's layout (or a hub id) as a player. Raises UserError."""
    from unify_agent.agent.load import load_policy  # torch

    policy, _ = load_policy(source)
    name = source.rstrip("/").rpartition("/")[2] or "model"
    return OwnPlayer(policy, name, room, temperature, seed)
