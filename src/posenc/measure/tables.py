"""Describe tables of vectors: spectrum, norms, covariance, similarity, and principal axes.

A table is an array (rows, dimensions) of finite real numbers, such as from `heat_map` or a checkpoint.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from posenc.measure.values import Array, Numbers, matrix

_ROWS = 4096  # rows processed together, so that a large table needs little extra memory


@dataclass(frozen=True)
class Spectrum:
    """Singular values of a centred table, largest first, and the share of variance of each."""

    values: Float64[Array, " n"]
    share: Float64[Array, " n"]


@dataclass(frozen=True)
class Projection:
    """Coordinates of centred vectors along two or three principal axes, and the share of variance of each axis."""

    points: Float64[Array, "n axes"]
    share: Float64[Array, " axes"]


def spectrum(table: Numbers) -> Spectrum:
    """Return the singular values of a table after its mean row is subtracted.

    >>> spectrum([[1.0, 0.0], [-1.0, 0.0]]).share.tolist()
    [1.0, 0.0]
    """
    rows = matrix("spectrum", "table", table)
    values = np.linalg.svd(rows - rows.mean(0), compute_uv=False)
    return Spectrum(values, _shares(values))


def project(vectors: Numbers, n: int = 2) -> Projection:
    """Project vectors onto their n principal axes (PCA), n = 2 or 3.

    The largest weight of each axis is made positive, so that the result is unique.

    >>> found = project([[0.0, 0.0, 0.0], [3.0, 4.0, 0.0], [6.0, 8.0, 0.0]])
    >>> found.points[:, 0].round(4).tolist(), found.share.round(4).tolist()
    ([-5.0, 0.0, 5.0], [1.0, 0.0])
    """
    rows = matrix("project", "vectors", vectors)
    if n not in (2, 3):
        raise ValueError(f"project: n must be 2 for the plane or 3 for space; got n={n!r}.")
    if min(rows.shape) < n:
        raise ValueError(f"project: vectors must have at least {n} rows and columns for n={n}; got shape {rows.shape}.")
    centred = rows - rows.mean(0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    largest = np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1)
    return Projection(centred @ (axes * np.where(largest < 0, -1.0, 1.0))[:n].T, _shares(sizes)[:n])


def norms(table: Numbers) -> Float64[Array, " rows"]:
    """Return the length of each row.

    >>> norms([[3.0, 4.0], [0.0, 0.0]]).tolist()
    [5.0, 0.0]
    """
    rows = matrix("norms", "table", table)
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows)))


def covariance(table: Numbers) -> Float64[Array, "lanes lanes"]:
    """Return the covariance of the columns, divided by the number of rows.

    >>> covariance([[1.0, 2.0], [-1.0, -2.0]]).tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """
    rows = matrix("covariance", "table", table)
    mean, found = rows.mean(0), np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS] - mean
        found += part.T @ part
    return found / len(rows)


def diagonal_share(square: Numbers) -> float:
    """Return the sum of squares on a matrix's diagonal over the sum of all squares; 0 for a zero matrix.

    >>> diagonal_share([[1.0, 1.0], [1.0, 1.0]])
    0.5
    """
    found = matrix("diagonal_share", "square", square)
    if found.shape[0] != found.shape[1]:
        raise ValueError(f"diagonal_share: square must have as many rows as columns; got shape {found.shape}.")
    total = float((found**2).sum())
    return float((np.diagonal(found) ** 2).sum()) / total if total else 0.0


def similarity(
    vectors: Numbers, others: Numbers | None = None, *, cosine: bool = False
) -> Float64[Array, "rows columns"]:
    """Return the dot product, or the cosine, of each pair of vectors.

    Args:
        vectors: (rows, dimensions).
        others: (columns, dimensions); the same vectors if left out.
        cosine: Divide by the lengths of both; 0 for a zero vector.

    >>> similarity([[3.0, 4.0], [0.0, 2.0]], cosine=True).round(12).tolist()
    [[1.0, 0.8], [0.8, 1.0]]
    """
    rows = matrix("similarity", "vectors", vectors)
    columns = rows if others is None else matrix("similarity", "others", others)
    if rows.shape[1] != columns.shape[1]:
        raise ValueError(
            f"similarity: vectors and others must be equally wide; got {rows.shape[1]} and {columns.shape[1]}."
        )
    return np.asarray(_unit(rows) @ _unit(columns).T if cosine else rows @ columns.T)


def _shares(sizes: Array) -> Array:
    """Return each square over the sum of squares; zeros if all are zero."""
    return np.asarray(sizes**2 / (float((sizes**2).sum()) or 1.0))


def _unit(rows: Array) -> Array:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(length > 0, length, 1.0))
