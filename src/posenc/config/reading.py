"""Read a configuration as plain JSON values, within limits that no real one reaches.

Files are not trusted. Nothing in them is executed, imported or fetched (`auto_map` names code but stays a string), and
no number in them determines how much memory is allocated.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posenc.config.values import About, about, attach, finite, short

MAX_BYTES = 1 << 20
_WEIGHTS = {".gguf": "GGUF", ".safetensors": "safetensors", ".bin": "a file of weights", ".pt": "a file of weights"}
MAX_DEPTH = 32
MAX_STRING = 1 << 16
MAX_KEY = 512
MAX_NODES = 1 << 19  # the most values in MAX_BYTES; a mapping in memory may contain one list many times
_MAX_DIGITS = 64

Source = str | os.PathLike[str] | Mapping[str, Any]


class Checked(Mapping[str, Any]):
    """Fields that have passed the limits, so that a caller who needs each kind of layer reads a file once.

    They are passed on without a copy, so they must not be changed. `path` is that of the file or its directory, if any.
    """

    def __init__(self, fields: dict[str, Any], path: Path | None = None) -> None:
        self.fields, self.path = fields, path

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


def checked(source: Source) -> Checked:
    """Return the fields of a configuration, read once, with its path."""
    if isinstance(source, Checked):
        return source
    return Checked(read(source), None if isinstance(source, Mapping) else Path(source))


def read(source: Source) -> dict[str, Any]:
    """Read a model's configuration and return it as plain JSON values.

    Unknown keys are kept. A mapping passes the same limits and is copied; its tuples become lists and its integer
    keys strings, as in a file.

    Args:
        source: The path of a config.json or a params.json, of a directory that contains one, or a mapping.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is larger than 1 MiB, is nested deeper than 32, is not a JSON object, or has NaN, Infinity, a
            duplicate key, a string over 65,536 characters or a key over 512.
        TypeError: The source has another type, or contains a value that JSON does not have.

    >>> read({"model_type": "llama", "head_dim": 128})
    {'model_type': 'llama', 'head_dim': 128}
    """
    if isinstance(source, Checked):
        return source.fields
    if isinstance(source, Mapping):
        return _plain(source)
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"config.read: the source must be a path or a mapping; got {type(source).__name__}. "
            f"Pass the path of a config.json or its directory, or the result of json.load."
        )
    path = Path(source)
    try:
        path = _file(path) if path.is_dir() else path
        if (weights := _WEIGHTS.get(path.suffix.lower())) and path.is_file():
            raise _no_configuration(path, weights)
        data = _bytes(path)
    except (FileNotFoundError, _NoConfigurationError):
        raise
    except (OSError, ValueError) as error:
        raise ValueError(f"config.read: {short(str(path))} cannot be read: {short(str(error))}.") from error
    return _plain(parse(data, short(str(path))))


class _NoConfigurationError(ValueError):
    """The file has another format and may be correct."""


def _file(folder: Path) -> Path:
    """Return the configuration of a directory, Mistral's own if it has no other, or else a GGUF file."""
    path, *others = folder / "config.json", folder / "params.json", *sorted(folder.glob("*.gguf"))
    return next((one for one in (path, *others) if one.is_file()), path)


def _no_configuration(path: Path, format_: str) -> ValueError:
    """Return the error for a file of weights."""
    message = f"config.read: {format_} is not supported; got {short(str(path))}. "
    if format_ == "GGUF":
        message += "Pass the config.json of the model that it was converted from; llama.cpp's gguf-dump lists its keys."
    else:
        message += "Pass the config.json next to it."
    return attach(_NoConfigurationError(message), About("elsewhere", "(file)", None, "a config.json"))


def _bytes(path: Path) -> bytes:
    """Return the content of a regular file, and read no more than the limit."""
    if not path.is_file():  # a pipe or a device could block or never end
        raise FileNotFoundError(
            f"config.read: there is no file {short(str(path))}. Pass a config.json or a directory that contains one."
        )
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"over {MAX_BYTES} bytes, more than any configuration has")
    return data


