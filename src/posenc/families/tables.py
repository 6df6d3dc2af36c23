"""Numbers that an encoding is given and does not learn: the distances of a graph, the matrices of cameras."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posenc import positions
from posenc.config.values import short


class Table:
    """Numbers that an encoding was given: neither its state nor its moves touch them, and no gradient reaches them.

    They stay on the device where they were made; a call elsewhere copies them.

    Args:
        given: A tensor, an array, nested lists or a Table.
        spelling: How to write them, for instance in a call of the constructor.

    Raises:
        TypeError: They are not numbers.

    >>> Table([[0.0, 1.5], [1.5, 0.0]]).at(torch.tensor([0, 1]), torch.tensor([1, 1]))
    tensor([1.5000, 0.0000], dtype=torch.float64)
    """

    def __init__(self, given: Any, spelling: str | None = None) -> None:
        kept = given.table if isinstance(given, Table) else given
        try:  # through NumPy, whose arrays torch.device("meta") leaves as they are
            self.table: Tensor = (kept if isinstance(kept, Tensor) else torch.from_numpy(np.array(kept))).detach()
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"Table: needs numbers, such as a tensor or nested lists; got {short(given)}.") from error
        self._spelling = spelling

    def at(self, *where: Tensor) -> Tensor:
        """Return the numbers at whole indices along the first dimensions, on the device of the indices."""
        return self.table.to(where[0].device)[tuple(index.long() for index in where)]

    @classmethod
    def of(cls, who: str, option: str, given: Any, *shape: int) -> "Table":
        """Return the numbers that a caller gives, a tensor, an array, nested lists or a Table, in float64.

        Args:
            who: The encoding's name, for messages.
            option: That of the argument.
            given: The numbers.
            shape: The sizes that they must have.

        Raises:
            TypeError: They are not real numbers.
            ValueError: They have another shape, or are not finite.
        """
        kept = given.table if isinstance(given, Table) else _numbers(given)
        if kept is None:
            raise TypeError(f"{who}: {option} must be a table of real numbers; got {short(given)}.")
        if tuple(kept.shape) != shape:
            raise ValueError(f"{who}: {option} must have the shape {shape}; got {tuple(kept.shape)}.")
        if positions.may_look(kept) and not bool(kept.isfinite().all()):
            raise ValueError(f"{who}: {option} must be finite; got infinite numbers or NaN.")
        return given if isinstance(given, cls) else cls(kept)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.table.cpu().numpy(), dtype)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, where: Any) -> Any:
        return self.__array__()[where]

    def __repr__(self) -> str:
        return self._spelling or f"{type(self).__name__}{tuple(self.table.shape)}"


class Matrices(Table):
    """Square matrices in float64, as encodings of cameras keep them."""

    @classmethod
    def read(cls, who: str, option: str, given: Any, size: int, dims: tuple[int, ...]) -> "Matrices | None":
        """Return matrices that a caller gives, which may have been read before; None as it is.

        Args:
            who: The encoding's name, for messages.
            option: That of the argument.
            given: A tensor, an array or nested lists (..., size, size).
            size: Of each matrix.
            dims: How many dimensions there may be.

        Raises:
            TypeError: They are not real numbers.
            ValueError: They have another shape, or are not finite.
        """
        if given is None:
            return None
        kept = given.table if isinstance(given, Matrices) else _numbers(given)
        if kept is None:
            raise TypeError(f"{who}: {option} must be {size} x {size} matrices of real numbers; got {short(given)}.")
        if kept.ndim not in dims or kept.shape[-2:] != (size, size) or not kept.numel():
            shapes = " or ".join(f"({_COUNTED[n]}{size}, {size})" for n in dims)
            raise ValueError(f"{who}: {option} must be {shapes}; got {tuple(kept.shape)}.")
        if positions.may_look(kept) and not bool(kept.isfinite().all()):
            raise ValueError(f"{who}: {option} must be finite; got infinite ones or NaN. Check the cameras.")
        return given if isinstance(given, Matrices) else cls(kept)


_COUNTED = {2: "", 3: "n_cameras, ", 4: "scenes, n_cameras, "}


def _numbers(given: Any) -> Tensor | None:
    """Return real numbers in float64, on the CPU where their device has none; None if these are not real numbers."""
    if isinstance(given, (list, tuple)) and given and all(isinstance(each, Tensor) for each in given):
        given = torch.stack(tuple(given)) if len({each.shape for each in given}) == 1 else None
    kept = given if isinstance(given, Tensor) else _from_array(given)
    if kept is None or kept.is_complex():
        return None
    return (kept if positions.has_float64(kept.device) else kept.cpu()).double()


def _from_array(given: Any) -> Tensor | None:
    try:
        array = np.asarray(given)
    except (TypeError, ValueError, RuntimeError):  # lists of different lengths, or of tensors that numpy cannot read
        return None
    return torch.from_numpy(array.astype(np.float64)) if array.dtype.kind in "biuf" else None
