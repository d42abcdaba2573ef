"""`python infer.py --demo`: a page to ask from, where everything is seen as it happens. Needs gradio (extra `demo`)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unify_agent.agent.crew import Crew, Setup, assemble
from unify_agent.agent.live import Live
from unify_agent.agent.record import Recorder
from unify_agent.agent.requests import check_references, request_of
from unify_agent.errors import UserError
from unify_agent.page import escape

HOST = "127.0.0.1"
LARGE = 384
"""Pixels of a side up to which pictures of tiny models are enlarged."""
Shown = tuple[str, np.ndarray | None, str]
"""The story as HTML, the picture, the state as HTML; whatever was said or found is text in them (`escape`)."""


class Desk:
    """Takes requests from the page to the crew, one after another, and keeps what was drawn below `out`."""

    def __init__(self, crew: Crew, out: Path):
        self.crew, self.recorder = crew, Recorder(out, crew.policy.name, pages=True)
        self._turn = threading.Lock()
        self._running: dict[str, Live] = {}

    def run(
        self, session: str, prompt: str, seed: float | None, search: bool, files: list[str] | None
    ) -> Iterator[Shown]:
        """What the page shows from moment to moment. A new request of a session takes the place of its old one."""
        self.cancel(session)
        try:
            request = request_of(prompt, "the request")
            given = check_references([Path(each) for each in files or []], "references")
            request = replace(request, references=given)
        except UserError as error:
            yield "", None, f"<b>{escape(error)}</b>"
            return
        setup = replace(self.crew.setup, seed=int(seed or 0), tools=search and self.crew.setup.tools)
        live = self._running[session] = Live(self.crew, setup.episode(request))
        yield "", None, "waiting for its turn"
        with self._turn:
            for snapshot in live.snapshots():
                yield snapshot.html, enlarged(snapshot.picture), escape(snapshot.state)
        if self._running.get(session) is live:
            del self._running[session]
        if live.episode.picture is not None:
            live.episode.settings |= replace(self.crew, setup=setup).described(request)
            path = self.recorder.write(live.episode)
            where = f'<small style="overflow-wrap: anywhere">{escape(path)}</small>'
            yield snapshot.html, enlarged(snapshot.picture), f"{escape(snapshot.state)}<br>{where}"

    def cancel(self, session: str) -> None:
        """Ends what runs for a session."""
        live = self._running.pop(session, None)
        if live is not None:
            live.cancel()


def enlarged(picture: np.ndarray | None) -> np.ndarray | None:
    """The picture with its pixels repeated until it is large enough to look at."""
    if picture is None:
        return None
    times = max(1, LARGE // max(picture.shape[:2]))
    return picture.repeat(times, 0).repeat(times, 1)


def page(desk: Desk) -> Any:
    """The page, a `gradio.Blocks`. Raises UserError when gradio is not installed."""
    try:
        import gradio
    except ImportError:
        raise UserError("--demo needs gradio, which is not installed: pip install 'unify-agent[demo]'") from None

    def run(prompt: str, seed: float, search: bool, files: list[str] | None, request: Any) -> Iterator[Shown]:
        yield from desk.run(request.session_hash, prompt, seed, search, files)

    def cancel(request: Any) -> None:
        desk.cancel(request.session_hash)

    run.__annotations__["request"] = cancel.__annotations__["request"] = gradio.Request
    with gradio.Blocks(title="Unify-Agent", analytics_enabled=False) as made:
        gradio.Markdown("# Unify-Agent\nIt thinks, searches, rewrites what it found, and draws.")
        with gradio.Row():
            with gradio.Column(scale=3):
                prompt = gradio.Textbox(label="What shall be drawn?", lines=2, max_length=4000, elem_id="prompt")
                with gradio.Row():
                    draw = gradio.Button("Draw", variant="primary", elem_id="draw")
                    stop = gradio.Button("Cancel", elem_id="cancel")
                story = gradio.HTML(elem_id="story")
            with gradio.Column(scale=2):
                picture = gradio.Image(label="The picture", interactive=False, format="png", elem_id="picture")
                state = gradio.HTML(elem_id="state")
                with gradio.Accordion("Options", open=False):
                    search = gradio.Checkbox(label="Search", value=desk.crew.setup.tools)
                    seed = gradio.Number(label="Seed", value=desk.crew.setup.seed, precision=0, minimum=0)
                    files = gradio.File(
                        label="References of your own: up to two, nothing is searched then", file_count="multiple",
                        file_types=["image"], type="filepath",
                    )  # fmt: skip
        gradio.on(
            [draw.click, prompt.submit], run, [prompt, seed, search, files], [story, picture, state],
            concurrency_limit=None, show_progress="hidden",
        )  # fmt: skip
        stop.click(cancel, queue=False)
    return made


def serve(setup: Setup, out: Path, port: int) -> int:
    """Serves the page on this machine until it is interrupted; returns the exit code."""
    crew = assemble(setup)
    made = page(Desk(crew, out))
    try:
        made.queue().launch(server_name=HOST, server_port=port, share=False, quiet=True, prevent_thread_lock=True)
    except OSError as error:
        raise UserError(f"--port {port}: {error}") from None
    print(f"http://{HOST}:{port} (end with Ctrl-C)", flush=True)
    made.block_thread()
    return 0
