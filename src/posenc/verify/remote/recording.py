"""Write questions to a file, to be answered on another machine, and read the answers for a check."""

import contextlib
import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.verify.child.process import parse
from posenc.verify.engine import CannotTellError, Case, Family
from posenc.verify.guard import NotAnsweredError, SubjectError
from posenc.verify.remote import messages
from posenc.verify.remote.calls import subject
from posenc.verify.remote.messages import Answer

QUESTIONS, ANSWERS = "questions.jsonl", "answers.jsonl"
ADAPTIVE = {
    "meta_complex": "the check reads rows of the table",
    "cached_model": "later calls depend on earlier answers",
}


class _Calls:
    """Calls, identified by the function, its arguments, and the earlier calls of the instance."""

    def __init__(self) -> None:
        self.history: dict[int, str] = {}
        self.results: dict[int, list[tuple[Answer, Tensor]]] = {}

    def call(self, number: int, function: str, instance: int, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call for JSON; arguments that this instance has returned become references."""
        named = {name: self._place(instance, value) for name, value in args.items()}
        return messages.call(number, function, instance, named)

    def _place(self, instance: int, value: Any) -> Any:
        for place, known in reversed(self.results.get(instance, [])):
            if isinstance(value, Tensor) and known.dtype == value.dtype and torch.equal(known, value):
                return place
        return value

    def keep(self, instance: int, number: int, found: Any) -> None:
        """Keep an answer, for calls that pass it back."""
        items = found if isinstance(found, list | tuple) else [found]
        for i, item in enumerate(items):
            if isinstance(item, Tensor) and item.is_floating_point() and item.numel() > 1:
                place = Answer(number, i if items is found else None)
                self.results.setdefault(instance, []).append((place, item.detach().clone()))

    def key(self, fields: Mapping[str, Any]) -> str:
        """Return the identity of a call, and add it to the instance's history."""
        instance = int(fields["instance"])
        asked = json.dumps([fields["function"], fields["args"]], sort_keys=True)
        self.history[instance] = str(hash((self.history.get(instance, ""), asked)))
        return self.history[instance]


class Recorder(_Calls):
    """Record calls and return results of the right shape, with the widths of a specification."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__()
        self.lines = list[dict[str, Any]]()
        self.width = int(spec.get("head_dim") or spec.get("dim") or spec.get("d_model") or 64)
        self.generator = torch.Generator().manual_seed(0)

    def ask(self, function: str, instance: int, args: Mapping[str, Any]) -> Any:
        """Record a call."""
        self.lines.append(self.call(len(self.lines) + 1, function, instance, args))
        found = self._result(function, args)
        self.keep(instance, len(self.lines), found)
        return found

    def _result(self, function: str, args: Mapping[str, Any]) -> Any:
        """Return numbers of the shape that a subject would return."""
        first, tokens = next(iter(args.values())), args.get("h", 0) * args.get("w", 0)
        random = partial(torch.randn, generator=self.generator)
        if function == "scores":
            return random(*args["q"].shape[:3], args["k"].shape[2])
        if "q" in args and function != "attention":
            return [random(args["q"].shape), random(args["k"].shape)]
        if function == "rotary":
            return [random(*args["position_ids"].shape, self.width) for _ in range(2)]
        if function == "slopes":
            return [2.0 ** -(i + 1) for i in range(args["n_heads"])]
        if function == "bias" and "heads" in args:
            return random(*args.values())
        if function == "bias":  # learned: of a text, or of an image with or without a class token
            heads = args["w2"].shape[0] if "w2" in args else args["table"].shape[1]
            n = tokens + ("table" in args)
            return random(heads, *((n, n) if tokens else (args["q_len"], args["kv_len"])))
        if function in ("angles", "table"):
            rows, width = first.shape[1] if function == "angles" else tokens, self.width // 2
            return random(rows or 2 * args["n"] - 1, width if rows else self.width)
        if function in ("rope", "forward", "attention", "score_mod", "shift", "rotate_queries_or_keys"):
            return random(first.shape)
        shape = [tokens, tokens] if function == "index" else list(first.shape) if isinstance(first, Tensor) else [3]
        if "segments" in args:
            shape += [sum(part if isinstance(part, int) else math.prod(part) for part in first)]
        if function == "positions" and isinstance(first, Tensor):
            shape = [len(first), args["q_len"]] if "q_len" in args else [int(first[-1])]
        return torch.zeros(shape, dtype=torch.long)


class Recording(_Calls):
    """Answers from a directory of questions and answers; a ValueError if files are missing, too large or invalid."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.home, self.numbers = directory, dict[str, int]()
        self.answers = {str(fields.get("call")): fields for fields in _lines(directory / ANSWERS)}
        asked = _Calls()
        for fields in _lines(directory / QUESTIONS):
            try:
                self.numbers[asked.key(fields)] = int(fields["call"])
            except (KeyError, TypeError, ValueError):
                raise ValueError(f"verify: {directory / QUESTIONS} contains a line that is not a question.") from None

    def ask(self, function: str, instance: int, args: Mapping[str, Any]) -> Any:
        """Return the recorded answer to a call."""
        number = self.numbers.get(self.key(self.call(0, function, instance, args)))
        if number is None or (answer := self.answers.get(str(number))) is None:
            raise NotAnsweredError("the recording has no answer")
        found = messages.answered(function, number, self.home, lambda: answer)
        self.keep(instance, number, found)
        return found


def write_questions(family: Family, directory: Path) -> int:
    """Write the questions of a check to a directory, and return how many there are.

    Raises:
        ValueError: The directory already contains questions, cannot be written, or the convention cannot be recorded.
    """
    if why := ADAPTIVE.get(family.convention):
        raise ValueError(f"verify: {family.convention} cannot be recorded, since {why}. Use a program with --exec.")
    if (directory / QUESTIONS).exists():
        raise ValueError(f"verify: {directory} already contains {QUESTIONS}. Name another directory.")
    recorder = Recorder(family.spec)
    stand_in = subject(family.convention, recorder)
    for case in family.cases():
        asked: Case | None = case
        while asked is not None:
            with contextlib.suppress(SubjectError, NotAnsweredError, CannotTellError):
                family.observe(stand_in, asked)  # the answers are not used
            asked = asked.otherwise
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / QUESTIONS).write_bytes(b"".join(map(messages.line, recorder.lines)))
    except OSError as error:
        raise ValueError(f"verify: the questions cannot be written to {directory}: {error.strerror}.") from None
    return len(recorder.lines)


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file, one for each line."""
    try:
        if path.is_symlink() or path.stat().st_size > messages.LONGEST:
            raise ValueError(f"verify: {path} is a link, or larger than {messages.LONGEST:,} bytes.")
        texts = path.read_bytes().splitlines()
    except OSError:
        raise ValueError(f"verify: there is no file {path}. Run `posenc cases` to write the questions.") from None
    found = [parse(text) for text in texts if text.strip()]
    if None in found:
        raise ValueError(f"verify: line {found.index(None) + 1} of {path} is not a JSON object.")
    return [fields for fields in found if fields is not None]