def parse(data: bytes, name: str) -> object:
    """Parse JSON strictly: refuse values that JSON does not have, and ambiguous ones.

    Args:
        data: The text in UTF-8; the caller ensures that it has at most MAX_BYTES.
        name: Its name in error messages.

    Raises:
        ValueError: It is not JSON, a key is duplicated, or a number is not finite or has too many digits.

    >>> parse(b'{"rope_theta": 1e6}', "stdin")
    {'rope_theta': 1000000.0}
    """
    try:
        return json.loads(
            data.decode("utf-8"), parse_constant=_no_constant, parse_int=_int, object_pairs_hook=_no_duplicates
        )
    except RecursionError as error:
        raise ValueError(f"config.read: {name} is nested deeper than {MAX_DEPTH}, the limit.") from error
    except _RefusedError as error:
        raise attach(ValueError(f"config.read: {name} {error}"), about(error)) from None
    except ValueError as error:  # from json or from decoding
        raise ValueError(f"config.read: {name} is not JSON in UTF-8: {short(str(error))}.") from error


class _RefusedError(ValueError):
    """The text is valid for Python's parser but not for this one."""


def _no_constant(name: str) -> float:
    raise _RefusedError(f"has the number {name}, which is not JSON. Remove the key.")


def _int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise _RefusedError(
            f"has an integer of {len(digits)} digits, above the limit of {_MAX_DIGITS}. Correct the file."
        )
    return int(digits)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            error = _RefusedError(f"has the key {short(key)} twice, and programs differ in which one they read.")
            both = (
                (f"the first, {short(out[key])}", "what some programs read"),
                (f"the last, {short(value)}", "what Python's json reads, and so transformers"),
            )
            name = short(key)[1:-1]
            raise attach(error, About("key_twice", name, [out[key], value], "each key once", both, "Remove one."))
        out[key] = value
    return out


def _plain(source: object) -> dict[str, Any]:
    """Return a copy made of dict, list, str, int, float, bool and None, checked against the limits."""
    if not isinstance(source, Mapping):
        raise ValueError(f"config.read: a configuration must be a JSON object; got {type(source).__name__}.")
    left = [MAX_NODES]
    return {_key(key): _copy(value, 2, left) for key, value in _entries(source)}


def _copy(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if left[0] < 0:
        raise ValueError(f"config.read: the configuration has more than {MAX_NODES} values, the limit.")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int | float):
        if not finite(value):
            raise ValueError(f"config.read: numbers must be finite; got {short(value)}. Remove the key.")
        return int(value) if isinstance(value, int) else float(value)
    if not isinstance(value, Mapping | list | tuple):
        raise TypeError(
            f"config.read: values must be JSON values; got {short(type(value).__name__)}. Pass config.to_dict()."
        )
    if depth > MAX_DEPTH:
        raise ValueError(f"config.read: the configuration is nested deeper than {MAX_DEPTH}, the limit.")
    if isinstance(value, Mapping):
        return {_key(key): _copy(inner, depth + 1, left) for key, inner in _entries(value)}
    return [_copy(inner, depth + 1, left) for inner in value]


def _entries(source: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Return the entries of a mapping, whose keys must differ as strings."""
    if len({str(key) for key in source}) != len(source):
        raise ValueError("config.read: two keys are the same string, which a file cannot have. Remove one.")
    return list(source.items())


def _key(key: object) -> str:
    if not isinstance(key, str | int):
        raise TypeError(f"config.read: keys must be strings; got {short(key)}.")
    if len(name := str(key)) > MAX_KEY:
        raise ValueError(f"config.read: keys must have at most {MAX_KEY} characters; got {len(name)}.")
    return name


def _string(value: str) -> str:
    if len(value) > MAX_STRING:
        raise ValueError(f"config.read: strings must have at most {MAX_STRING} characters; got {len(value)}.")
    return str(value)
