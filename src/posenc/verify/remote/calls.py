"""Stand-ins for the objects that a check calls, answered by a program in any language."""

import itertools
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from posenc.verify.child.process import Running, parse
from posenc.verify.conventions import CONVENTIONS
from posenc.verify.guard import CannotTellError, NotAnsweredError, SubjectError
from posenc.verify.remote import messages
from posenc.verify.report import Cause

NOISE = 1000  # the most other lines between two answers
PATIENT, IDLE = 10.0, 30.0  # seconds without an answer: then we warn, and, if the program does not compute, end it
UNFLUSHED = "no complete line arrived; flush after each answer"


@dataclass(eq=False)
class Remote:
    """A function that is answered elsewhere; a deep copy of it is another instance in its initial state."""

    channel: Any  # answers by `ask(function, instance, arguments by name)`
    function: str
    names: tuple[str, ...]  # of the arguments
    instances: Iterator[int]  # numbers for new ones
    instance: int = 0

    def __deepcopy__(self, memo: dict[Any, Any]) -> "Remote":
        """Return a new instance; functions that are copied together share it."""
        key = ("posenc instance", self.instance)
        if key not in memo:
            memo[key] = next(self.instances)
        return replace(self, instance=memo[key])

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return the answer to a call."""
        given = dict(zip(self.names, args, strict=False)) | named
        if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in given.values()):
            raise NotAnsweredError("programs and recordings give no gradients")
        return self.channel.ask(self.function, self.instance, given)


def subject(convention: str, channel: Any) -> Any:
    """Return the object that a check of a convention calls, answered by a channel.

    Raises:
        ValueError: The convention is only for Python objects.
    """
    if not (functions := CONVENTIONS[convention].functions):
        raise ValueError(f"verify: {convention} is only for Python objects. Use another convention for a program.")
    instances = itertools.count(1)
    made = [Remote(channel, name, names, instances) for name, names in functions.items()]
    if convention == "lucidrains":
        return SimpleNamespace(rotate_queries_or_keys=made[0])
    return tuple(made) if len(made) > 1 else made[0]


class Program:
    """A running program that reads calls from its standard input and writes answers to its output.

    Args:
        command: The program and its arguments, split like a shell does; no shell runs.
        seconds: The limit of its processor time in total.
        memory: Bytes that it may map beyond what it needs to start, if the system has such limits.
        files: Pass arrays as .npy files in the directory POSENC_ARRAYS instead of inline.
        warn: Called with a sentence if an answer takes long.

    Raises:
        ValueError: The program cannot be started.
    """

    def __init__(
        self,
        command: str,
        *,
        seconds: float,
        memory: int,
        files: bool = False,
        warn: Callable[[str], None] = lambda said: None,
    ) -> None:
        self.number, self.noise, self.warn = 0, list[str](), warn
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
        self.running.is_asked = False
        self.running.limit_time(seconds, IDLE)
        self.running.limit_memory(memory)

    def ask(self, function: str, instance: int, args: Mapping[str, Any]) -> Any:
        """Return the program's answer to one call; an error that it reports becomes a RuntimeError."""
        self.number += 1
        asked = messages.line(messages.call(self.number, function, instance, args, self.arrays))
        said = f"verify: after {PATIENT:g} seconds of call {self.number} of {function}: {UNFLUSHED}."
        late = threading.Timer(PATIENT, self.warn, [said])
        late.daemon = self.running.is_asked = True
        late.start()
        try:
            self.running.send(asked)
            return messages.answered(function, self.number, self.place, lambda: self._answer(function))
        finally:
            self.running.is_asked = False
            late.cancel()

    def _answer(self, function: str) -> dict[str, Any]:
        """Return the next line that is a JSON object; keep what the program prints in between."""
        for _ in range(NOISE):
            text = self.running.stdout.readline(messages.LONGEST)
            if not text.endswith(b"\n") and len(text) < messages.LONGEST:
                raise SubjectError(self._silence(function))
            if not text.endswith(b"\n"):
                raise ValueError(f"a line of more than {messages.LONGEST:,} bytes")
            if (found := parse(text)) is not None:
                return found
            self.noise.append(text[:200].decode("utf-8", "replace").rstrip())
        raise ValueError(f"{NOISE} lines that are not JSON objects")

    def _silence(self, function: str) -> Cause:
        try:
            return self.running.silence(f"the call of {function}", call=f"{function}, call {self.number}")
        except CannotTellError as error:
            raise CannotTellError(f"{UNFLUSHED}: {error}") from None

    def text(self) -> str:
        """Return the text that the program printed between answers and to stderr."""
        return "\n".join([*self.noise, self.running.printed()]).strip()

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        """End the program and all its descendants."""
        self.running.end()
        self.directory.cleanup()
