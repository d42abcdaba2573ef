"""The unified policy: one model thinks, calls tools, recaptions and draws, in one context with a KV cache per episode.

What is appended, and in which order, is what the layout preset trains (interleave/layout.py): each turn's input and
reply, the references before the input of the final turn. The picture then sees

    paper      its recaption between the tags and the references, in the history cache
    released   a fresh context of the references and the recaption as text, as the public agent does; with
               `AgentOptions(history=True)` the history cache with the recaption repeated, as its training sees it
    isolated   a fresh context of the references and the recaption as text, the document that its training draws from

What was said by another policy, or is to be drawn after a change (`edit_recaption`, `hide_while_recaptioning`), is
appended anew from the episode's record; an episode without turns is drawn from its bare request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np

from unify_agent.agent.contexts import Context, Contexts, Row
from unify_agent.agent.episode import CUT_OFF, Episode
from unify_agent.agent.loop import Reply
from unify_agent.files import digest
from unify_agent.generation.drawing import Preview
from unify_agent.generation.prefix import Prefixes
from unify_agent.generation.sampler import Progress, SamplerSettings
from unify_agent.generation.session import Session
from unify_agent.generation.text import Sampling, Watch
from unify_agent.interleave.grammar import Grammar
from unify_agent.interleave.layout import Pixels, Preset

PARTS: tuple[Literal["vae", "vit"], ...] = ("vae", "vit")
AGAIN: dict[str, Any] = {"temperature": 0.7, "top_p": 0.95}
"""Sampling of a reply that is drawn again after a greedy one came to nothing. What came to nothing is most often one
word over and over: the first time again no token may follow itself, the n-th time no more than n times in a row."""
STREAM_EVERY = 4  # tokens between two looks at a reply that is being written


def _again_seed(episode: Episode) -> int:
    """A seed that depends on the episode's id and seed, the turn, and how many replies to it were discarded."""
    key = f"{episode.id} {episode.seed} {len(episode.turns)} {len(episode.discarded)}"
    return int(digest(key)[:12], 16)


class ContextFull(RuntimeError):
    """An episode has no room left for what would have to be appended."""


