"""One call and its answer as JSON lines, the same for a program and for a recording.

A call: {"call": 7, "instance": 2, "function": "rope", "args": {"x": ARRAY, "positions": ARRAY}}.
Its answer: {"call": 7, "result": ARRAY, a number, or a list of these}, or {"call": 7, "error": "why it fails"}.
An argument {"answer": 5, "item": 1} is item 1 of the answer to call 5.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenc.verify.child.answers import finding
from posenc.verify.remote import arrays
from posenc.verify.remote.arrays import Answer
from posenc.verify.report import Cause

LONGEST = 1 << 28  # bytes of a line


def call(
    number: int, function: str, instance: int, args: Mapping[str, Any], directory: Path | None = None
) -> dict[str, Any]:
    """Return a call as JSON has it.

    Args:
        number: Of the call.
        function: Its name.
        instance: A new number asks for a fresh copy of the subject.
        args: By name.
        directory: Where to write arrays as files; None writes them in line.
    """
    files = {name: directory and directory / f"{number}.{name}.npy" for name in args}
    sent = {name: arrays.encode(value, files[name]) for name, value in args.items()}
    return {"call": number, "instance": instance, "function": function, "args": sent}


def parse(text: bytes) -> dict[str, Any] | None:
    """Return a line as an answer; None where it is no JSON object, as what a program prints."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def result(fields: Mapping[str, Any], number: int, directory: Path) -> Any:
    """Return what an answer holds.

    Raises:
        RuntimeError: It reports an error.
        ValueError: It is no answer to this call.
    """
    if fields.get("call") != number:
        raise ValueError(f'the answer to call {number} must have "call": {number}; got {str(fields.get("call"))[:40]}')
    if "error" in fields:
        raise RuntimeError(str(fields["error"])[:300])
    if "result" not in fields:
        raise ValueError(f'the answer to call {number} must have "result" or "error"; got {str(list(fields))[:80]}')
    found = fields["result"]
    if not isinstance(found, list):
        return _value(found, Answer(number), directory)
    if all(type(x) in (int, float) for x in found):
        return found
    return [_value(x, Answer(number, i), directory) for i, x in enumerate(found[:64])]


def _value(found: Any, place: Answer, directory: Path) -> Any:
    """Return an array or a number; of anything else, such as a cache, its place in the answer."""
    if isinstance(found, Mapping) and "dtype" in found and "shape" in found:
        return arrays.decode(found, directory)
    return found if type(found) in (int, float) else place


def unusable(function: str, number: int, error: ValueError) -> Cause:
    """Return that an answer is none."""
    message = f"the answer to {function} cannot be used: {error}"
    return finding("subject.answers", message, call=f"{function}, call {number}")
