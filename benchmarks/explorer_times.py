"""Measure how fast `posenc explore` is in a real browser, and write EXPLORER.md.

`python benchmarks/explorer_times.py` starts the command anew for each round, opens its page in Debian's Chromium
(playwright's Python package, /usr/bin/chromium) and takes the times of the page and of its first picture; then it moves
a slider by keys, view by view. A repaint is what the page measures itself: from the slider's event to the picture.
"""

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from posenc.bench import machine

HERE = Path(__file__).parent
CHROMIUM = "/usr/bin/chromium"
VIEWS = ("heat", "similarity", "wavelengths", "points", "distances", "precision", "profile")
UNLENGTHY = "precision"  # which takes its positions from 1 to a million
STARTS, MOVES = 5, 24
PAGE_S, PICTURE_S, REPAINT_MS = 2.0, 5.0, 100.0  # the goals
DRAWN = "performance.getEntriesByName('posenc:repaint').length > 0"


@contextmanager
def started() -> Iterator[str]:
    """Start the command and yield the address that it says."""
    command = [sys.executable, "-m", "posenc", "explore", "rope", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            process.terminate()


def opened(browser: Browser) -> Page:
    """Return an empty page of its own, with nothing kept from others."""
    return browser.new_context(viewport={"width": 1440, "height": 950}, bypass_csp=True).new_page()


def start(browser: Browser) -> tuple[float, float]:
    """Return the seconds from the command to the page, and to the first picture."""
    page, since = opened(browser), time.perf_counter()
    with started() as address:
        page.goto(address)
        there = time.perf_counter() - since
        page.wait_for_function(DRAWN, timeout=60_000)
        drawn = time.perf_counter() - since
    page.context.close()
    return there, drawn


def repaints(browser: Browser, address: str, view: str) -> list[float]:
    """Return the milliseconds from each move of the slider `base` to its picture, at 128 lanes."""
    page = opened(browser)
    length = "" if view == UNLENGTHY else "&v.length=4096"
    page.goto(f"{address}?view={view}&a=rope&a.head_dim=128{length}")
    page.wait_for_function(DRAWN, timeout=60_000)
    page.wait_for_timeout(800)
    page.evaluate("performance.clearMeasures()")
    page.locator("[data-option=base] input[type=range]").first.focus()
    for _ in range(MOVES):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(450)
    found: list[float] = page.evaluate("performance.getEntriesByName('posenc:repaint').map((e) => e.duration)")
    page.context.close()
    return found


def report(starts: list[tuple[float, float]], moves: dict[str, list[float]], facts: dict[str, Any]) -> str:
    """Return the page."""
    page, picture = (statistics.median(times) for times in zip(*starts, strict=True))
    slowest = max(statistics.median(times) for times in moves.values())
    lines = [
        "# How fast the explorer is",
        "",
        f"Written by `python benchmarks/explorer_times.py` on {datetime.now(UTC):%Y-%m-%d}; RoPE, {STARTS} starts, and "
        f"{MOVES} moves of a slider in each view, at 128 lanes and 4,096 positions (precision: from 1 to a million). "
        f"Machine: {machine.sentence(facts)}",
        "",
        f"- Goal: the page stands within {PAGE_S:g} s of the command: {page:.2f} s, {_judge(page < PAGE_S)}.",
        f"- Goal: the first picture within {PICTURE_S:g} s: {picture:.2f} s, {_judge(picture < PICTURE_S)}.",
        f"- Goal: under {REPAINT_MS:g} ms from slider to repaint: slowest median {slowest:.0f} ms, "
        f"{_judge(slowest < REPAINT_MS)}.",
        "",
        "| view | moves | median | slowest |",
        "|---|---|---|---|",
        *(f"| {v} | {len(t)} | {statistics.median(t):.0f} ms | {max(t):.0f} ms |" for v, t in moves.items()),
    ]
    return "\n".join(lines) + "\n"


def _judge(met: bool) -> str:
    return "met" if met else "missed"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "EXPLORER.md")
    out = parser.parse_args().out
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        starts = [start(browser) for _ in range(STARTS)]
        with started() as address:
            moves = {view: repaints(browser, address, view) for view in VIEWS}
        browser.close()
    out.write_text(report(starts, moves, machine.examine()))
    print(out.read_text())


if __name__ == "__main__":
    main()
