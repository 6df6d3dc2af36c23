"""A program in any language as a subject: it reads calls from its standard input and writes answers to its output."""

import contextlib
import os
import secrets
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from posenc.verify.child.group import MARK, Printed, end, opened
from posenc.verify.guard import SubjectError
from posenc.verify.remote import arrays, messages
from posenc.verify.report import Cause

# ends the program's group when our end of the pipe closes, also where we are killed
_WATCH = "import os, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), 9)"
NOISE = 1000  # lines that are no answers and may stand between two answers


class Program:
    """A running program that answers calls.

    Args:
        command: The program and its arguments, as a shell splits them; no shell runs.
        seconds: How long it may run in all.
        memory: Bytes that it may map, where the system has such limits.
        files: Pass arrays as .npy files in a directory, whose path is in POSENC_ARRAYS, not in line.

    Raises:
        ValueError: The program cannot be started.
    """

    def __init__(self, command: str, *, seconds: float, memory: int, files: bool = False) -> None:
        self.command, self.seconds, self.number = command, seconds, 0
        self.directory = TemporaryDirectory(prefix="posenc-")
        self.arrays = Path(self.directory.name) if files else None
        self.mark, self.noise, self.late = secrets.token_hex(16), list[str](), False
        try:
            self.process = subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | {MARK: self.mark, "POSENC_ARRAYS": self.directory.name},
                start_new_session=True,
            )
        except (OSError, ValueError, IndexError) as error:
            self.directory.cleanup()
            raise ValueError(
                f"verify: --exec {command!r:.100} cannot be started: {error}. Give a program and its arguments."
            ) from None
        _limit(self.process.pid, memory)
        watch = [sys.executable, "-S", "-c", _WATCH, str(self.process.pid)]
        self.watcher = subprocess.Popen(watch, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        self.printed = Printed(self.process)
        self.clock = threading.Timer(seconds, self._stop)
        self.clock.daemon = True
        self.clock.start()

    def ask(self, function: str, instance: int, args: Mapping[str, Any]) -> Any:
        """Return the program's answer to one call.

        Raises:
            SubjectError: It hangs, ends, or answers what is no answer.
            RuntimeError: It reports an error of its own.
        """
        self.number += 1
        fields = messages.call(self.number, function, instance, args, self.arrays)
        try:
            pipe = opened(self.process.stdin)
            pipe.write(arrays.line(fields))
            pipe.flush()
        except OSError:
            raise SubjectError(self._gone(function)) from None
        answer = self._answer(function)
        try:
            return messages.result(answer, self.number, Path(self.directory.name))
        except ValueError as error:
            raise SubjectError(self._wrong(str(error), function)) from None

    def _answer(self, function: str) -> dict[str, Any]:
        """Return the next line that is a JSON object; what the program prints between is kept."""
        for _ in range(NOISE):
            text = opened(self.process.stdout).readline(messages.LONGEST)
            if not text:
                raise SubjectError(self._gone(function))
            if not text.endswith(b"\n"):
                raise SubjectError(self._wrong(f"a line of over {messages.LONGEST:,} bytes", function))
            if (found := messages.parse(text)) is not None:
                return found
            self.noise.append(text[:200].decode("utf-8", "replace").rstrip())
        raise SubjectError(self._wrong(f"{NOISE} lines that are no JSON objects", function))

    def _wrong(self, message: str, function: str) -> Cause:
        case = {"call": f"{function}, call {self.number}"}
        help_ = "Answer each line with one line of JSON, as the page on programs in the documentation says."
        return Cause(
            "subject.answers", f"the program's answer to {function} cannot be used: {message}", 1.0, case, help_
        )

    def _gone(self, function: str) -> Cause:
        """Return why there is no answer: time was up, or the program has ended."""
        case = {"call": f"{function}, call {self.number}"}
        if self.late:
            message = f"the program had not answered {function} after {self.seconds:g} seconds, and was stopped"
            return Cause("subject.hangs", message, self.seconds, case, "Write each answer at once, and flush it.")
        code = self._code()
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            message = f"the program was ended by {name} before it answered {function}"
            return Cause("subject.crashes", message, float(-code), case, "Run it in a debugger with this call.")
        message = f"the program ended with exit code {code} before it answered {function}"
        return Cause("subject.exits", message, float(code), case, "Answer calls until the input ends.")

    def _code(self) -> int:
        """Return the exit code of a program whose output has ended; one that goes on without it is stopped."""
        try:
            return self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            return 0

    def _stop(self) -> None:
        self.late = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def text(self) -> str:
        """Return what the program printed, on its output between answers and as errors."""
        self.printed.join(1.0)
        return "\n".join([*self.noise, self.printed.text()]).strip()

    def __enter__(self) -> "Program":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the program and all that it started."""
        self.clock.cancel()
        with contextlib.suppress(OSError):
            opened(self.process.stdin).close()
        end(self.process, self.mark)
        self.watcher.kill()
        self.watcher.communicate()
        with contextlib.suppress(OSError):
            opened(self.process.stdout).close()
        self.directory.cleanup()


def _limit(process: int, memory: int) -> None:
    """Limit the memory of a process that has started; a system without such limits goes without."""
    with contextlib.suppress(ImportError, AttributeError, OSError, ValueError):
        import resource

        resource.prlimit(process, resource.RLIMIT_AS, (memory, memory))
