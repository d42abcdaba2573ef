"""One request, watched as it happens: what is being written, found, judged and drawn, as a stream of snapshots.

The loop runs in a thread of its own. After everything that happens it leaves a snapshot, made in that thread, so that
it shows one moment; whoever looks seldom sees the latest. A request that is cancelled ends at the next token or step.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from unify_agent.agent.crew import Crew
from unify_agent.agent.episode import CUT_OFF, OTHER_LANGUAGE, Episode, Exchange
from unify_agent.agent.loop import Loop
from unify_agent.agent.story import ENDINGS, candidate, turn_card
from unify_agent.agent.tools import told
from unify_agent.page import STYLE, data_uri, escape

SHOWN = 168  # pixels of a candidate
AGAIN = {
    CUT_OFF: "a reply that was cut off was drawn again",
    OTHER_LANGUAGE: "a recaption in another language than the request's was sent back",
}


class Cancelled(BaseException):
    """Somebody does not want to wait: no error of a model or a service, and so caught by nobody who handles those."""


@dataclass(frozen=True)
class Snapshot:
    """`html`: the story so far. `picture`: as it is forming, uint8 [H, W, 3]. `state`: what is going on, in words."""

    html: str
    picture: np.ndarray | None
    state: str
    done: bool = False


class Live:
    """An episode in the hands of `crew`, one at a time. `cancel` may be called from any thread."""

    def __init__(self, crew: Crew, episode: Episode):
        self.crew, self.episode = crew, episode
        self._left: queue.SimpleQueue[Snapshot] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self._said, self._state = "", "thinking"
        self._picture: np.ndarray | None = None

    def cancel(self) -> None:
        """Ends it soon."""
        self._cancelled.set()

    def snapshots(self) -> Iterator[Snapshot]:
        """What happens, until it has ended; given up early, the episode is cancelled."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            while True:
                latest = self._left.get()
                while not latest.done and not self._left.empty():
                    latest = self._left.get()
                yield latest
                if latest.done:
                    return
        finally:
            self.cancel()
            thread.join()

    def _run(self) -> None:
        crew, painter = self.crew, self.crew.painter
        painter.on_text, painter.on_preview, painter.on_step = self._on_text, self._on_preview, self._on_step
        try:
            self._leave()
            Loop(crew.policy, crew.search, crew.judge, crew.words, on_event=self._on_event).run([self.episode])
            self._picture = self.episode.picture
            self._state = f"{self.episode.status}: {ENDINGS.get(self.episode.stop, self.episode.stop)}"
            self._state += f" ({self.episode.error})" if self.episode.error else ""
        except Cancelled:
            self._state = "cancelled"
        except Exception as fault:
            self._state = f"failed: {told(fault)}"
        finally:
            painter.on_text = painter.on_preview = painter.on_step = None
            self._left.put(self._snapshot(done=True))

    def _leave(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled
        self._left.put(self._snapshot())

    def _snapshot(self, done: bool = False) -> Snapshot:
        return Snapshot(story_so_far(self.episode, "" if done else self._said), self._picture, self._state, done)

    def _on_text(self, episode: Episode, said: str) -> None:
        self._said = said
        self._leave()

    def _on_event(self, episode: Episode, what: str) -> None:
        self._said = ""
        self._state = {"reply": "searching", "done": "drawing"}.get(what, "thinking")
        self._leave()

    def _on_preview(self, episode: Episode, picture: np.ndarray) -> None:
        self._picture = picture
        self._leave()

    def _on_step(self, done: int, total: int) -> None:
        self._state = f"drawing: step {done} of {total}"
        self._leave()


def story_so_far(episode: Episode, said: str = "") -> str:
    """The turns of an episode as HTML that stands on its own, and what is being said."""
    turns = [_turn(episode, turn) for turn in episode.turns]
    if said:
        turns.append(f'<div class="turn"><h4>…</h4><div class="evidence">{escape(said)}</div></div>')
    if episode.recaption:
        turns.append(f'<div class="turn"><h4>Recaption</h4><p class="recaption">{escape(episode.recaption)}</p></div>')
    style = STYLE.read_text(encoding="utf-8").replace(":root", "&")
    style += ".talk { border: 0; } .candidates { padding: 0 !important; } .candidates li { list-style: none; }"
    return f'<style>.story {{ {style} }}</style><div class="story"><div class="talk">{"".join(turns)}</div></div>'


def _turn(episode: Episode, turn: Exchange) -> str:
    items = [
        candidate(
            None if each.picture is None else data_uri(each.picture, SHOWN), each.hit.title, each.verdict.reason,
            each.verdict.score, chosen=any(each is kept for kept in episode.references), usable=each.verdict.usable,
        )
        for each in turn.judged
    ]  # fmt: skip
    card = turn_card(turn.reply, turn.calls, turn.tool_output or "", items)
    notes = [*turn.mended, *([turn.tool_error] if turn.tool_error else [])]
    notes += [AGAIN[each.reason] for each in turn.discarded]
    shown = "".join(f'<div class="explain">{escape(note)}</div>' for note in notes)
    return card.removesuffix("</div>") + shown + "</div>"
