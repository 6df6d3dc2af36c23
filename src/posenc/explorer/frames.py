"""Frames: a view's answer as a JSON header and arrays, and its binary form for the page.

    uint32 little-endian   bytes of the header, a multiple of 4
    header                 JSON in UTF-8, padded with spaces; `arrays` lists [{name, shape}] in order
    arrays                 float32 little-endian, concatenated

The arrays of a `Frame` keep full precision, also in a table for download; only the page's copy is float32.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MEDIA_TYPE = "application/octet-stream"
_ALIGNED = 4  # bytes: JavaScript's Float32Array begins at a multiple of it

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Frame:
    """A view's answer: the description of a picture, and its numbers.

    Args:
        header: JSON values that refer to arrays by index. Its key `arrays` may name them, as [{name}].
        arrays: Real numbers of any shape.
    """

    header: dict[str, Any]
    arrays: list[Array] = field(default_factory=list)


def encode(frame: Frame) -> bytes:
    """Return the frame's binary form; infinite numbers and NaN in the header become null.

    Raises:
        TypeError: The header holds a value that JSON cannot express.

    >>> encode(Frame({"view": "x"}, [np.array([1.0])]))
    b'8\\x00\\x00\\x00{"view": "x", "arrays": [{"name": "0", "shape": [1]}]}  \\x00\\x00\\x80?'
    """
    named = frame.header.get("arrays") or [{}] * len(frame.arrays)
    arrays = [
        {**about, "name": about.get("name", str(i)), "shape": list(np.shape(array))}
        for i, (about, array) in enumerate(zip(named, frame.arrays, strict=True))
    ]
    head = json.dumps(plain({**frame.header, "arrays": arrays}), ensure_ascii=False, allow_nan=False).encode()
    head += b" " * (-len(head) % _ALIGNED)
    with np.errstate(over="ignore"):  # numbers beyond float32's range become infinite
        body = b"".join(np.ascontiguousarray(array, dtype="<f4").tobytes() for array in frame.arrays)
    return len(head).to_bytes(4, "little") + head + body


def plain(value: Any) -> Any:
    """Convert to JSON values: NumPy numbers become Python numbers; infinite numbers and NaN become None.

    >>> plain({"n": np.float64("inf"), "m": (np.int64(3), True)})
    {'n': None, 'm': [3, True]}
    """
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def to_json(value: Any) -> bytes:
    """Return a value as JSON in UTF-8.

    >>> to_json({"π": float("nan")}).decode()
    '{"π": null}'
    """
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False).encode()
