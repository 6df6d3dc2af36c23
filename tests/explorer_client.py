"""An explorer's server in this process, asked by starlette's client, and one in a process of its own."""

import contextlib
import re
import subprocess
import sys
import time
from urllib.parse import urlsplit

from starlette.testclient import TestClient

from posenc.explorer.security import Origin
from posenc.explorer.server import Server
from posenc.explorer.targets import Target

HOST = "127.0.0.1:8765"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_hidden_layers": 5,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rope_theta": 40000.0,
}
PATIENCE = 60_000  # ms: a loaded machine, torch imported in the background
SAME = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}


def make(target=None, *, loaded=True):
    """Return a server and a client that speaks to it by its right name."""
    server = Server(Origin("127.0.0.1", 8765), target or Target("encoding", "rope"))
    if loaded:
        server.loading.start()
        server.loading.wait()
    return server, TestClient(server.app(), base_url=f"http://{HOST}", raise_server_exceptions=False)


def post(pair, body, name="config.json"):
    """Post a file as the page of this server does."""
    server, client = pair
    return client.post(f"/inspect?name={name}", content=body, headers={**SAME, "x-posenc-token": server.token})


@contextlib.contextmanager
def running(*arguments, code=None):
    """Run `posenc explore` as a process until the end of the block; yields it and its address."""
    program = ["-c", code] if code else ["-m", "posenc", "explore"]
    process = subprocess.Popen(
        [sys.executable, *program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while not (found := re.search(r"http://\S+", line := process.stdout.readline())):
            assert line, process.stderr.read()
        yield process, found[0]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


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

    def save(self, name, folder):
        """Press one of the buttons that save something, and return the file."""
        with self.page.expect_download() as waiting:
            self.page.locator(".copy").get_by_text(name, exact=True).click()
        path = folder / waiting.value.suggested_filename
        waiting.value.save_as(path)
        return path

    def give(self, *files):
        """Choose files as a person does: (name, bytes)."""
        chosen = [{"name": name, "mimeType": "application/octet-stream", "buffer": data} for name, data in files]
        self.page.set_input_files("#model-file", chosen)

    @property
    def said(self):
        """Errors in words, where pictures would be."""
        return [text.strip() for text in self.page.locator("#stage .error, .said.error").all_inner_texts()]

    def assert_calm(self):
        assert self.errors == []
        assert self.strangers == []
