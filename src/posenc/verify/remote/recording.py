"""Questions written to a file, to be answered on another machine, and the judgement of the answers found there."""

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.verify.engine import Case, Family
from posenc.verify.guard import NotAnsweredError, SubjectError
from posenc.verify.remote import arrays, messages
from posenc.verify.remote.calls import Answer, subject
from posenc.verify.report import Cause

QUESTIONS, ANSWERS = "questions.jsonl", "answers.jsonl"
MOST = 20_000  # questions of one recording


class _Calls:
    """Calls by what they ask: the function, its arguments, and what this instance was asked before.

    Args:
        directory: Where array files lie.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.history: dict[int, str] = {}
        self.results: dict[int, list[tuple[Answer, Tensor]]] = {}

    def line(self, number: int, function: str, instance: int, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call as JSON; arguments that this instance has returned are named by their place."""
        named = {name: self._place(instance, value) for name, value in args.items()}
        return messages.call(number, function, instance, named, self.directory)

    def _place(self, instance: int, value: Any) -> Any:
        if isinstance(value, Tensor):
            for place, known in reversed(self.results.get(instance, [])):
                if known.shape == value.shape and known.dtype == value.dtype and torch.equal(known, value):
                    return place
        return value

    def keep(self, instance: int, number: int, found: Any) -> None:
        """Remember an answer, for calls that pass it back."""
        items = found if isinstance(found, list | tuple) else [found]
        for i, item in enumerate(items):
            if isinstance(item, Tensor) and item.is_floating_point() and item.numel() > 1:
                place = Answer(number, i if items is found else None)
                self.results.setdefault(instance, []).append((place, item.detach().clone()))

    def key(self, instance: int, fields: Mapping[str, Any]) -> str:
        """Return what identifies a call, and add it to the instance's history."""
        asked = json.dumps([fields["function"], fields["args"]], sort_keys=True)
        self.history[instance] = str(hash((self.history.get(instance, ""), asked)))
        return self.history[instance]


class Recorder(_Calls):
    """Writes down calls and returns results of the right shape.

    Args:
        spec: The specification; its widths give shapes.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(None)
        self.spec, self.lines, self.known = spec, list[dict[str, Any]](), set[str]()
        self.generator = torch.Generator().manual_seed(0)

    def ask(self, function: str, instance: int, args: Mapping[str, Any]) -> Any:
        """Write a call down."""
        if len(self.lines) >= MOST:
            raise NotAnsweredError(f"a recording has at most {MOST:,} questions")
        fields = self.line(len(self.lines) + 1, function, instance, args)
        self.lines.append(fields)
        found = self._result(function, args)
        self.keep(instance, len(self.lines), found)
        return found

    def _result(self, function: str, args: Mapping[str, Any]) -> Any:
        """Return numbers of the shape that a subject would return."""
        first = next(iter(args.values()))
        random = lambda *shape: torch.randn(*shape, generator=self.generator)  # noqa: E731
        width = int(self.spec.get("head_dim") or self.spec.get("dim") or self.spec.get("d_model") or 64)
        if function == "model":
            return [torch.randn_like(first), Answer(len(self.lines), 1)]
        if function in ("apply", "xpos") or (function == "forward" and "q" in args):
            return [random(*args["q"].shape), random(*args["k"].shape)]
        if function == "rotary":
            return [random(*args["position_ids"].shape, width) for _ in range(2)]
        if function == "angles":
            return random(args["position_ids"].shape[1], width // 2)
        if function == "slopes":
            return [2.0 ** -(i + 1) for i in range(args["n_heads"])]
        if function == "bias":
            return random(args["heads"], args["q_len"], args["kv_len"])
        if function == "index":
            return torch.zeros(args["h"] * args["w"], args["h"] * args["w"], dtype=torch.long)
        if function == "table":
            return random(args["h"] * args["w"], width // 2) if "h" in args else random(2 * args["n"] - 1, width)
        if "segments" in args:
            length = sum(part if isinstance(part, int) else math.prod(part) for part in first)
            return torch.zeros(3, length, dtype=torch.long)
        if function == "positions":
            if "q_len" in args:
                return torch.zeros(first.shape[0], args["q_len"], dtype=torch.long)
            return torch.zeros(int(first[-1]), dtype=torch.long)
        return torch.zeros_like(first) if function in ("bucket", "rows") else random(*first.shape)


class Recording(_Calls):
    """Answers out of a directory that holds questions and answers.

    Args:
        directory: Where they lie.

    Raises:
        ValueError: A file is missing, too large, or holds no such lines.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(None)
        self.home, self.number = directory, 0
        self.answers = {fields.get("call"): fields for fields in _lines(directory / ANSWERS)}
        self.numbers: dict[str, int] = {}
        replay = _Calls(None)
        for fields in _lines(directory / QUESTIONS):
            try:
                self.numbers[replay.key(int(fields["instance"]), fields)] = int(fields["call"])
            except (KeyError, TypeError, ValueError):
                raise ValueError(f"verify: {directory / QUESTIONS} holds a line that is no question.") from None

    def ask(self, function: str, instance: int, args: Mapping[str, Any]) -> Any:
        """Return the recorded answer to a call.

        Raises:
            NotAnsweredError: This was not asked, or is not answered.
            SubjectError: The answer is none.
            RuntimeError: The subject reported an error.
        """
        number = self.numbers.get(self.key(instance, self.line(0, function, instance, args)))
        if number is None or number not in self.answers:
            raise NotAnsweredError("the recording has no answer")
        try:
            found = messages.result(self.answers[number], number, self.home)
        except ValueError as error:
            case = {"call": f"{function}, call {number}"}
            message = f"the answer to {function} cannot be used: {error}"
            raise SubjectError(Cause("subject.answers", message, 1.0, case)) from None
        self.keep(instance, number, found)
        return found


def write_questions(family: Family, directory: Path) -> int:
    """Write the questions of a check to a directory, and return how many there are.

    Raises:
        ValueError: The directory holds questions already or cannot be written, or the convention cannot be recorded.
    """
    if family.convention == "meta_complex":
        raise ValueError("verify: rows are taken out of the table of meta_complex; ask a program by --exec instead.")
    if (directory / QUESTIONS).exists():
        raise ValueError(f"verify: {directory} holds {QUESTIONS} already. Name another directory.")
    recorder = Recorder(family.spec)
    stand_in = subject(family.convention, recorder)
    for case in family.cases():
        asked: Case | None = case
        while asked is not None:
            with contextlib.suppress(SubjectError, NotAnsweredError):  # the stand-in's answers mean nothing
                family.observe(stand_in, asked)
            asked = asked.otherwise
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / QUESTIONS).write_bytes(b"".join(map(arrays.line, recorder.lines)))
    except OSError as error:
        raise ValueError(f"verify: the questions cannot be written to {directory}: {error.strerror}.") from None
    return len(recorder.lines)


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file, one a line."""
    try:
        if path.is_symlink() or path.stat().st_size > messages.LONGEST:
            raise ValueError(f"verify: {path} is a link, or larger than {messages.LONGEST:,} bytes.")
        texts = path.read_bytes().splitlines()
    except OSError:
        raise ValueError(f"verify: there is no file {path}. `posenc cases` writes the questions.") from None
    found = [messages.parse(text) for text in texts if text.strip()]
    if None in found:
        raise ValueError(f"verify: line {found.index(None) + 1} of {path} is no JSON object.")
    return [fields for fields in found if fields is not None]
