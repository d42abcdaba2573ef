"""The demo: everything is seen as it happens, what is cancelled ends, and a browser sees it too."""

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from agent_tools import FINAL, IMAGE_CALL, TEXT_CALL, replies
from crew_tools import crew, grey

from unify_agent.agent.demo import Desk, page
from unify_agent.agent.live import Live
from unify_agent.agent.requests import request_of


def live_of(made):
    return Live(made, made.setup.episode(request_of("Draw Velmora on red.", "prompt")))


class Step:
    """A script that waits before each reply until it may go on, and writes half of it first."""

    def __init__(self):
        self.crew, self.gate, self.turns = None, threading.Semaphore(0), replies(TEXT_CALL, IMAGE_CALL, FINAL)

    def say(self, episode):
        text = self.turns(episode)
        self.crew.painter.on_text(episode, text[:20])
        assert self.gate.acquire(timeout=60)
        self.crew.painter.on_text(episode, text)
        return text

    def paint(self, episode):
        for step in range(1, 4):
            self.crew.painter.on_preview(episode, np.full((32, 32, 3), 40 * step, np.uint8))
            self.crew.painter.on_step(step, 3)
        return grey(episode)


@pytest.fixture
def stepped(tmp_path):
    step = Step()
    step.crew = crew(tmp_path / "found", step.say, step.paint)
    return step


def test_each_thing_is_seen_when_it_has_happened_and_not_before(stepped):
    shown = live_of(stepped.crew).snapshots()
    seen = []
    for snapshot in shown:
        seen.append(snapshot)
        html = snapshot.html
        if "&lt;tool_call&gt;" in html and "text search: Velmora" not in html and len(seen) < 3:
            assert "good-1" not in html and snapshot.picture is None
            stepped.gate.release(3)
    last = seen[-1]
    assert last.done and last.state == "ok: drawn with references"
    for part in ("text search: Velmora", "picture search: kiwi fruit", "chosen · 9.0", "blurred", "data:image/png",
                 "The kiwi fruit from image_1 on red."):  # fmt: skip
        assert part in last.html
    assert np.array_equal(last.picture, grey(None))
    assert stepped.crew.painter.on_text is None


def test_what_is_cancelled_ends_and_the_crew_is_free_for_the_next(stepped):
    live = live_of(stepped.crew)
    shown = live.snapshots()
    next(shown)
    live.cancel()
    stepped.gate.release(9)
    last = list(shown)[-1]
    assert last.done and last.state == "cancelled" and last.picture is None
    assert list(live_of(stepped.crew).snapshots())[-1].state.startswith("ok")


def test_whoever_goes_away_cancels(stepped):
    live = live_of(stepped.crew)
    shown = live.snapshots()
    next(shown)
    stepped.gate.release(9)
    shown.close()
    assert not live.episode.picture


def test_page_text_is_text_on_the_page(tmp_path):
    made = crew(tmp_path / "found")
    made.search.pages = (type(made.search.pages[0])("<b>x</b>", "<script>alert(1)</script>", "web"),)
    last = list(live_of(made).snapshots())[-1]
    assert "<script" not in last.html and "&lt;script&gt;" in last.html


def test_the_desk_keeps_what_was_drawn_and_tells_what_is_wrong(tmp_path):
    desk = Desk(crew(tmp_path / "found"), tmp_path / "out")
    *_, (html, picture, state) = desk.run("me", "Draw Velmora.", 3, True, None)
    assert picture is not None and "text search" in html and "_trajectory.json" in state
    (written,) = (tmp_path / "out").rglob("*_0.png")
    assert written.is_file()
    ((_, picture, state),) = desk.run("me", " ", 3, True, None)
    assert picture is None and "the prompt is empty" in state


CHROMIUM = shutil.which("chromium")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_a_browser_sees_it_happen_and_can_cancel(stepped, tmp_path, monkeypatch):
    """SCREENSHOT=FILE keeps what the browser shows at the end."""
    pytest.importorskip("gradio")
    playwright = pytest.importorskip("playwright.sync_api")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
    made = page(Desk(stepped.crew, tmp_path / "out"))
    _, address, _ = made.queue().launch(server_name="127.0.0.1", quiet=True, prevent_thread_lock=True)
    try:
        with playwright.sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            tab = browser.new_page(viewport={"width": 1200, "height": 900})
            tab.set_default_timeout(120_000)
            expect = playwright.expect
            expect.set_options(timeout=120_000)
            tab.goto(address)
            tab.locator("#prompt textarea").fill("Draw Velmora on red.")
            tab.locator("#draw").click()
            story, state = tab.locator("#story"), tab.locator("#state")
            expect(story).to_contain_text("<tool_call>")
            tab.locator("#cancel").click()
            stepped.gate.release()
            expect(state).to_contain_text("cancelled")
            tab.locator("#draw").click()
            stepped.gate.release()
            expect(story).to_contain_text("text search: Velmora")
            expect(story).not_to_contain_text("picture search")
            stepped.gate.release(2)
            expect(state).to_contain_text("drawn with references")
            expect(story).to_contain_text("chosen · 9.0")
            expect(tab.locator("#picture img")).to_be_visible()
            if os.environ.get("SCREENSHOT"):
                tab.screenshot(path=Path(os.environ["SCREENSHOT"]), full_page=True)
            browser.close()
    finally:
        made.close()
