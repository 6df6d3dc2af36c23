"""How long a process works, with all that it started, and how long it only waits: a busy machine is not its fault."""

import contextlib
import os
import time
from pathlib import Path
from typing import Literal

PATIENCE = 10  # times the limit: for a process that neither works as long nor stops working
_STEP = 0.5  # seconds between measurements


class Clock:
    """Limits of the processor time of a session's processes, and of the time in which they use none.

    Args:
        session: The process that leads the session.
        seconds: Processor time that they may use, if at least as much time has passed: threads work in parallel.
        idle: Seconds for which they may wait without using the processor.

    Attributes:
        late: Why the time is up: "works" or "waits"; empty before.
        passed: Seconds that count, and `worked` of them in processor time, None if the system does not show it.
    """

    def __init__(self, session: int, seconds: float, idle: float) -> None:
        self.session, self.seconds, self.idle = session, seconds, idle
        self.late: Literal["", "works", "waits"] = ""
        self.passed, self.moved, self.worked = 0.0, 0.0, 0.0
        self.last, self.begun = time.monotonic(), _processor_time(session)
        self.step = min(_STEP, seconds / 5, idle / 5)

    def tick(self, counts: bool = True) -> None:
        """Measure, unless that was just done; time before this call that does not count is not theirs."""
        now = time.monotonic()
        if not counts:
            self.last = now
        elif now - self.last >= self.step:
            self.passed, self.last = self.passed + now - self.last, now
            self._judge()

    def _judge(self) -> None:
        total = _processor_time(self.session)
        if total is not None and self.begun is not None and total - self.begun > self.worked:
            self.worked, self.moved = total - self.begun, self.passed
        if min(self.worked, self.passed) > self.seconds:
            self.late = "works"
        elif self.passed - self.moved > self.idle or self.passed > PATIENCE * self.seconds:
            self.late = "waits"

    def words(self) -> str:
        """Return what was measured when the time was up."""
        if self.begun is None:
            return f"in {self.passed:,.0f} seconds; this system does not show how long it computed"
        return f"in {self.passed:,.0f} seconds, in which it computed for {self.worked:,.1f} and otherwise waited"


def _processor_time(session: int) -> float | None:
    """Return the processor time of all processes of a session in seconds, None if the system does not show it."""
    ticks, found = 0, False
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = path.read_text().rpartition(") ")[2].split()
            if int(fields[3]) == session:
                ticks, found = ticks + sum(map(int, fields[11:15])), True  # its own, and of children that have ended
    return ticks / os.sysconf("SC_CLK_TCK") if found else None
