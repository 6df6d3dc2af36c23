"""Laws: properties that every position encoding must have, as public functions.

`run` tests one encoding; `parametrize` makes pytest cases for your own classes. Before each law every parameter is
drawn from N(0, 1), so that no law holds only because parameters are zero. `posenc.laws.exceptions` has all exceptions.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from posenc.encoding import Encoding
from posenc.laws import attention, meaning, modules, precision
from posenc.laws.case import Law
from posenc.laws.exceptions import exemption

LAWS: dict[str, Law] = {law.name: law for module in (meaning, attention, precision, modules) for law in module.LAWS}

__all__ = ["LAWS", "Law", "Violation", "parametrize", "run"]


@dataclass(frozen=True)
class Violation:
    """One law that does not hold: its name, the encoding, and what was found."""

    law: str
    encoding: str
    message: str

    def __str__(self) -> str:
        return f"{self.encoding} breaks {self.law!r} ({LAWS[self.law].text}): {self.message}"


def run(encoding: Encoding, names: Iterable[str] | None = None, dtype: torch.dtype = torch.float64) -> list[Violation]:
    """Test the laws on an encoding.

    Args:
        encoding: Any `Encoding`; it is copied, not changed.
        names: Names of laws in `LAWS`; all of them if left out.
        dtype: float64 (tolerance 1e-12 of the largest score) or float32 (4e-6, also for a user's class that computes in
            float32 in both).

    Returns:
        The violations; empty if all laws hold.

    Raises:
        ValueError: A name is not a law, or dtype is another one.
    """
    if dtype not in (torch.float64, torch.float32):
        raise ValueError(
            f"laws.run: dtype must be float64 or float32, because only these have tolerances; got {dtype}."
        )
    violations = []
    for name in LAWS if names is None else names:
        if name not in LAWS:
            raise ValueError(f"laws.run: unknown law {name!r}; the laws are {', '.join(LAWS)}.")
        if exemption(encoding, name) is None:
            messages = LAWS[name](encoding, dtype)
            violations += [Violation(name, encoding.name, message) for message in messages]
    return violations


def parametrize(
    encodings: Iterable[Encoding],
    names: Iterable[str] | None = None,
    dtypes: Iterable[torch.dtype] = (torch.float64, torch.float32),
) -> Callable[..., Any]:
    """Make a pytest decorator that runs a test for every encoding, law and dtype.

    ::

        @posenc.laws.parametrize([MyEncoding(d_model=64)])
        def test_my_encoding(encoding, law, dtype):
            assert posenc.laws.run(encoding, [law], dtype) == []
    """
    import pytest

    laws = list(LAWS if names is None else names)
    cases = [
        pytest.param(
            encoding,
            law,
            dtype,
            id=f"{' '.join(repr(encoding).split())}-{law}-{str(dtype).removeprefix('torch.')}",
            marks=_marks(law),
        )
        for encoding in encodings
        for law in laws
        for dtype in (dtypes if LAWS[law].by_dtype else [torch.float64])
    ]
    return pytest.mark.parametrize(("encoding", "law", "dtype"), cases)


def _marks(law: str) -> list[Any]:
    import pytest

    return [pytest.mark.compiles] if LAWS[law].compiles else []
