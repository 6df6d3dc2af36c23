"""One call and its answer as JSON lines, the same for a program and for a recording.

A call: {"call": 7, "instance": 2, "function": "rope", "args": {"x": ARRAY, "positions": ARRAY}}.
Its answer: {"call": 7, "result": ARRAY, a number, or a list of these}, or {"call": 7, "error": "why it fails"}.
ARRAY: {"dtype": "float32", "shape": [2, 3], "data": [...]}, or "file": "7.npy" instead of the data.
An argument {"answer": 5, "item": 1} is item 1 of the answer to call 5.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.verify.guard import SubjectError
from posenc.verify.sentences import finding

ARRAYS = "that the environment variable POSENC_ARRAYS names"
LONGEST = 1 << 28  # bytes of a line
DTYPES = {"float32", "float64", "bfloat16", "float16", "complex64", "complex128", "bool"} | {
    *("int64", "int32", "int16", "int8", "uint8")
}
MOST = 1 << 24  # numbers of one array


@dataclass(frozen=True)
class Answer:
    """A part of an answer that only the subject understands, such as a cache: it is passed back by reference."""

    call: int
    item: int | None = None


def encode(value: Any, file: Path | None = None) -> Any:
    """Return a tensor, a number, None or a reference ready for JSON, with numbers in a file or inline.

    >>> encode(torch.tensor([1.5, 2.0]))
    {'dtype': 'float32', 'shape': [2], 'data': [1.5, 2.0]}
    """
    if isinstance(value, Answer):
        return {"answer": value.call, "item": value.item}
    if not isinstance(value, Tensor):
        return value
    t = value.detach().cpu()
    fields = {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape)}
    plain = t.float() if t.dtype == torch.bfloat16 else t
    if file is not None:
        np.save(file, plain.numpy(), allow_pickle=False)
        return {**fields, "file": file.name}
    numbers = torch.view_as_real(plain) if plain.is_complex() else plain
    listed = numbers.flatten().tolist()
    return {**fields, "data": [x if math.isfinite(x) else str(x) for x in listed]}  # "inf", "-inf", "nan"


def decode(fields: Mapping[str, Any], directory: Path | None = None) -> Tensor:
    """Return the tensor of an array in JSON: dtype, shape, and data or a file in a directory.

    Raises:
        ValueError: It is not an array, is too large, or its file is elsewhere.
    """
    dtype, shape = fields["dtype"], fields["shape"]
    if dtype not in DTYPES:
        raise ValueError(f"an array's dtype must be one of {', '.join(sorted(DTYPES))}; got {str(dtype)[:40]!r}")
    if not isinstance(shape, list) or len(shape) > 8 or not all(type(n) is int and 0 <= n <= MOST for n in shape):
        raise ValueError(f"an array's shape must be a list of at most 8 sizes; got {str(shape)[:80]}")
    if math.prod(shape) > MOST:
        raise ValueError(f"an array may have at most {MOST:,} numbers; got shape {shape}")
    numbers = _loaded(fields["file"], directory) if "file" in fields else _listed(fields.get("data"), dtype)
    if numbers.numel() != math.prod(shape):
        raise ValueError(f"an array of shape {shape} has {math.prod(shape)} numbers; got {numbers.numel()}")
    return numbers.reshape(shape).to(getattr(torch, dtype))


def _listed(data: Any, dtype: str) -> Tensor:
    if not isinstance(data, list) or any(isinstance(x, list) for x in data[:1]):
        raise ValueError(f'an array needs "data", a flat list of numbers, or "file"; got {type(data).__name__}')
    try:
        wide = torch.int64 if "int" in dtype or dtype == "bool" else torch.float64
        numbers = torch.tensor([float(x) if isinstance(x, str) else x for x in data], dtype=wide)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f'an array\'s "data" must be a flat list of numbers: {str(error)[:120]}') from None
    return torch.view_as_complex(numbers.reshape(-1, 2)) if dtype.startswith("complex") else numbers


def _loaded(name: Any, directory: Path | None) -> Tensor:
    if directory is None or not isinstance(name, str) or Path(name).name != name:
        where = f"the directory {ARRAYS}, or in that of a recording"
        raise ValueError(f"an array's file must be the name of a .npy file in {where}; got {str(name)[:80]!r}")
    path = directory / name
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 16 * MOST + 4096:
        raise ValueError(f"there is no file {name!r} of an allowed size in the directory ({ARRAYS}) of arrays")
    try:
        return torch.from_numpy(np.array(np.load(path, allow_pickle=False)))
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise ValueError(f"{name!r} is not a .npy file of numbers: {str(error)[:120]}") from None


def line(fields: Mapping[str, Any]) -> bytes:
    """Return one JSON line."""
    return json.dumps(fields, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def call(
    number: int, function: str, instance: int, args: Mapping[str, Any], directory: Path | None = None
) -> dict[str, Any]:
    """Return a call ready for JSON, with its arrays in files or inline."""
    files = {name: directory and directory / f"{number}.{name}.npy" for name in args}
    sent = {name: encode(value, files[name]) for name, value in args.items()}
    return {"call": number, "instance": instance, "function": function, "args": sent}


def answered(function: str, number: int, directory: Path, fetch: Callable[[], Mapping[str, Any]]) -> Any:
    """Return the result in the answer to a call.

    Raises:
        RuntimeError: The answer is an error.
        SubjectError: It is not a valid answer to this call.
    """
    try:
        fields = fetch()
        if fields.get("call") != number:
            raise ValueError(f'it must have "call": {number}; got {str(fields.get("call"))[:40]}')
        if "error" in fields:
            raise RuntimeError(str(fields["error"])[:300])
        if "result" not in fields:
            raise ValueError(f'it must have "result" or "error"; got {str(list(fields))[:80]}')
        found = fields["result"]
        if not isinstance(found, list):
            return _value(found, Answer(number), directory)
        if all(type(x) in (int, float) for x in found):
            return found
        return [_value(x, Answer(number, i), directory) for i, x in enumerate(found[:64])]
    except ValueError as error:
        message = f"the answer to {function} cannot be used: {error}"
        raise SubjectError(finding("subject.answers", message, call=f"{function}, call {number}")) from None


def _value(found: Any, place: Answer, directory: Path) -> Any:
    """Return an array or a number; for any other object, such as a cache, a reference to it."""
    if isinstance(found, Mapping) and "dtype" in found and "shape" in found:
        return decode(found, directory)
    return found if type(found) in (int, float) else place
