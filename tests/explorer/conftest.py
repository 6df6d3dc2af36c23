"""A real browser before a real server: Debian's Chromium, driven by playwright's Python package."""

import os
from pathlib import Path

import pytest

from explorer_client import Tab, running

CHROMIUM = Path("/usr/bin/chromium")
_MISSING = "the explorer's page is tried in a real browser: this needs {}"


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
