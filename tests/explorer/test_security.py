import asyncio
import socket

import pytest

from explorer_client import HOST, SAME, make
from posenc.explorer import security
from posenc.explorer.security import Guard, Origin, RefusedError

LOCAL = Origin("127.0.0.1", 8765)


@pytest.fixture(scope="module")
def asked():
    return make(loaded=False)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8765", "localhost:8765", "LOCALHOST:8765", "[::1]:8765", "localhost.:8765"]
)
def test_the_server_knows_its_names(host):
    assert LOCAL.known(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "127.0.0.1",  # another port
        "127.0.0.1:8766",
        "localhost.evil.example:8765",
        "127.0.0.1.evil.example:8765",
        "evil.example@127.0.0.1:8765",
        "user:8765@localhost:8765",
        "127.0.0.1:8765/path",
        "127.0.0.1:8765?",
        "127.0.0.2:8765",
        "0.0.0.0:8765",
        "[::1",
        ":8765",
        "",
        "127.0.0.1:port",
        "127.0.0.1:99999999",
    ],
)
def test_other_names_are_refused(asked, host):
    assert not LOCAL.known(host)
    _, client = asked
    for path in ("/", "/api/start", "/static/icon.svg"):
        answer = client.get(path, headers={"host": host})
        assert answer.status_code == 403
        assert "token" not in answer.text


def test_a_port_that_browsers_leave_out():
    assert Origin("127.0.0.1", 80).known("localhost")
    assert not Origin("127.0.0.1", 80).known("localhost:8765")


def test_listening_everywhere_digits_and_the_own_name_are_known():
    everywhere = Origin("0.0.0.0", 8765)
    for host in ("192.168.1.7:8765", "[fe80::1]:8765", "localhost:8765", f"{socket.gethostname()}:8765"):
        assert everywhere.known(host)
    assert not everywhere.known("evil.example:8765")  # a name is what DNS rebinding needs
    assert everywhere.url == "http://127.0.0.1:8765/"
    assert not everywhere.local


def test_listening_at_one_address():
    there = Origin("192.168.1.7", 8765)
    assert there.known("192.168.1.7:8765")
    assert not there.known("localhost:8765")
    assert not there.local
    assert Origin("::1", 8765).url == "http://[::1]:8765/"


def hosts_of(app, *hosts):
    """Ask with these Host headers, which no client lets one do."""
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"host", host) for host in hosts]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "query_string": b"", "root_path": ""}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"]


def test_a_question_names_one_host():
    server, _ = make(loaded=False)
    app = server.app()
    assert hosts_of(app, HOST.encode()) == 200
    assert hosts_of(app) == 403
    assert hosts_of(app, HOST.encode(), b"evil.example") == 403
    assert hosts_of(app, HOST.encode(), HOST.encode()) == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "GETX"])
@pytest.mark.parametrize("path", ["/", "/api/start", "/api/view/heat", "/static/icon.svg", "/plotly.js", "/nowhere"])
def test_only_reading_is_answered(asked, method, path):
    _, client = asked
    assert client.request(method, path, headers=SAME).status_code == 405


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_inspect_takes_post_alone(asked, method):
    _, client = asked
    assert client.request(method, "/inspect", headers=SAME).status_code == 405
    assert client.get("/inspect").status_code == 405


def test_head_has_no_body(asked):
    _, client = asked
    answer = client.head("/")
    assert answer.status_code == 200
    assert answer.content == b""


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 200),
        ("/static/icon.svg", {}, 200),
        ("/api/start", {}, 200),
        ("/nowhere", {}, 404),
        ("/api/view/heat", {}, 503),
        ("/", {"host": "evil.example"}, 403),
    ],
)
def test_every_answer_is_fenced(asked, path, headers, status):
    _, client = asked
    answer = client.get(path, headers={"origin": "http://evil.example", **headers})
    assert answer.status_code == status
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-store"
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_pages_of_other_sites_cannot_make_it_compute(asked, site, status):
    _, client = asked
    assert client.get("/api/start", headers={"sec-fetch-site": site}).status_code == status
    assert client.get("/", headers={"sec-fetch-site": site}).status_code == 200  # a link to the page is no harm


