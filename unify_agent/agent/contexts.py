"""The contexts that pictures are drawn from: which sequence, and what of it the picture sees.

    history   the cache in which an episode was thought, as it is
    record    the same document, appended anew from what an episode holds
    fresh     the references and the recaption (or the request) as a text, and nothing else

An episode without turns is drawn from its bare request, in which nothing is a tag.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from unify_agent.agent.episode import Episode, Exchange
from unify_agent.generation.session import Session
from unify_agent.interleave.grammar import Grammar, spell_tags
from unify_agent.interleave.layout import Pixels, Preset
from unify_agent.interleave.segments import Picture, Text
from unify_agent.interleave.visibility import Range


@dataclass
class Row:
    """An episode's row: token ranges of the first and last input, the references and the last reply (of `ids`)."""

    episode: Episode
    row: int
    request: Range = (0, 0)
    input: Range = (0, 0)
    references: list[Range] = field(default_factory=list)
    ids: tuple[int, ...] = ()
    span: Range = (0, 0)


Context = tuple[Session, list[int], Sequence[Sequence[Range] | None]]
"""A session, the row of each episode, and the token ranges that its picture sees (None: all of them)."""


@dataclass(frozen=True)
class Contexts:
    """Makes contexts as the layout `preset` trains them. `new_session`: an empty one with a row for each episode."""

    grammar: Grammar
    pixels: Pixels
    preset: Preset
    new_session: Callable[[Sequence[Episode]], Session]

    def history(self, session: Session, states: Sequence[Row]) -> Context:
        """The rows `states` of the session in which their episodes were thought."""
        return session, [state.row for state in states], self._sees(session, states)

    def record(self, episodes: Sequence[Episode]) -> Context:
        """What the episodes hold, appended anew, with the recaption that is to be drawn."""
        session, states = self.new_session(episodes), []
        for row, episode in enumerate(episodes):
            parts: list[Text | Picture] = []
            for turn in episode.turns[:-1]:
                parts += [Text(self.grammar.encode_user(turn.input)), Text(self._ids_of(turn))]
            first = len(parts)
            parts += self._reference_parts(episode)
            pictures = slice(first, len(parts))
            state = Row(episode, row)
            if episode.turns:
                state.ids = self._final_ids(episode)
                parts += [Text(self.grammar.encode_user(episode.turns[-1].input)), Text(state.ids)]
            else:
                parts.append(Text(self.grammar.encode(spell_tags(episode.recaption or episode.request))))
            ranges = session.append([row], [parts])[0].ranges
            state.references, state.span = ranges[pictures], ranges[-1]
            state.request = ranges[pictures.stop] if len(episode.turns) < 2 else ranges[0]
            states.append(state)
        return session, list(range(len(episodes))), self._sees(session, states)

    def fresh(self, episodes: Sequence[Episode]) -> Context:
        """References, then the recaption (or the request) as a text of its own; the picture sees all of it."""
        session = self.new_session(episodes)
        for row, episode in enumerate(episodes):
            ids = self._final_ids(episode) if episode.turns else ()
            found = self._recaption_of(episode, ids)
            if found is not None:
                start, stop = found if self.preset == "paper" else (found[0] + 1, found[1] - 1)
                text = ids[start:stop]
            elif episode.turns:
                text = self.grammar.encode_user(episode.turns[0].input)
            else:
                text = self.grammar.encode(spell_tags(episode.recaption or episode.request))
            session.append([row], [[*self._reference_parts(episode), Text(text)]])
        return session, list(range(len(episodes))), [None] * len(episodes)

    def _sees(self, session: Session, states: Sequence[Row]) -> list[list[Range]]:
        """What each picture sees: its text, and the references."""
        result: list[list[Range]] = []
        for state in states:
            found = self._recaption_of(state.episode, state.ids)
            if found is None:
                text = state.request
            elif self.preset != "released":
                text = (state.span[0] + 1 + found[0], state.span[0] + 1 + found[1])
            else:
                (text,) = session.add_text([state.row], [state.ids[found[0] + 1 : found[1] - 1]])
            result.append([text, *state.references])
        return result

    def _reference_parts(self, episode: Episode) -> list[Picture]:
        joint = self.preset != "released"
        pairs = [self.pixels.reference(p, k, joint) for k, p in enumerate(episode.reference_pictures, 1)]
        return [part for pair in pairs for part in pair]

    def _recaption_of(self, episode: Episode, ids: Sequence[int]) -> Range | None:
        """Where in the last reply's ids the recaption stands that is drawn from, tags included."""
        if not (episode.options.recaption and episode.recaption):
            return None
        return self.grammar.between(ids, "recaption")

    def _ids_of(self, turn: Exchange) -> tuple[int, ...]:
        mine = turn.ids is not None and turn.tokenizer == self.grammar.fingerprint
        return turn.ids if mine and turn.ids is not None else self.grammar.encode(turn.reply)

    def _final_ids(self, episode: Episode) -> tuple[int, ...]:
        """The ids of the last reply, with the edited recaption in the place of its own."""
        ids, edit = self._ids_of(episode.turns[-1]), episode.options.edit_recaption
        found = self.grammar.between(ids, "recaption") if episode.recaption else None
        if edit is None or found is None:
            return ids
        return (*ids[: found[0] + 1], *self.grammar.encode(edit(episode.recaption)), *ids[found[1] - 1 :])