class UnifiedPolicy:
    """`sampling` is for text, `settings` for pictures of `size` (height, width) in pixels.

    `max_tokens` bounds an episode's context. `provenance` goes into the record of every picture. When set, `on_step` is
    told (steps done, steps in all) after each step of a batch of pictures, `on_text` (episode, what its reply says so
    far), and `on_preview` (episode, uint8 [H, W, 3]) how its picture is forming. What they raise ends the call.
    """

    name = "unified"

    def __init__(
        self,
        model: Any,
        vae: Any,
        grammar: Grammar,
        pixels: Pixels,
        preset: Preset = "paper",
        *,
        sampling: Sampling | None = None,
        settings: SamplerSettings | None = None,
        size: tuple[int, int] = (1024, 1024),
        max_tokens: int = 40_240,
        provenance: dict[str, Any] | None = None,
    ):
        self.model, self.vae, self.grammar, self.pixels, self.preset = model, vae, grammar, pixels, preset
        self.sampling = sampling or Sampling(max_new=1024)
        self.settings = settings or SamplerSettings()
        self.size, self.max_tokens = size, max_tokens
        self.provenance = provenance or {}
        self.on_step: Progress | None = None
        self.on_text: Callable[[Episode, str], None] | None = None
        self.on_preview: Callable[[Episode, np.ndarray], None] | None = None

        self._contexts = Contexts(grammar, pixels, preset, self._new_session)
        self._prefixes = Prefixes()
        self._session: Session | None = None
        self._rows: dict[int, Row] = {}

    def _begin(self, episodes: Sequence[Episode]) -> Session:
        """A fresh session with a row for each episode; an earlier one is given up."""
        self._session = self._new_session(episodes)
        self._rows = {id(episode): Row(episode, number) for number, episode in enumerate(episodes)}
        return self._session

    def _new_session(self, episodes: Sequence[Episode]) -> Session:
        seeds = [episode.seed for episode in episodes]
        return Session(
            self.model, self.vae, self.grammar, self.pixels,
            rows=len(episodes), seeds=seeds, prefixes=self._prefixes,
        )  # fmt: skip

    # ------------------------------------------------------------ text

    def reply(self, episodes: Sequence[Episode]) -> list[Reply | Exception]:
        """One turn of every episode, decoded together. A call in which nobody has spoken yet starts a new batch.

        Episodes whose reply was cut off are cut back to their input, and sampled. One whose recaption was sent back
        is cut back to before its input, and reads that anew with what was added.
        """
        session = self._session
        if session is None or all(not episode.turns and not episode.discarded for episode in episodes):
            session = self._begin(episodes)
        again: list[Episode] = []
        new: list[Episode] = []
        for episode in episodes:
            cut_off = episode.discarded and episode.discarded[-1].reason == CUT_OFF
            (again if cut_off else new).append(episode)
        for state in (self._rows[id(episode)] for episode in new if episode.discarded):
            session.rewind(state.row, state.input[0])
        self._place_references(session, [episode for episode in new if episode.final and not episode.discarded])
        answers: dict[int, Reply | Exception] = {}
        ready: list[tuple[Episode, Row, tuple[int, ...]]] = []
        for episode in new:
            state, ids = self._rows[id(episode)], self.grammar.encode_user(episode.input)
            used = session.lengths[state.row]
            if used + len(ids) + self.sampling.max_new + 4 > self.max_tokens:
                answers[id(episode)] = ContextFull(f"{used} tokens are used, at most {self.max_tokens} may be")
            else:
                ready.append((episode, state, ids))
        rows = [state.row for _, state, _ in ready]
        ranges = session.add_text(rows, [ids for *_, ids in ready]) if ready else []
        for (episode, state, _), at in zip(ready, ranges, strict=True):
            state.input = at
            if not episode.turns:
                state.request = at
        seeds = [episode.seed + len(episode.turns) for episode, *_ in ready]
        self._write(session, [episode for episode, *_ in ready], self.sampling, seeds, answers)
        for episode in again:
            state = self._rows[id(episode)]
            session.rewind(state.row, state.span[0])
        for times in sorted({episode.cut_off for episode in again}):
            group = [episode for episode in again if episode.cut_off == times]
            self._write(session, group, self._hotter(times), [_again_seed(episode) for episode in group], answers)
        return [answers[id(episode)] for episode in episodes]

    def _write(
        self,
        session: Session,
        episodes: Sequence[Episode],
        sampling: Sampling,
        seeds: Sequence[int],
        answers: dict[int, Reply | Exception],
    ) -> None:
        """Decodes a reply in the row of each episode."""
        states = [self._rows[id(episode)] for episode in episodes]
        looks: dict[str, Any] = {"watch": self._streamed(episodes)} if self.on_text else {}
        written = session.decode([state.row for state in states], sampling, seeds=seeds, **looks)
        for episode, state, decoded in zip(episodes, states, written, strict=True):
            state.ids, state.span = decoded.ids, decoded.span
            text = self.grammar.said(decoded.ids)
            answers[id(episode)] = Reply(text, decoded.ids, self.grammar.fingerprint, not decoded.stopped)

    def _streamed(self, episodes: Sequence[Episode]) -> Watch:
        """A `watch` that tells `on_text` every few tokens."""
        tell, steps = self.on_text, 0
        assert tell is not None

        def looks(written: Sequence[Sequence[int]]) -> None:
            nonlocal steps
            steps += 1
            if steps % STREAM_EVERY == 0:
                for episode, ids in zip(episodes, written, strict=True):
                    tell(episode, self.grammar.said(ids))

        return looks

    def _hotter(self, times: int) -> Sampling:
        """How a reply is drawn again, for the `times`-th time: as ever when that is random, else by `AGAIN`."""
        random = {} if self.sampling.temperature > 0 else AGAIN
        return replace(self.sampling, **random, max_run=times)

    def _place_references(self, session: Session, episodes: Sequence[Episode]) -> None:
        """Appends the references of episodes that come to their final turn."""
        for hidden in (None, *PARTS):
            group = [
                episode
                for episode in episodes
                if episode.references and episode.options.hide_while_recaptioning == hidden
            ]
            if group:
                states = [self._rows[id(episode)] for episode in group]
                found = session.add_pictures(
                    [state.row for state in states],
                    [episode.reference_pictures for episode in group],
                    joint=self.preset != "released",
                    parts=[part for part in PARTS if part != hidden],
                )
                for state, ranges in zip(states, found, strict=True):
                    state.references = ranges

    # ------------------------------------------------------------ pictures

    def draw(self, episodes: Sequence[Episode]) -> list[np.ndarray | Exception]:
        """One picture for every episode, those with the same way of drawing together."""
        ways: dict[str, list[Episode]] = {}
        for episode in episodes:
            ways.setdefault(self._way(episode), []).append(episode)
        drawn: dict[int, np.ndarray] = {}
        for way, group in ways.items():
            session, rows, sees = self._context(way, group)
            seeds = [episode.seed for episode in group]
            pictures = session.draw(
                rows, sees, [self.size] * len(group), self.settings, seeds,
                keep_rope=self.preset != "released", progress=self.on_step, preview=self._previewed(group),
            )  # fmt: skip
            for episode, picture in zip(group, pictures, strict=True):
                drawn[id(episode)] = picture
                episode.settings = {"seed": episode.seed, **self.described(), "drawn_from": way}
        return [drawn[id(episode)] for episode in episodes]

    def _context(self, way: str, episodes: Sequence[Episode]) -> Context:
        if way == "history":
            assert self._session is not None
            return self._contexts.history(self._session, [self._rows[id(episode)] for episode in episodes])
        return self._contexts.record(episodes) if way == "record" else self._contexts.fresh(episodes)

    def _previewed(self, episodes: Sequence[Episode]) -> Preview | None:
        tell = self.on_preview
        return None if tell is None else lambda number, picture: tell(episodes[number], picture)

    def _way(self, episode: Episode) -> str:
        options = episode.options
        if not (self.preset == "paper" if options.history is None else options.history):
            return "fresh"
        state = self._rows.get(id(episode))
        live = state is not None and state.episode is episode and bool(episode.turns)
        changed = options.edit_recaption is not None or options.hide_while_recaptioning is not None
        return "history" if live and not changed else "record"

    def described(self) -> dict[str, Any]:
        """How pictures are drawn: everything but the episode's seed that is needed to draw one again."""
        height, width = self.size
        settings = asdict(self.settings) | {"interval": list(self.settings.interval)}
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        return {
            "height": height, "width": width, **settings, "dtype": dtype, "layout": self.preset,
            "temperature": self.sampling.temperature, "top_k": self.sampling.top_k, "top_p": self.sampling.top_p,
            "max_new": self.sampling.max_new,
            **self.provenance,
        }  # fmt: skip
