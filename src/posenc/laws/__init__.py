"""What must hold for every position encoding, as public functions.

`run` holds one encoding against them; `parametrize` makes pytest cases of them for your own
classes. Before each law every parameter is drawn from N(0, 1), so that nothing passes by being
zero. The exceptions are a closed list in `posenc.laws.exceptions`.
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
    """One law that does not hold: which, for what, and what was seen."""

    law: str
    encoding: str
    message: str

    def __str__(self) -> str:
        return f"{self.encoding} breaks {self.law!r} ({LAWS[self.law].text}): {self.message}"


def run(encoding: Encoding, names: Iterable[str] | None = None, dtype: torch.dtype = torch.float64) -> list[Violation]:
    """Hold an encoding against the laws.

    Args:
        encoding: Any `Encoding`; it is copied, not changed.
        names: Which laws, out of `LAWS`; all of them if left out.
        dtype: float64 (to 1e-12 of the largest score) or float32 (to 4e-6).

    Returns:
        What does not hold; empty if all is well.

    Raises:
        ValueError: A name that is no law, or another dtype.
    """
    if dtype not in (torch.float64, torch.float32):
        raise ValueError(f"laws.run: dtype must be float64 or float32, in which the laws are stated; got {dtype}.")
    violations = []
    for name in LAWS if names is None else names:
        if name not in LAWS:
            raise ValueError(f"laws.run: unknown law {name!r}; the laws are {', '.join(LAWS)}.")
        if exemption(encoding, name) is None:
            seen = LAWS[name](encoding, dtype)
            violations += [Violation(name, encoding.name, message) for message in seen]
    return violations


def parametrize(
    encodings: Iterable[Encoding],
    names: Iterable[str] | None = None,
    dtypes: Iterable[torch.dtype] = (torch.float64, torch.float32),
) -> Callable[..., Any]:
    """Make a pytest decorator that runs a test for every encoding, law and dtype.

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
