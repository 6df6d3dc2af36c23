"""A program in any language as a subject: it reads calls from its standard input and writes answers to its output."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from posenc.verify.child.running import Running, parse
from posenc.verify.guard import SubjectError
from posenc.verify.remote import messages

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
        self.number, self.noise = 0, list[str]()
        self.directory = TemporaryDirectory(prefix="posenc-")
        self.place = Path(self.directory.name)
        self.arrays = self.place if files else None
        try:
            self.running = Running(shlex.split(command), seconds, POSENC_ARRAYS=self.directory.name)
        except (OSError, ValueError, IndexError) as error:
            self.directory.cleanup()
            raise ValueError(
                f"verify: --exec {command!r:.100} cannot be started: {error}. Give a program and its arguments."
            ) from None
        self.running.limit_memory(memory, more=False)

    def ask(self, function: str, instance: int, args: Mapping[str, Any]) -> Any:
        """Return the program's answer to one call.

        Raises:
            SubjectError: It hangs, ends, or answers what is no answer.
            RuntimeError: It reports an error of its own.
        """
        self.number += 1
        self.running.send(messages.line(messages.call(self.number, function, instance, args, self.arrays)))
        try:
            return messages.result(self._answer(function), self.number, self.place)
        except ValueError as error:
            raise SubjectError(messages.unusable(function, self.number, error)) from None

    def _answer(self, function: str) -> dict[str, Any]:
        """Return the next line that is a JSON object; what the program prints between is kept."""
        for _ in range(NOISE):
            text = self.running.read(messages.LONGEST)
            if not text:
                doing = f"the call of {function}"
                raise SubjectError(self.running.silence(doing, call=f"{function}, call {self.number}"))
            if not text.endswith(b"\n"):
                raise ValueError(f"a line of over {messages.LONGEST:,} bytes")
            if (found := parse(text)) is not None:
                return found
            self.noise.append(text[:200].decode("utf-8", "replace").rstrip())
        raise ValueError(f"{NOISE} lines that are no JSON objects")

    def text(self) -> str:
        """Return what the program printed, on its output between answers and as errors."""
        return "\n".join([*self.noise, self.running.printed()]).strip()

    def __enter__(self) -> "Program":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the program and all that it started."""
        self.running.end()
        self.directory.cleanup()
