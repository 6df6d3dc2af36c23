"""Parameters of a method on the command line: KEY=VALUE, where a value is JSON, a word, or @FILE."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def parameters(who: str, given: Sequence[str]) -> dict[str, Any]:
    """Return parameters by name: JSON, a word, or the contents of a file."""
    found = dict[str, Any]()
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key or key in found:
            raise ValueError(f"{who}: --option must be KEY=VALUE, each key once; got {one[:60]!r}.")
        found[key] = _file(who, value[1:]) if value.startswith("@") else _word(value)
    return found


def _word(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _file(who: str, name: str) -> Any:
    from posenc.config.reading import MAX_BYTES, parse

    try:
        with Path(name).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{who}: --option cannot read {name[:200]!r}: {error.strerror or error}.") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"{who}: --option reads files of at most {MAX_BYTES} bytes; {name[:200]!r} is larger.")
    return parse(data, repr(name[:200]))
