"""A real browser before a real server: Debian's Chromium, driven by playwright's Python package."""

import os
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from explorer_client import running

CHROMIUM = Path("/usr/bin/chromium")
PATIENCE = 60_000  # ms: a loaded machine, torch imported in the background
_MISSING = "the explorer's page is tried in a real browser: this needs {}"


class Tab:
    """A page of the explorer with what it said and asked for, and short ways to look at it."""

    def __init__(self, page, base):
        self.page, self.base = page, base
        self.errors, self.strangers = [], []
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._note(request.url))
        page.set_default_timeout(PATIENCE)

    def _note(self, url):
        own = urlsplit(self.base).netloc
        if urlsplit(url).scheme not in ("data", "blob", "file") and urlsplit(url).netloc != own:
            self.strangers.append(url)

    def open(self, query=""):
        self.page.goto(f"{self.base}?{query}")
        self.page.wait_for_selector("#stage[data-drawn]:not([aria-busy])")
        self.page.wait_for_timeout(250)  # a scroll bar that comes with the picture changes the width: it is drawn again
        self.page.wait_for_selector("#stage:not([aria-busy])")
        return self

    def until(self, expression):
        """Wait until JavaScript says true; playwright's own way evaluates a string, which the page's policy forbids."""
        end = time.monotonic() + PATIENCE / 1000
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, f"never came true: {expression}"
            self.page.wait_for_timeout(20)

    @property
    def drawn(self):
        """How often the page has drawn."""
        return int(self.page.get_attribute("#stage", "data-count") or 0)

    def after(self, act):
        """Do something, wait until it is drawn, and return how the pictures look then."""
        before = self.drawn
        act()
        self.until(f"Number(document.getElementById('stage').dataset.count) > {before}")
        self.page.wait_for_selector("#stage:not([aria-busy])")
        return self.look()

    def look(self):
        """Return all that is drawn: the cells of heat maps, and what charts are made of."""
        return self.page.evaluate(
            """() => [...document.querySelectorAll('canvas.cells')].map((c) => c.toDataURL()).concat(
            [...document.querySelectorAll('.plot .js-line, .plot .point, .strip li')].map(
                (n) => [n.getAttribute('d'), n.getAttribute('transform'), n.dataset.kind].join()))"""
        )

    def slide(self, option, share):
        """Move a slider to a share of its way, as a hand does."""
        slider = self.page.locator(f"[data-option={option}] input[type=range]").first
        slider.evaluate(
            """(node, share) => { node.value = String(Math.round(Number(node.max) * share));
            node.dispatchEvent(new Event('input', { bubbles: true })); }""",
            share,
        )

    @property
    def said(self):
        """Errors in words, where pictures would be."""
        return [text.strip() for text in self.page.locator("#stage .error, .said.error").all_inner_texts()]

    def assert_calm(self):
        assert self.errors == []
        assert self.strangers == []


@pytest.fixture(autouse=True)
def _nothing_left_behind(monkeypatch):
    """What one test names on its command line, or sets for its process, is not there for the next one."""
    monkeypatch.setattr("posenc.explorer.views.subjects._own", set())
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))  # which starting the explorer sets


@pytest.fixture(scope="session")
def _able():
    """Skip aloud where there is no browser, or nothing to show in it."""
    for package in ("playwright", "starlette", "uvicorn", "plotly"):
        pytest.importorskip(package, reason=_MISSING.format(package))
    if not CHROMIUM.exists():
        pytest.skip(_MISSING.format(f"Debian's chromium at {CHROMIUM}"))


@pytest.fixture(scope="session")
def server(_able):
    """The explorer as people start it; its address."""
    with running("rope", "--no-browser", "--port", "0") as (_, address):
        yield address


@pytest.fixture(scope="module")
def browser(_able):
    """Debian's Chromium; only as long as a file's tests need it, because its loop would be in the way of others."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def new_tab(server, browser):
    """Make tabs of any width and scheme, each with storage of its own; closed at the end of a test."""
    contexts = []

    def make(width=1280, height=900, base=server, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        return Tab(context.new_page(), base)

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def tab(new_tab):
    return new_tab()
