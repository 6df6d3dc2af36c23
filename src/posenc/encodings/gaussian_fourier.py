"""Fourier features with random frequencies."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.encoding import Pos
from posenc.encodings.sinusoidal import waves
from posenc.families import Additive, Table
from posenc.registry import register


@register(
    "gaussian_fourier",
    paper="Tancik et al., Fourier Features Let Networks Learn High Frequency Functions in Low Dimensional Domains",
    year=2020,
    arxiv="2006.10739",
    formula="x_p + [sin(2πB·p/extent) ‖ cos(2πB·p/extent)],  B ~ N(0, σ²)",
    parameters="0",
    cost="one addition to the embeddings",
    aliases=("random_fourier",),
    used_by=("SAM's prompt encoder",),
    serves=("image", "camera"),
    example={"d_model": 32},
    variants=({"n_axes": 2, "seed": 3},),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": True,
        "length_dependent": False,
        "learned": 0,
        "cost": "token",
    },
)
class GaussianFourier(Additive):
    """Add sines and cosines of random projections of the position.

    The dot product of two vectors approaches a Gaussian of the distance; a larger sigma makes it narrower. The
    frequencies follow from the seed (NumPy's RandomState, whose stream is frozen). So nothing is stored that a cast
    could damage, and the same options give the same vectors everywhere. Source: Tancik 2020, section 6.1.

    Args:
        d_model: Width of the token embeddings; even.
        n_axes: Number of coordinates of a position.
        sigma: Standard deviation of the frequencies, in cycles per unit of the coordinate; 10 in the paper's images.
        extent: Positions per unit of the coordinate; 1.0 for positions that are coordinates in 0..1.
        seed: Seed of the frequencies.
        matrix: The frequencies themselves, (n_axes, d_model / 2) in cycles per unit, instead of sigma and seed. SAM's
            checkpoints have them as positional_encoding_gaussian_matrix; its coordinates run from -1 to 1.

    Raises:
        TypeError: matrix does not hold real numbers.
        ValueError: d_model is odd, n_axes is below 1, sigma or extent is not positive, or matrix has another shape.

    >>> gaussian = GaussianFourier(d_model=64)
    >>> near, far = (gaussian.vectors(torch.tensor([0, p])) for p in (10, 100))
    >>> bool(near[0] @ near[1] > 10 * (far[0] @ far[1]).abs())
    True
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_axes: int = 1,
        sigma: float = 10.0,
        extent: float = 1024.0,
        seed: int = 0,
        matrix: Table | Tensor | Sequence[Sequence[float]] | None = None,
    ) -> None:
        super().__init__(d_model=d_model)
        self._count(n_axes=n_axes)
        self._count(least=0, seed=seed)
        self._measure(sigma=sigma, extent=extent)
        if d_model % 2:
            raise ValueError(
                f"{self.name}: d_model must be even, because each frequency has a sine and a cosine; "
                f"got d_model={d_model}."
            )
        self.n_axes, self.sigma, self.extent, self.seed = n_axes, sigma, extent, seed
        drawn = sigma * np.random.RandomState(seed).standard_normal((d_model // 2, n_axes)).T
        self.matrix = None if matrix is None else Table.of(self.name, "matrix", matrix, n_axes, d_model // 2)
        self._cycles = Table(torch.from_numpy(drawn)) if self.matrix is None else self.matrix

    def vectors(self, pos: Pos) -> Float64[Tensor, "*batch seq d_model"]:
        """Return all sines, then all cosines."""
        coordinates = (pos.double() if self.n_axes > 1 else pos.double()[..., None]) / self.extent
        cycles = self._cycles.table.to(pos.device, torch.float64)
        return waves(coordinates @ (2 * math.pi * cycles), self.d_model, "concatenated")
