"""Fourier features in octaves, as in NeRF."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.encoding import Pos
from posenc.encodings.sinusoidal import waves
from posenc.families import Additive
from posenc.registry import register


@register(
    "nerf_fourier",
    paper="Mildenhall et al., NeRF: Representing Scenes as Neural Radiance Fields for View Synthesis",
    year=2020,
    arxiv="2003.08934",
    formula="x_p + (sin(2^k·π·p/extent), cos(2^k·π·p/extent)),  k = 0 .. octaves - 1, axis after axis",
    parameters="0",
    cost="one addition to the embeddings",
    aliases=("octaves", "dyadic"),
    used_by=("NeRF",),
    serves=("camera",),
    example={"d_model": 32},
    variants=({"n_axes": 3, "n_octaves": 4},),
    traits={
        "distinct": {"float32": 2_048, "bfloat16": 2_048, "float16": 2_048},
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
class NeRFFourier(Additive):
    """Add sines and cosines of each coordinate, each octave twice as fast as the one before.

    The features suit coordinates between -1 and 1 and repeat beyond; `extent` is the number of positions in one unit.
    Dimensions beyond the octaves stay unchanged. Source: Mildenhall 2020, equation 4.

    Args:
        d_model: Width of the token embeddings.
        n_axes: Number of coordinates of a position; axis 0's octaves come first.
        extent: Positions from 0 to the coordinate 1; 1.0 for positions that are coordinates.
        n_octaves: Octaves of one axis; None means 10 (as in the paper), or as many as fit.

    Raises:
        ValueError: The octaves need more dimensions than d_model, or extent is not positive.

    >>> NeRFFourier(d_model=4, extent=1.0).vectors(torch.tensor([0.25])).numpy().round(4)
    array([[0.7071, 0.7071, 1.    , 0.    ]])
    """

    def __init__(self, *, d_model: int, n_axes: int = 1, extent: float = 1024.0, n_octaves: int | None = None) -> None:
        super().__init__(d_model=d_model)
        self._count(n_axes=n_axes)
        self._measure(extent=extent)
        room = d_model // (2 * n_axes)
        n_octaves = min(10, room) if n_octaves is None else n_octaves
        if not 1 <= n_octaves <= min(room, 50):
            raise ValueError(
                f"{self.name}: d_model must be at least 2 for each axis and octave, and float64 resolves 50 octaves; "
                f"got d_model={d_model}, n_axes={n_axes}, n_octaves={n_octaves}."
            )
        self.n_axes, self.extent, self.n_octaves = n_axes, extent, n_octaves

    def vectors(self, pos: Pos) -> Float64[Tensor, "*batch seq d_model"]:
        """Return the octaves of each axis, sine and cosine in turn."""
        coordinates = (pos.double() if self.n_axes > 1 else pos.double()[..., None]) / self.extent
        octaves = torch.exp2(torch.arange(self.n_octaves, dtype=torch.float64, device=pos.device)) * math.pi
        features = waves(coordinates[..., None] * octaves, 2 * self.n_octaves).flatten(-2)
        return torch.nn.functional.pad(features, (0, self.d_model - features.shape[-1]))
