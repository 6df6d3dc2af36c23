"""An explorer's server in this process, asked by starlette's client, and one in a process of its own."""

import contextlib
import re
import subprocess
import sys

from starlette.testclient import TestClient

from posenc.explorer.security import Origin
from posenc.explorer.server import Server
from posenc.explorer.targets import Target

HOST = "127.0.0.1:8765"
SAME = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}


def make(target=None, *, loaded=True):
    """Return a server and a client that speaks to it by its right name."""
    server = Server(Origin("127.0.0.1", 8765), target or Target("encoding", "rope"))
    if loaded:
        server.loading.start()
        server.loading.wait()
    return server, TestClient(server.app(), base_url=f"http://{HOST}", raise_server_exceptions=False)


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
