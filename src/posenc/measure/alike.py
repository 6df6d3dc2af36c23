"""How alike the vectors of positions are."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64

from posenc.encoding import Encoding
from posenc.measure.asking import read_positions
from posenc.measure.tables import matrix
from posenc.measure.values import Numbers
from posenc.measure.vectors import heat_map

Array = np.ndarray


@dataclass(frozen=True)
class Distances:
    """How alike the vector of one position and those of others are.

    Args:
        dot: Dot products, (n,).
        cosine: These over the product of both lengths; 0 where a vector is zero.
    """

    dot: Float64[Array, " n"]
    cosine: Float64[Array, " n"]


def similarity(
    vectors: Numbers, others: Numbers | None = None, *, cosine: bool = False
) -> Float64[Array, "rows columns"]:
    """Return the dot product, or the cosine, of each pair of vectors.

    Args:
        vectors: (rows, lanes), as `heat_map` returns.
        others: (columns, lanes); the same vectors if left out.
        cosine: Divide by the lengths of both; 0 where one is zero.

    Raises:
        TypeError: They are no real numbers.
        ValueError: They have other dimensions, or different numbers of lanes.

    >>> similarity([[3.0, 4.0], [0.0, 2.0]], cosine=True).round(12).tolist()
    [[1.0, 0.8], [0.8, 1.0]]
    """
    rows = matrix("similarity", "vectors", vectors)
    columns = rows if others is None else matrix("similarity", "others", others)
    if rows.shape[1] != columns.shape[1]:
        raise ValueError(
            f"similarity: vectors and others must have as many lanes; got {rows.shape[1]} and {columns.shape[1]}."
        )
    if cosine:
        columns = _unit(columns)
        rows = columns if others is None else _unit(rows)
    found: Array = rows @ columns.T
    return found


def by_distance(encoding: Encoding, middle: Numbers, pos: Numbers, *, head: int = 0, layer: int = 0) -> Distances:
    """Return how alike the vector of one position and those of others are, by dot product and cosine.

    Args:
        encoding: As in `heat_map`, whose vectors are compared.
        middle: The one position; (n_axes,) numbers are one position as well.
        pos: The others, as in `heat_map`.
        head: As in `heat_map`.
        layer: As in `heat_map`.

    Raises:
        TypeError: As in `heat_map`.
        ValueError: As in `heat_map`, or there are several in the middle.

    >>> from posenc import RoPE
    >>> by_distance(RoPE(head_dim=2), 5, [4, 5]).dot.round(4).tolist()  # cos(1), and 1
    [0.5403, 1.0]
    """
    others = read_positions("by_distance", encoding, pos)
    one = read_positions("by_distance", encoding, np.atleast_2d(middle) if np.ndim(middle) else middle, "middle")
    if len(one) != 1:
        raise ValueError(f"by_distance: middle must be one position; got {len(one)} of them.")
    if torch.promote_types(one.dtype, others.dtype) != others.dtype:
        others = others.double()
    same = (others == one).reshape(len(others), -1).all(-1).nonzero()
    where = int(same[0]) if len(same) else len(others)
    rows = heat_map(
        encoding, others if len(same) else torch.cat((others, one.to(others.dtype))), head=head, layer=layer
    )
    column, chosen = rows[: len(others)], rows[where : where + 1]
    return Distances(similarity(column, chosen)[:, 0], similarity(column, chosen, cosine=True)[:, 0])


def _unit(rows: Array) -> Array:
    size = np.linalg.norm(rows, axis=1, keepdims=True)
    found: Array = np.divide(rows, size, out=np.zeros_like(rows), where=size > 0)
    return found
