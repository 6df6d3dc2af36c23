"""Values of strangers' code as JSON has them, and as words."""

import math
from collections.abc import Mapping
from typing import Any

_DEEPEST = 16
_MOST = 1 << 16  # values in what was measured


def plain(value: Any) -> Any:
    """Return a value as JSON has it: tensors as lists, what is not finite as None, the rest in words.

    >>> plain({"shape": (2, 3), "error": float("nan")})
    {'shape': [2, 3], 'error': None}
    """
    left = [_MOST]
    return _plain(value, 0, left)


def _plain(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if value is None or type(value) in (bool, str):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 256 else f"an integer of {value.bit_length()} bits"
    if left[0] < 0 or depth > _DEEPEST:
        return "..."
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, depth + 1, left) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner, depth + 1, left) for inner in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return string(value)


def string(value: Any, kind: str = "") -> str:
    """Return a value in words of at most 300 characters, though it may refuse to be written."""
    try:
        said = " ".join(str(value).split())[:300]
    except BaseException:
        said = f"(a {type(value).__name__} that cannot be written)"
    return f"{kind}: {said}" if kind and said else kind or said
