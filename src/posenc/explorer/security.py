"""What the explorer's server refuses: strangers' names for it, strangers' pages, other methods, long bodies.

A page of any site can make a browser ask 127.0.0.1. It cannot read the answer without CORS, which is never given,
unless it makes its own name point here (DNS rebinding): then the Host header bears that name.
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

MAX_BODY = 1 << 20  # bytes of a POST
TOKEN_HEADER = "x-posenc-token"
_EVERYWHERE = {"0.0.0.0", "::"}
_READING = {"GET", "HEAD"}
_LOCAL = {"127.0.0.1", "::1", "localhost"}
_ALWAYS = {
    # style-src-attr: charts place their parts by style attributes written through the DOM, which needs no exception
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",  # answers bear the token or an uploaded model's numbers
}


class RefusedError(Exception):
    """What a question is refused with: a status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


@dataclass(frozen=True)
class Origin:
    """Where the server listens, and the names that it goes by.

    Args:
        host: The address as given.
        port: The port.
    """

    host: str
    port: int

    def known(self, given: str) -> bool:
        """Say whether a Host header names this server.

        Listening everywhere, any address in digits does: a name is needed to point a browser here unasked.

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
        """Whether this machine alone can reach it."""
        return self.host in _LOCAL

    @property
    def url(self) -> str:
        """What a browser on this machine opens."""
        host = "127.0.0.1" if self.host in _EVERYWHERE else self.host
        return f"http://[{host}]:{self.port}/" if ":" in host else f"http://{host}:{self.port}/"


def _in_digits(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """ASGI middleware: checks every question before anything else sees it, and sets headers on every answer.

    Args:
        app: What answers.
        origin: Where the server listens.
        posts: Paths that take POST beside GET and HEAD.
    """

    def __init__(self, app: ASGIApp, *, origin: Origin, posts: Iterable[str] = ()) -> None:
        self.app, self.origin, self.posts = app, origin, frozenset(posts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check and answer one question."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # a websocket that nobody accepts is refused by the server

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers[name] = value
                if scope["method"] not in _READING and message["status"] >= 400:
                    headers["connection"] = "close"  # or the rest of a body that nobody wants is taken to its end
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
            raise RefusedError(403, f"This server answers at {self.origin.url} and by no other name.")
        allowed = {*_READING, "POST"} if scope["path"] in self.posts else _READING
        if scope["method"] not in allowed:
            raise RefusedError(405, f"This address takes {' and '.join(sorted(allowed))} only.")
        asks = scope["path"].startswith("/api/") or scope["method"] == "POST"
        if asks and headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            raise RefusedError(403, "Pages of other sites get no answer here.")


def check_post(headers: Mapping[str, str], token: str, origin: Origin) -> None:
    """Refuse a POST that does not come from the page that this server sent.

    Raises:
        RefusedError: Its origin is another, it names none, or its token is wrong.
    """
    came_from = urlsplit(headers.get("origin", ""))
    if came_from.scheme != "http" or came_from.netloc != headers.get("host") or not origin.known(came_from.netloc):
        raise RefusedError(403, "Only the page that this server sent may post here: the Origin is another.")
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise RefusedError(403, "Only the page that this server sent may post here.")
    if not secrets.compare_digest(headers.get(TOKEN_HEADER, "").encode(), token.encode()):
        raise RefusedError(403, "The token is wrong: the server has been started again. Reload the page.")


async def read_body(headers: Mapping[str, str], receive: Receive, limit: int = MAX_BODY) -> bytes:
    """Return a question's body, of which no more than the limit is ever held.

    Raises:
        RefusedError: It is longer, says so, or breaks off.
    """
    said = headers.get("content-length", "0")
    long = RefusedError(413, f"At most {limit:,} bytes are read. Of a checkpoint, send the header alone.")
    if not said.isdecimal() or int(said[:20]) > limit:
        raise long
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise RefusedError(400, "The body broke off.")
        body += message.get("body", b"")
        if len(body) > limit:  # sent in chunks, it says no length
            raise long
        more = message.get("more_body", False)
    return bytes(body)
