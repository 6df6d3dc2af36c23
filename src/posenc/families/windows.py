"""Tables of an image's rows and columns: check sizes, look up differences, replace tables."""

import copy
from typing import Any, TypeVar

from jaxtyping import Bool, Shaped
from torch import Tensor, nn

from posenc import positions
from posenc.config.values import short
from posenc.encoding import Encoding

_Table = TypeVar("_Table", bound=Encoding)


def rows_and_columns(encoding: Encoding, option: str, size: Any) -> tuple[int, int]:
    """Return a constructor's (rows, columns).

    Raises:
        TypeError: They are not two whole numbers.
        ValueError: One of them is below 1.
    """
    if not isinstance(size, (tuple, list)) or len(size) != 2:
        raise TypeError(f"{encoding.name}: {option} must be (rows, columns); got {option}={short(size)}.")
    encoding._count(**{f"{option}[{i}]": n for i, n in enumerate(size)})
    return int(size[0]), int(size[1])


def refuse_outside(inside: Bool[Tensor, "..."], who: str, size: tuple[int, int], advice: str) -> None:
    """Raise if a difference of rows or columns is not in a table; only where reading the values costs nothing.

    Raises:
        ValueError: A difference is outside the table.
    """
    if positions.may_look(inside) and not inside.all():
        raise ValueError(
            f"{who}: positions of queries and keys must be less than {size[0]} rows and {size[1]} columns apart, "
            f"because the table ends there; got {int((~inside).sum())} pairs further apart. {advice}"
        )


def reached(differences: tuple[Tensor, Tensor], size: tuple[int, int]) -> Bool[Tensor, "..."]:
    """Return which pairs are close enough in rows and in columns for a table made for `size`."""
    return (differences[0].abs() < size[0]) & (differences[1].abs() < size[1])


def as_grid(pos: Shaped[Tensor, "*batch n 2"]) -> tuple[Tensor, Tensor] | None:
    """Return the rows and the columns of which `pos` are all cells, row by row; None for others or unreadable ones."""
    if pos.ndim > 2 or not positions.may_look(pos):
        return None
    width = int((pos[:, 0] == pos[0, 0]).sum())
    if len(pos) % width:
        return None
    cells = pos.unflatten(0, (-1, width))
    rows, columns = cells[:, 0, 0], cells[0, :, 1]
    same = (cells[..., 0] == rows[:, None]) & (cells[..., 1] == columns)
    return (rows, columns) if bool(same.all()) else None


def cell(differences: tuple[Tensor, Tensor], size: tuple[int, int]) -> Tensor:
    """Return the index of each difference, query minus key, in a table (2 rows - 1) x (2 columns - 1), lowest first."""
    (rows, columns), (down, right) = size, differences
    return (down.long() + rows - 1) * (2 * columns - 1) + right.long() + columns - 1


def with_tensors(encoding: _Table, **learned: Tensor) -> _Table:
    """Return a copy that has these learned tensors and shares nothing, for tables that are resized."""
    twin, own = copy.copy(encoding), dict(encoding.named_parameters())
    twin._parameters = {}
    for name, tensor in learned.items():
        twin.register_parameter(name, nn.Parameter(tensor.contiguous(), requires_grad=own[name].requires_grad))
    return twin
