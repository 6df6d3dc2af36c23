"""Background threads for slow loading and for computing answers; they do not keep the program alive."""

import sys
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from posenc.languages import tr


class Loading:
    """Work that runs once.

    Args:
        work: Loads torch, the encodings and the views. A failure is reported on the page and in the terminal.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._done = work, Event()
        self.failure: str | None = None

    @property
    def ready(self) -> bool:
        """Whether the work has succeeded."""
        return self._done.is_set() and self.failure is None

    def start(self) -> None:
        """Start the work and return at once."""
        Thread(target=self._run, name="posenc-loading", daemon=True).start()

    def wait(self) -> None:
        """Wait until the work has succeeded or failed."""
        self._done.wait()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # the page waits, so it must show any failure
            traceback.print_exception(error, file=sys.stderr)
            self.failure = tr("The explorer could not load: {error:s}", error=f"{type(error).__name__}: {error}")
        finally:
            self._done.set()


class Worker:
    """One thread that runs submitted work in order.

    Not a thread pool, because Python would wait for its threads at exit, and an answer may take long.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        Thread(target=self._run, name="posenc-answers", daemon=True).start()

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Queue the work and return its future."""
        future: Future[Any] = Future()
        self._queue.put((work, future))
        return future

    def _run(self) -> None:
        while True:
            work, future = self._queue.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # raised where the result is awaited
                future.set_exception(error)
