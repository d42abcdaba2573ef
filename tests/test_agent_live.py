"""The demo: everything is seen as it happens, what is cancelled ends, and a browser sees it too."""

import os
import shutil
import threading
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from agent_tools import FINAL, IMAGE_CALL, TEXT_CALL, replies
from crew_tools import crew, grey

from unify_agent.agent.demo import Desk, page
from unify_agent.agent.live import Live
from unify_agent.agent.requests import request_of
from unify_agent.agent.toolcalls import ToolCall, render_call
from unify_agent.search.base import TextHit


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


HOSTILE = (
    "![x](http://evil.example/pixel.png) [go](javascript:alert(1)) <img src=http://evil.example/i onerror=alert(1)> "
    "<a href='javascript:alert(1)'>a</a> </div><script>alert(1)</script> ${window.hacked=1} {{hacked}} "
    '"><svg onload=alert(1)>'
)


class Tags(HTMLParser):
    """Collects the elements of a page with their attributes, styles' text left out."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def hostile(folder, fail=False):
    """A crew that thinks, calls, finds, fails and recaptions in hostile texts."""
    say = replies(
        f"<think>{HOSTILE}</think>\n" + render_call(ToolCall("text_search", {"q": HOSTILE})), IMAGE_CALL,
        f"<think>{HOSTILE}</think>\n<recaption>image_1 {HOSTILE}</recaption>",
    )  # fmt: skip

    def paint(episode):
        if fail:
            raise RuntimeError(HOSTILE)
        return grey(episode)

    made = crew(folder, say, paint)
    made.search.pages = (TextHit(HOSTILE, HOSTILE, HOSTILE, HOSTILE),)
    for query, found in made.search.pictures.items():
        made.search.pictures[query] = [replace(hit, title=HOSTILE, source=HOSTILE, licence=HOSTILE) for hit in found]
    return made


@pytest.mark.parametrize("fail", [False, True])
def test_nothing_that_was_said_or_found_acts_on_the_page(tmp_path, fail):
    desk = Desk(hostile(tmp_path / "found", fail), tmp_path / "out")
    shown = list(desk.run("me", f"Draw {HOSTILE}", 3, True, None))
    assert "alert(1)" in shown[-1][0] and (("alert(1)" in shown[-1][2]) is fail)
    for html, _, state in shown:
        for tag, attributes in Tags(html + state).found:
            assert tag in ("style", "div", "h4", "p", "span", "ul", "li", "img", "br", "small", "b"), tag
            assert set(attributes) <= {"class", "src", "alt", "style"}
            assert attributes.get("src", "data:image/png").startswith("data:image/png")
    for written in (tmp_path / "out").rglob("*.html"):
        for tag, attributes in Tags(written.read_text(encoding="utf-8")).found:
            assert tag not in ("script", "svg") and not [name for name in attributes if name.startswith("on")]
            for value in (attributes.get("src"), attributes.get("href")):
                assert value is None or not value.lower().startswith(("javascript:", "http"))
    assert fail or list((tmp_path / "out").rglob("*.html"))


def test_what_is_wrong_with_a_request_is_shown_as_text(tmp_path):
    desk = Desk(crew(tmp_path / "found"), tmp_path / "out")
    file = tmp_path / "![x](http:evil).png"
    file.write_bytes(b"<svg onload=alert(1)>")
    ((_, _, state),) = desk.run("me", "Draw Velmora.", 3, True, [str(file)])
    assert "evil" in state and [tag for tag, _ in Tags(state).found] == ["b"]


CHROMIUM = shutil.which("chromium")


@pytest.fixture
def tab(monkeypatch):
    """A tab of a browser, and the addresses that it asks for."""
    playwright = pytest.importorskip("playwright.sync_api")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        made = browser.new_page(viewport={"width": 1200, "height": 900})
        made.set_default_timeout(120_000)
        playwright.expect.set_options(timeout=120_000)
        yield made
        browser.close()


def served(desk):
    """The address of a demo page, and the page."""
    made = page(desk)
    _, address, _ = made.queue().launch(server_name="127.0.0.1", quiet=True, prevent_thread_lock=True)
    return address, made


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_a_browser_sees_it_happen_and_can_cancel(stepped, tmp_path, tab):
    """SCREENSHOT=FILE keeps what the browser shows at the end."""
    pytest.importorskip("gradio")
    from playwright.sync_api import expect

    address, made = served(Desk(stepped.crew, tmp_path / "out"))
    try:
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
    finally:
        made.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize("fail", [False, True])
def test_a_browser_asks_nobody_else_whatever_was_found(tmp_path, tab, fail):
    pytest.importorskip("gradio")
    from playwright.sync_api import expect

    asked, dialogs = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    address, made = served(Desk(hostile(tmp_path / "found", fail), tmp_path / "out"))
    try:
        tab.goto(address)
        tab.locator("#prompt textarea").fill(f"Draw {HOSTILE}")
        tab.locator("#draw").click()
        expect(tab.locator("#state")).to_contain_text("failed" if fail else "_trajectory.json")
        expect(tab.locator("#story")).to_contain_text("{{hacked}}")
        assert tab.evaluate("window.hacked") is None and not dialogs
        assert not [url for url in asked if "evil.example" in url]
        for place in ("#state", "#story"):
            assert tab.locator(f"{place} a, {place} script, {place} svg").count() == 0
        assert tab.locator("#state img").count() == 0
    finally:
        made.close()