@pytest.mark.parametrize(
    "wrong",
    [
        {"x-posenc-token": ""},
        {"x-posenc-token": "wrong"},
        {"x-posenc-token": "é"},
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://localhost:8765"},  # a name of this server, and not the one that was asked
        {"origin": f"https://{HOST}"},
        {"origin": "null"},
        {"origin": ""},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_posts_come_from_the_own_page(asked, wrong):
    server, client = asked
    right = {**SAME, "x-posenc-token": server.token}
    said = client.post("/inspect", content=b"{}", headers=right)
    assert said.status_code == 503  # allowed, though nothing is loaded yet
    headers = {name: value.encode() for name, value in {**right, **wrong}.items()}
    refused = client.post("/inspect", content=b"{}", headers=headers)
    assert refused.status_code == 403
    assert server.token not in refused.text


@pytest.mark.parametrize("without", ["x-posenc-token", "origin"])
def test_posts_bear_token_and_origin(asked, without):
    server, client = asked
    headers = {**SAME, "x-posenc-token": server.token}
    del headers[without]
    assert client.post("/inspect", content=b"{}", headers=headers).status_code == 403


def test_tokens_are_compared_in_constant_time(asked, monkeypatch):
    server, client = asked
    seen = []
    monkeypatch.setattr(security.secrets, "compare_digest", lambda a, b: seen.append((a, b)) or True)
    headers = {**SAME, "x-posenc-token": "anything"}
    assert client.post("/inspect", content=b"{}", headers=headers).status_code == 503
    assert seen == [(b"anything", server.token.encode())]


def test_tokens_are_long_and_never_the_same():
    tokens = {make(loaded=False)[0].token for _ in range(3)}
    assert len(tokens) == 3
    assert min(map(len, tokens)) >= 32


def read(chunks, headers=None, limit=10):
    """Read a body that comes in chunks; returns it, and how many of them were taken."""
    taken = []

    async def receive():
        taken.append(chunks[len(taken)])
        last = len(taken) == len(chunks)
        return {"type": "http.request", "body": taken[-1], "more_body": not last}

    try:
        return asyncio.run(security.read_body(headers or {}, receive, limit)), len(taken)
    except RefusedError as refused:
        return refused.status, len(taken)


def test_a_body_is_read_up_to_its_limit():
    assert read([b"12345", b"67890"]) == (b"1234567890", 2)
    assert read([b""]) == (b"", 1)


def test_a_chunked_body_is_left_where_it_is_too_long():
    assert read([b"12345", b"67890", b"1", b"2", b"3"]) == (413, 3)


@pytest.mark.parametrize("said", ["11", "99999999999999999999999999999", "-1", "1e3", "ten", ""])
def test_a_body_that_says_it_is_long_is_not_read(said):
    assert read([b"1"], {"content-length": said}) == (413, 0)


def test_a_length_that_lies_does_not_help():
    assert read([b"12345", b"67890", b"1"], {"content-length": "5"}) == (413, 3)


def test_a_body_that_breaks_off():
    async def receive():
        return {"type": "http.disconnect"}

    with pytest.raises(RefusedError, match="broke off"):
        asyncio.run(security.read_body({}, receive))


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("chunked", [False, True])
def test_one_mebibyte_may_be_posted(asked, extra, chunked):
    server, client = asked
    body = b" " * (2**20 + extra)
    content = iter([body[:1000], body[1000:]]) if chunked else body
    answer = client.post("/inspect", content=content, headers={**SAME, "x-posenc-token": server.token})
    assert answer.status_code == (413 if extra else 503)


def test_websockets_get_no_answer():
    sent = []
    asyncio.run(Guard(None, origin=LOCAL)({"type": "websocket", "path": "/", "headers": []}, None, sent.append))
    assert sent == []
