"""What a table of vectors is like: its spectrum, its norms, its covariance."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from posenc.config.values import short
from posenc.measure.values import Numbers

Array = np.ndarray
_ROWS = 4096


@dataclass(frozen=True)
class Spectrum:
    """How a table's variance is shared by directions.

    Args:
        values: Singular values of the table about its mean, largest first.
        share: The part of all variance that each has, their squares over the sum of squares.
    """

    values: Float64[Array, " n"]
    share: Float64[Array, " n"]


def spectrum(table: Numbers) -> Spectrum:
    """Return the singular values of a table about the mean of its rows.

    Args:
        table: (rows, lanes), as a learned table has a row a position.

    Raises:
        TypeError: It holds no real numbers.
        ValueError: It has other dimensions, is empty, or is not finite.

    >>> spectrum([[1.0, 0.0], [-1.0, 0.0]]).share.tolist()
    [1.0, 0.0]
    """
    rows = matrix("spectrum", "table", table)
    values = np.linalg.svd(rows - rows.mean(0), compute_uv=False)
    total = float((values**2).sum())
    return Spectrum(values, values**2 / total if total else np.zeros_like(values))


def norms(table: Numbers) -> Float64[Array, " rows"]:
    """Return the length of each row.

    Args:
        table: (rows, lanes).

    Raises:
        TypeError: As in `spectrum`.
        ValueError: As in `spectrum`.

    >>> norms([[3.0, 4.0], [0.0, 0.0]]).tolist()
    [5.0, 0.0]
    """
    rows = matrix("norms", "table", table)
    found: Array = np.concatenate([np.linalg.norm(part, axis=1) for part in _parts(rows)])
    return found


def covariance(table: Numbers) -> Float64[Array, "lanes lanes"]:
    """Return the covariance of the lanes over the rows, divided by the number of rows.

    Args:
        table: (rows, lanes).

    Raises:
        TypeError: As in `spectrum`.
        ValueError: As in `spectrum`.

    >>> covariance([[1.0, 2.0], [-1.0, -2.0]]).tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """
    rows = matrix("covariance", "table", table)
    mean, found = rows.mean(0), np.zeros((rows.shape[1], rows.shape[1]))
    for part in _parts(rows):
        centred = part - mean
        found += centred.T @ centred
    return found / len(rows)


def diagonal_share(square: Numbers) -> float:
    """Return how much of a square matrix lies on its diagonal: squares there over all squares; 0 of zeros.

    Args:
        square: (n, n), as a covariance.

    Raises:
        TypeError: As in `spectrum`.
        ValueError: As in `spectrum`, or it is not square.

    >>> diagonal_share([[1.0, 1.0], [1.0, 1.0]])
    0.5
    """
    found = matrix("diagonal_share", "square", square)
    if found.shape[0] != found.shape[1]:
        raise ValueError(f"diagonal_share: square must have as many rows as columns; got shape {found.shape}.")
    total = float((found**2).sum())
    return float((np.diagonal(found) ** 2).sum()) / total if total else 0.0


def _parts(rows: Array) -> list[Array]:
    """Return some rows at a time, so that what is made of them takes little memory beside a large table."""
    return [rows[i : i + _ROWS] for i in range(0, len(rows), _ROWS)]


def matrix(who: str, name: str, values: Any) -> Float64[Array, "rows columns"]:
    """Return numbers in two dimensions as a float64 array, checked; one that is so already is not copied.

    Raises:
        TypeError: They are no real numbers.
        ValueError: They have other dimensions, there are none, or one is not finite.
    """
    given: Any = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values
    try:
        found = np.asarray(given)
    except ValueError:
        found = np.asarray("")
    if found.dtype.kind not in "iuf":
        raise TypeError(f"{who}: {name} must be real numbers in rows and columns; got {short(values)}.")
    if found.ndim != 2 or found.size == 0:
        raise ValueError(f"{who}: {name} must have two dimensions, rows and columns; got shape {found.shape}.")
    if not np.isfinite(found).all():
        raise ValueError(f"{who}: {name} must be finite; got {found[~np.isfinite(found)][0]}.")
    return found.astype(np.float64, copy=False)
