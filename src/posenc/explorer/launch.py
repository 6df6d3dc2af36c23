"""Start the explorer: open a socket, run the server, and open a browser."""

import contextlib
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from posenc.explorer import targets
from posenc.explorer.security import Origin
from posenc.explorer.server import Server

HOST, PORT, TRIES = "127.0.0.1", 8765, 20
Say = Callable[[str], None]


def explore(
    target: str | None,
    *,
    say: Say,
    port: int | None = None,
    host: str | None = None,
    browser: bool = True,
    language: str | None = None,
) -> None:
    """Serve the explorer until Ctrl-C.

    Args:
        target: The first thing to show, as given on the command line.
        say: Prints a line.
        port: The port; 0 for any free one; None for the first free one from 8765.
        host: The address to listen on; None for this machine only.
        browser: Whether to open the page in a browser.
        language: The page's first language, "en" or "zh"; None for the browser's.

    Raises:
        ValueError: The target is unknown, or the port or address is not available.
        TypeError: The target is a class that is not an encoding.
    """
    use_one_core()
    chosen = targets.find(target)
    with contextlib.closing(listen(host or HOST, port)) as listener, contextlib.suppress(KeyboardInterrupt):
        origin = Origin(host or HOST, listener.getsockname()[1])
        server = Server(origin, chosen)
        server.loading.start()
        if not origin.local:
            say(
                f"Listening on {host}: everyone who can reach this address over the network can use the explorer, run "
                "computations on this machine, and see the files that you open. There is no password and no encryption."
            )
        state = "&".join(part for part in (chosen.state, f"lang={language}" if language else "") if part)
        url = origin.url + (f"?{state}" if state else "")
        say(f"The explorer is at {url} (Ctrl-C stops it).")
        web = _Web(_settings(server), server.end)
        if browser:
            threading.Thread(target=open_browser, args=(url,), daemon=True).start()
        web.run(sockets=[listener])


class _Web(uvicorn.Server):
    """A server that does not wait for long computations when it is stopped."""

    def __init__(self, config: uvicorn.Config, end: Callable[[], None]) -> None:
        super().__init__(config)
        self._end = end

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._end()
        super().handle_exit(sig, frame)


def use_one_core() -> None:
    """Let torch use one thread after its import, unless the environment sets another number.

    The computations are small. With a browser drawing on the same cores, more threads were up to fifty times slower.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def _settings(server: Server) -> uvicorn.Config:
    return uvicorn.Config(
        server.app(),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,  # there is no proxy, so forwarded headers are not trusted
        timeout_graceful_shutdown=1,
    )


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that already accepts connections, so that a browser may connect at once.

    Raises:
        ValueError: The port is taken, the address does not belong to this machine, or the system forbids it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = range(PORT, PORT + TRIES) if port is None else [port]
    for candidate in ports:
        try:
            return socket.create_server((host, candidate), family=family)
        except OSError as error:
            if port is None and _is_taken(error):
                continue
            taken = "another program listens there. Choose another --port, or 0 for any that is free"
            why = taken if _is_taken(error) else f"{error.strerror or error}. Choose another --host or --port"
            raise ValueError(f"explore: cannot listen on {host} port {candidate}: {why}.") from error
    raise ValueError(
        f"explore: the ports {PORT} to {PORT + TRIES - 1} are all taken. Give --port 0 for any that is free."
    )


def _is_taken(error: OSError) -> bool:
    import errno

    return error.errno == errno.EADDRINUSE


def open_browser(url: str) -> None:
    """Open a page, unless the only browsers would take over the terminal."""
    shown = "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ or "BROWSER" in os.environ
    if shown or not sys.platform.startswith("linux"):
        with contextlib.suppress(webbrowser.Error):
            webbrowser.open(url)


def export(target: str | None, path: Path, language: str | None = None) -> None:
    """Write the page about a target as one file, which opens in a language, or in the browser's.

    Raises:
        ValueError: The target is unknown or has a state, or the file cannot be written.
        TypeError: The target is a class that is not an encoding.
    """
    use_one_core()
    from posenc.explorer import export as exporting

    chosen = targets.find(target)
    if chosen.state:
        raise ValueError(
            "explore: --export writes a target's default pictures, so it takes no state. Leave out the question mark "
            "and the text after it; or open the page in that state and save it there."
        )
    exporting.write(chosen, path, language)
