"""Work beside the server, what is slow to load and the answers, in threads that do not keep the program alive."""

import sys
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any


class Loading:
    """Work that runs once.

    Args:
        work: What loads (torch, the encodings, the views); its failure is told on the page, and to the terminal.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._done = work, Event()
        self.failure: str | None = None

    @property
    def ready(self) -> bool:
        """Whether everything is there."""
        return self._done.is_set() and self.failure is None

    def start(self) -> None:
        """Begin; returns at once."""
        Thread(target=self._run, name="posenc-loading", daemon=True).start()

    def wait(self) -> None:
        """Wait until the work has ended, well or badly."""
        self._done.wait()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # whatever it is, somebody looks at the page and waits
            traceback.print_exception(error, file=sys.stderr)
            self.failure = f"The explorer could not load: {type(error).__name__}: {error}"
        finally:
            self._done.set()


class Worker:
    """One thread that does one thing after another.

    A pool's threads would be waited for at the end of the program, and an answer may take long.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        Thread(target=self._run, name="posenc-answers", daemon=True).start()

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Put work in the queue and return its future."""
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
            except BaseException as error:  # whoever waits is told
                future.set_exception(error)
