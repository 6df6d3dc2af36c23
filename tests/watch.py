"""What operations make, seen one by one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from posenc.placed import tensors
from posenc.private import watching


class Largest:
    """A context that notes the largest memory that an operation makes: how many numbers, of whom, and how many bytes.

    Views make none.
    """

    def __init__(self) -> None:
        self.numbers, self.bytes, self.made_by, self.context = 0, 0, "", watching(self.see)

    def __enter__(self) -> Largest:
        self.context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.context.__exit__(*error)

    def see(self, operation: Any, out: Any) -> None:
        for t in [] if operation.is_view else tensors(out):
            size = _bytes(t)
            self.bytes = max(self.bytes, size)
            if size // t.element_size() > self.numbers:
                self.numbers, self.made_by = size // t.element_size(), str(operation)


def _bytes(t: Tensor) -> int:
    return t.untyped_storage().nbytes()
