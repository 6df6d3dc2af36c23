"""The explorer as people start it: a process, a port, a browser, Ctrl-C."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest

from explorer_client import running
from posenc.explorer import launch

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no such signals or displays")
# Loading waits until a line comes in, so that the order of things can be seen whatever the machine's speed.
HELD = """
import sys
from posenc.explorer import launch, server, start
assert "torch" not in sys.modules
def held(target, late=start.late):
    sys.stdin.readline()
    return late(target)
start.late = held
launch.explore("rope", say=lambda line: print(line, flush=True), port=0, browser=False)
"""
# Answers that never end, behind everything else as it is.
ENDLESS = """
import threading
from posenc.explorer import launch, server, start
start.late = lambda target: {}
def endless(*question):
    print("computing", flush=True)
    threading.Event().wait()
server.compute = endless
launch.explore("rope", say=lambda line: print(line, flush=True), port=0, browser=False)
"""


def get(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()


def wait_until_loaded(url):
    for _ in range(600):
        start = json.loads(get(url + "api/start"))
        if start["ready"]:
            return start
        assert start["failure"] is None
        time.sleep(0.1)
    raise AssertionError("never ready")


def interrupt(process):
    """Send Ctrl-C; return the exit code and what stood on stderr."""
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.fixture(scope="module")
def address():
    with running("rope", "--no-browser", "--port", "0") as (_, url):
        wait_until_loaded(url)
        yield url


@pytest.mark.slow
def test_the_page_is_there_before_torch(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HELD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        url = next(word for word in process.stdout.readline().split() if word.startswith("http"))
        assert get(url).startswith(b"<!doctype html>")
        assert get(url + "static/main.js")
        start = json.loads(get(url + "api/start"))
        assert start["ready"] is False
        assert len(start["models"]) >= 20
        with pytest.raises(urllib.error.HTTPError, match="503"):
            get(url + "api/view/heat?a=rope")
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert wait_until_loaded(url)["encodings"]
        assert get(url + "api/view/heat?a=rope")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.sample(2)
@pytest.mark.parametrize("module", ["launch", "server", "security", "start", "targets", "loading", "shelf"])
def test_nothing_on_the_way_to_the_page_imports_torch_or_numpy(module):
    code = f"import posenc.explorer.{module}, sys; print([m for m in ('torch', 'numpy', 'plotly') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_a_question_over_a_socket(address):
    start = json.loads(get(address + "api/start"))
    assert start["target"]["name"] == "rope"
    frame = get(address + "api/view/heat?a=rope&a.head_dim=8&length=4")
    length = int.from_bytes(frame[:4], "little")
    assert json.loads(frame[4 : 4 + length])["view"] == "heat"


def raw(address, text):
    """Send exactly this and return the status."""
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(text.replace("HOST", f"{host}:{port}").encode())
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return int(answer.split()[1]), answer


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("GET / HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", 200),
        ("GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        ("GET / HTTP/1.0\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\nHost: HOST\r\nX-Forwarded-Host: evil.example\r\nConnection: close\r\n\r\n", 200),
        ("GET / HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: HOST\r\nConnection: close\r\n\r\n", 403),
        ("GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 403),
        ("OPTIONS * HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", 405),
        ("GET /static/../server.py HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", 404),
        ("GET /static/../../../../../../etc/passwd HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", 404),
        ("GET /static/%2e%2e/%2e%2e/cli/explore.py HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", 404),
        ("GET /static/..\\server.py HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", 404),
        ("GET ../server.py HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", 404),
    ],
)
def test_what_no_client_would_send(address, text, status):
    got, answer = raw(address, text)
    assert got == status
    assert b"import" not in answer
    assert b"root:" not in answer


def test_a_websocket_is_refused(address):
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += "Sec-WebSocket-Key: MTIzNDU2Nzg5MDEyMzQ1Ng=="
    status, answer = raw(address, f"GET /api/start HTTP/1.1\r\nHost: HOST\r\n{upgrade}\r\n\r\n")
    assert status != 101
    assert b"Sec-WebSocket-Accept" not in answer


def test_a_body_that_never_ends_is_left(address):
    start = json.loads(get(address + "api/start"))
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    head = f"POST /inspect HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: http://{host}:{port}\r\n"
    head += f"X-Posenc-Token: {start['token']}\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk, sent = b"10000\r\n" + b" " * 65536 + b"\r\n", 0
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head.encode())
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server has hung up
            while sent < 2**28:
                sent += connection.send(chunk)
    assert sent < 2**28  # what fits into the system's own buffers may be sent still
    assert get(address)  # and the server is there


def test_nobody_else_on_the_network_is_answered(address):
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    others = {entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for other in {*others, "127.0.0.2"}:
        with socket.socket() as probe:
            probe.settimeout(5)
            assert probe.connect_ex((other, port)) != 0


@pytest.mark.slow
@LINUX
def test_ctrl_c_ends_it_with_0_and_in_silence():
    with running("rope", "--no-browser", "--port", "0") as (process, url):
        wait_until_loaded(url)
        assert interrupt(process) == (0, "")


@pytest.mark.slow
@LINUX
def test_ctrl_c_while_torch_is_loading():
    with running("rope", "--no-browser", "--port", "0") as (process, url):
        get(url)
        assert interrupt(process) == (0, "")


@pytest.mark.slow
@LINUX
def test_ctrl_c_does_not_wait_for_an_answer():
    with running(code=ENDLESS) as (process, url):
        wait_until_loaded(url)
        host, port = url.removeprefix("http://").rstrip("/").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"GET /api/view/heat?a=rope HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            assert process.stdout.readline() == "computing\n"
            assert interrupt(process) == (0, "")


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_port_that_was_asked_for_is_not_replaced(taken):
    with pytest.raises(ValueError, match=rf"port {taken}: another program listens there. Choose another --port, or 0"):
        launch.listen("127.0.0.1", taken)


def test_without_a_port_the_next_free_one_is_taken(taken, monkeypatch):
    monkeypatch.setattr(launch, "PORT", taken)
    with launch.listen("127.0.0.1", None) as listener:
        assert taken < listener.getsockname()[1] < taken + launch.TRIES


def test_if_all_are_taken_that_is_said(taken, monkeypatch):
    monkeypatch.setattr(launch, "PORT", taken)
    monkeypatch.setattr(launch, "TRIES", 1)
    with pytest.raises(ValueError, match="are all taken. Give --port 0"):
        launch.listen("127.0.0.1", None)


@pytest.mark.parametrize("host", ["203.0.113.1", "no-such-host.invalid", "256.1.1.1"])
def test_an_address_of_another_machine(host):
    with pytest.raises(ValueError, match="Choose another --host or --port"):
        launch.listen(host, 0)


@pytest.fixture
def started(monkeypatch):
    """Start without serving; returns what was said, and where it would have listened."""

    class Web:
        def __init__(self, *settings):
            pass

        def run(self, sockets):
            seen["at"] = sockets[0].getsockname()

    seen = {"said": []}
    monkeypatch.setattr(launch, "_Web", Web)
    monkeypatch.setattr(launch.Server, "_load", lambda self: None)
    monkeypatch.setattr(launch, "open_browser", lambda url: seen.setdefault("opened", url))

    def start(**options):
        launch.explore(None, say=seen["said"].append, port=0, **options)
        return seen

    return start


def test_this_machine_alone_is_let_in_unless_asked(started):
    seen = started(browser=False)
    assert seen["at"][0] == "127.0.0.1"
    assert len(seen["said"]) == 1
    assert "opened" not in seen


def test_letting_others_in_is_said_aloud(started):
    seen = started(host="0.0.0.0", browser=False)
    assert seen["at"][0] == "0.0.0.0"
    assert "everyone who can reach this address over the network" in seen["said"][0]
    assert "no password" in seen["said"][0]


@pytest.mark.parametrize("host", ["localhost", "::1", "127.0.0.1"])
def test_the_own_addresses_are_no_news(started, host):
    try:
        seen = started(host=host, browser=False)
    except ValueError:
        pytest.skip(f"this machine has no {host}")
    assert len(seen["said"]) == 1


def test_one_core_is_used_unless_the_environment_says_otherwise(started, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    started(browser=False)
    assert os.environ["OMP_NUM_THREADS"] == "3"
    monkeypatch.delenv("OMP_NUM_THREADS")
    started(browser=False)
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_a_state_is_in_the_address_and_in_no_export(monkeypatch, tmp_path):
    said = []
    monkeypatch.setattr(launch, "_Web", lambda *settings: SimpleNamespace(run=lambda sockets: None))
    monkeypatch.setattr(launch.Server, "_load", lambda self: None)
    launch.explore("alibi?view=bias", say=said.append, port=0, browser=False)
    assert said[0].split()[4].endswith("/?view=bias")
    with pytest.raises(ValueError, match="takes no state"):
        launch.export("alibi?view=bias", tmp_path / "page.html")


def test_the_browser_opens(started):
    seen = started()
    for _ in range(100):
        if "opened" in seen:
            break
        time.sleep(0.05)
    assert seen["opened"].startswith("http://127.0.0.1:")


@LINUX
@pytest.mark.parametrize(("environment", "opens"), [({}, False), ({"DISPLAY": ":0"}, True), ({"BROWSER": "x"}, True)])
def test_a_browser_that_would_take_over_the_terminal_is_not_opened(monkeypatch, environment, opens):
    opened = []
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setitem(os.environ, name, value)
    monkeypatch.setattr(launch.webbrowser, "open", opened.append)
    launch.open_browser("http://127.0.0.1:1/")
    assert opened == (["http://127.0.0.1:1/"] if opens else [])
