"""Definitions of the Fourier features of the position, added to the token vectors: (n, n_axes) -> (n, d_model).

With one axis positions may also be (n,).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Positions = NDArray[Any]


def learnable_fourier(
    pos: Positions,
    *,
    d_model: int,
    n_axes: int = 1,
    n_features: int | None = None,
    hidden: int | None = None,
    weight_r: Array,
    weight_1: Array,
    bias_1: Array,
    weight_2: Array,
    bias_2: Array,
) -> Array:
    """Cosines and sines of trained projections of the position, through a small trained network.

    Paper: Li et al. 2021, "Learnable Fourier Features for Multi-Dimensional Spatial Positional Encoding",
    arXiv 2106.02795, section 3, equations 2 and 6, Algorithm 1: r = [cos(W_r p), sin(W_r p)] / sqrt(n_features),
    result W_2 gelu(W_1 r + b_1) + b_2.

    pos (n, n_axes) or, with one axis, (n,), fractions allowed; weight_r (n_features/2, n_axes) in radians per
    position; weight_1 (hidden, n_features), bias_1 (hidden,), weight_2 (d_model, hidden), bias_2 (d_model,);
    result (n, d_model). n_features and hidden only repeat these shapes. gelu(z) = z Phi(z), Phi by the error
    function. W_r is initialised with variance gamma**-2, a standard deviation of 1/gamma (public code uses
    gamma**-2 as the deviation); the initialisation is not part of this. The paper can split the axes into groups
    and encode all coordinates of a group at once; here all axes are one group.
    """
    n_waves, n_hidden = len(weight_r), len(bias_1)
    if (n_features or 2 * n_waves) != 2 * n_waves or (hidden or n_hidden) != n_hidden:
        raise ValueError(f"{n_features} features and {hidden} hidden units do not fit the weights")
    out = np.zeros((len(pos), d_model))
    for i, p in enumerate(pos.reshape(len(pos), n_axes)):
        angles = [float(sum(weight_r[m, a] * p[a] for a in range(n_axes))) for m in range(n_waves)]
        waves = [math.cos(angle) for angle in angles] + [math.sin(angle) for angle in angles]
        r = np.array(waves) / math.sqrt(2 * n_waves)
        z = weight_1 @ r + bias_1
        out[i] = weight_2 @ [x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in z] + bias_2
    return out


def gaussian_fourier(
    pos: Positions,
    *,
    d_model: int,
    n_axes: int = 1,
    sigma: float = 10.0,
    extent: float = 1024.0,
    seed: int = 0,
    matrix: Array | None = None,
) -> Array:
    """Sines and cosines of random projections of the position, drawn once and not trained.

    Paper: Tancik et al. 2020, "Fourier Features Let Networks Learn High Frequency Functions in Low Dimensional
    Domains", arXiv 2006.10739, section 6.1 (Gaussian): sin and cos of 2 pi B c, the entries of B normal with
    standard deviation sigma, c a coordinate within [0, 1).

    pos (n, n_axes) or, with one axis, (n,), fractions allowed; c = pos / extent, extent in positions; B
    (d_model/2, n_axes) in rotations per extent; d_model even; result (n, d_model): all sines, then all cosines,
    the order of the authors' code (the paper's formula has the cosines first).
    Our convention: B is sigma times the first d_model/2 * n_axes standard normals of NumPy's RandomState(seed),
    row by row; that generator's stream is frozen. A matrix (n_axes, d_model/2) replaces B's transpose.
    """
    half = d_model // 2
    B = (
        np.asarray(matrix).T
        if matrix is not None
        else sigma * np.random.RandomState(seed).standard_normal((half, n_axes))
    )
    out = np.zeros((len(pos), d_model))
    for i, p in enumerate(pos.reshape(len(pos), n_axes)):
        for m in range(half):
            angle = 2 * math.pi * float(sum(B[m, a] * p[a] / extent for a in range(n_axes)))
            out[i, m], out[i, half + m] = math.sin(angle), math.cos(angle)
    return out


def nerf_fourier(
    pos: Positions, *, d_model: int, n_axes: int = 1, extent: float = 1024.0, n_octaves: int | None = None
) -> Array:
    """Sines and cosines of each coordinate, each frequency twice the one before.

    Paper: Mildenhall et al. 2020, "NeRF", arXiv 2003.08934, section 5.1, equation 4: of each coordinate c,
    sin(2**0 pi c), cos(2**0 pi c), .. sin(2**(L-1) pi c), cos(2**(L-1) pi c), with L = n_octaves = 10.

    pos (n, n_axes) or, with one axis, (n,), fractions allowed; c = pos / extent, extent in positions (the paper's
    coordinates lie in [-1, 1]); result (n, d_model): the 2 L lanes of axis 0, then those of axis 1 and so on,
    and zeros in the remaining lanes, which the paper, whose vector has no fixed width, does not have.
    n_octaves None is our convention: 10, or as many as d_model holds for every axis.
    """
    octaves = min(10, d_model // (2 * n_axes)) if n_octaves is None else n_octaves
    out = np.zeros((len(pos), d_model))
    for i, p in enumerate(pos.reshape(len(pos), n_axes)):
        for axis in range(n_axes):
            for k in range(octaves):
                lane, angle = 2 * (axis * octaves + k), 2**k * math.pi * p[axis] / extent
                out[i, lane], out[i, lane + 1] = math.sin(angle), math.cos(angle)
    return out
