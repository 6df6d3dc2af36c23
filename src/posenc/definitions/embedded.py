"""Definitions of the encodings that transform the token vectors: x (n, d_model), positions -> (n, d_model)."""

from __future__ import annotations

import cmath
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Positions = NDArray[Any]


def complex_order(x: Array, pos: Positions, *, d_model: int, inv_freq: Array) -> Array:
    """Each pair of lanes is a complex number, which rotates with the position at a trained frequency.

    Paper: Wang et al. 2019, "Encoding word order in complex embeddings", arXiv 1912.12333, section 3: word j
    at position pos is r_j * exp(i (omega_j * pos + theta_j)) in each dimension.

    x (n, d_model), lanes 2k and 2k+1 the real and imaginary part of r * exp(i theta); pos (n,) in positions,
    fractions allowed; inv_freq (d_model/2,) in radians per position; d_model even; result (n, d_model).
    Departures: omega is shared by all words, one of the schemes that the paper compares; its full form has one
    for each word. The network that follows is an ordinary, real one.
    """
    out = np.zeros((len(pos), d_model))
    for i, p in enumerate(pos):
        for k in range(d_model // 2):
            turned = complex(x[i, 2 * k], x[i, 2 * k + 1]) * cmath.exp(1j * inv_freq[k] * p)
            out[i, 2 * k], out[i, 2 * k + 1] = turned.real, turned.imag
    return out


def cpvt(x: Array, pos: Positions, *, d_model: int, weight: Array, shift: Array, kernel_size: int = 3) -> Array:
    """Each token plus a trained mixture of it and its neighbours on the grid, separately in every lane.

    Paper: Chu et al. 2021, "Conditional Positional Encodings for Vision Transformers", arXiv 2102.10882, section 3
    (the positional encoding generator): a depthwise convolution over the tokens laid out as an image, zeros
    around it; those zeros mark the border.

    x (n, d_model); pos (n, 2) whole, (row, column), in any order, at most one token in a cell;
    weight (d_model, kernel_size, kernel_size), shift (d_model,), the bias; kernel_size odd; result (n, d_model).
    weight[:, a, b] applies to the token at row + a - r, column + b - r, r = kernel_size // 2: a cross-correlation,
    as "convolution" means in networks. Adding x is from the authors' code. Our convention: cells without a token,
    inside the grid as well as around it, hold zeros; and a token in a negative row, such as the paper's class token,
    does not belong to the image and passes unchanged.
    """
    image = [(i, int(row), int(column)) for i, (row, column) in enumerate(pos) if row >= 0]
    place = {(row, column): x[i] for i, row, column in image}
    reach = kernel_size // 2
    out = x.copy()
    for i, row, column in image:
        out[i] += shift
        for a in range(kernel_size):
            for b in range(kernel_size):
                neighbour = place.get((row + a - reach, column + b - reach), np.zeros(d_model))
                out[i] += weight[:, a, b] * neighbour
    return out
