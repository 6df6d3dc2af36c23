"""Refuse requests with foreign host names, from foreign pages, with other methods, or with long bodies.

A page of any site can make a browser send requests to 127.0.0.1. It cannot read the answers without CORS headers, which
this server never sends, unless its own host name resolves to 127.0.0.1 (DNS rebinding): then the Host header has that
name.
"""

import ipaddress
import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from posenc.languages import tr

MAX_BODY = 1 << 20  # bytes of a POST
TOKEN_HEADER = "x-posenc-token"
_EVERYWHERE = {"0.0.0.0", "::"}
_READING = {"GET", "HEAD"}
_LOCAL = {"127.0.0.1", "::1", "localhost"}
_ALWAYS = {
    # style-src-attr is not needed: charts set style attributes through the DOM, which the policy allows
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",  # answers contain the token or an uploaded model's numbers
}


class RefusedError(Exception):
    """A refusal: an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


@dataclass(frozen=True)
class Origin:
    """The address and port where the server listens, and its valid host names.

    Args:
        host: The address as given.
        port: The port.
    """

    host: str
    port: int

    def known(self, given: str) -> bool:
        """Return whether a Host header names this server.

        A server on all addresses accepts every numeric address: DNS rebinding needs a name.

        >>> [Origin("127.0.0.1", 8765).known(h) for h in ("localhost:8765", "127.0.0.1:8765", "evil.example:8765")]
        [True, True, False]
        """
        try:
            parts = urlsplit(f"//{given}")
            name, port = (parts.hostname or "").rstrip("."), parts.port or 80
        except ValueError:
            return False
        if parts.netloc != given or "@" in given or port != self.port:
            return False
        if self.host in _EVERYWHERE:
            return name in {"localhost", socket.gethostname().lower()} or _in_digits(name)
        return name in (_LOCAL if self.host in _LOCAL else {self.host.lower()})

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in _LOCAL

    @property
    def url(self) -> str:
        """The address for a browser on this machine."""
        host = "127.0.0.1" if self.host in _EVERYWHERE else self.host
        return f"http://[{host}]:{self.port}/" if ":" in host else f"http://{host}:{self.port}/"


def _in_digits(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """ASGI middleware that checks every request first, and sets security headers on every response.

    Args:
        app: The app that answers.
        origin: The address and port of the server.
        posts: Paths that accept POST in addition to GET and HEAD.
    """

    def __init__(self, app: ASGIApp, *, origin: Origin, posts: Iterable[str] = ()) -> None:
        self.app, self.origin, self.posts = app, origin, frozenset(posts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check and answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # the server closes a websocket that the app does not accept

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers[name] = value
                if scope["method"] not in _READING and message["status"] >= 400:
                    headers["connection"] = "close"  # otherwise the server would read the rest of the body
            await send(message)

        try:
            self._check(scope, Headers(scope=scope))
        except RefusedError as refused:
            await JSONResponse({"error": refused.sentence}, refused.status)(scope, receive, send_guarded)
            return
        await self.app(scope, receive, send_guarded)

    def _check(self, scope: Scope, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.origin.known(hosts[0]):
            raise RefusedError(403, f"This server answers only at {self.origin.url}.")
        allowed = {*_READING, "POST"} if scope["path"] in self.posts else _READING
        if scope["method"] not in allowed:
            raise RefusedError(405, f"This address accepts only {' and '.join(sorted(allowed))}.")
        asks = scope["path"].startswith("/api/") or scope["method"] == "POST"
        if asks and headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            raise RefusedError(403, "This server does not answer pages of other sites.")


def check_post(headers: Mapping[str, str], token: str, origin: Origin) -> None:
    """Refuse a POST that does not come from the page that this server sent.

    Raises:
        RefusedError: The Origin is missing or foreign, or the token is wrong.
    """
    came_from = urlsplit(headers.get("origin", ""))
    if came_from.scheme != "http" or came_from.netloc != headers.get("host") or not origin.known(came_from.netloc):
        raise RefusedError(403, "Only the page from this server may post here; the Origin header differs.")
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise RefusedError(403, "Only the page from this server may post here.")
    if not secrets.compare_digest(headers.get(TOKEN_HEADER, "").encode(), token.encode()):
        raise RefusedError(403, tr("The token is wrong, because the server has been restarted. Reload the page."))


async def read_body(headers: Mapping[str, str], receive: Receive, limit: int = MAX_BODY) -> bytes:
    """Return a request's body; never hold more than the limit in memory.

    Raises:
        RefusedError: The body or its declared length exceeds the limit, or the connection breaks off.
    """
    said = headers.get("content-length", "0")
    long = RefusedError(413, tr("At most {limit:,} bytes are read. Send only the header of a checkpoint.", limit=limit))
    if not said.isdecimal() or int(said[:20]) > limit:
        raise long
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise RefusedError(400, "The body broke off.")
        body += message.get("body", b"")
        if len(body) > limit:  # a chunked body declares no length
            raise long
        more = message.get("more_body", False)
    return bytes(body)
