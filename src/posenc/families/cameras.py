"""Encodings that transform queries, keys, values and outputs by the camera and the patch of each token."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from posenc import kernels, positions
from posenc.encoding import Placed, Pos
from posenc.families.angles import tabulate
from posenc.families.heads import check_tokens
from posenc.families.numbers import no_autocast
from posenc.families.options import Budgeted
from posenc.families.tables import Matrices, Table

_ROUNDING = 1e-3  # of a matrix times its inverse; where there is none, rounding leaves a number near 1
Views = Matrices | Tensor | np.ndarray | Sequence[Any]


def spiral(n: int) -> Matrices:
    """Return the world-to-camera matrices (n, 4, 4) of cameras on a spiral that look at the origin: an example.

    Their x points right, y down and z forward, as in OpenCV, and they are 1.5 to 2.5 from the origin.

    Raises:
        ValueError: n is below 1.

    >>> (np.array(spiral(2))[0] + 0.0).round(3).tolist()  # from (2.5, 0, 0), with z of the world up
    [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, -1.0, 0.0], [-1.0, 0.0, 0.0, 2.5], [0.0, 0.0, 0.0, 1.0]]
    """
    if n < 1:
        raise ValueError(f"spiral: n must be at least 1, because an encoding needs a camera; got {n}.")
    at = np.arange(n)
    longitude, latitude, distance = 0.3 * at, np.sin(0.05 * at), 2 + 0.5 * np.cos(0.7 * at)
    forward = -np.stack([*(np.cos(latitude) * f(longitude) for f in (np.cos, np.sin)), np.sin(latitude)], -1)
    right = np.stack([-np.sin(longitude), np.cos(longitude), 0 * longitude], -1)
    views = np.tile(np.eye(4), (n, 1, 1))
    views[:, :3, :3] = np.stack([right, np.cross(forward, right), forward], 1)
    views[:, 2, 3] = distance
    return Matrices(torch.from_numpy(views), f"posenc.PRoPE.spiral({n})")


class CameraTransform(Budgeted):
    """An encoding whose tokens belong to cameras; its author writes `patch_frequencies()` and calls `_keep`.

    With D the block diagonal of copies of the token's camera, 4 x 4 over half of the head dimensions, and of rotations
    by its patch over the other half: out = D Attn(Dᵀ q, D⁻¹ k, D⁻¹ v). A position is (camera, row, column).

    Args:
        head_dim: Width of one head; a multiple of 8.

    Raises:
        ValueError: head_dim is not a multiple of 8.
    """

    family = "rotary"
    n_axes = 3
    accepts_real = False
    spiral = staticmethod(spiral)
    n_runs: int  # of neighbouring dimensions, in each of which the first half pairs with the second

    def __init__(self, *, head_dim: int) -> None:
        super().__init__()
        self._count(head_dim=head_dim)
        if head_dim % 8:
            raise ValueError(
                f"{self.name}: head_dim must be a multiple of 8, because cameras transform 4 dimensions at a time in "
                f"one half, and rows and columns share the pairs of the other; got head_dim={head_dim}."
            )
        self.head_dim = head_dim
        self.viewmats: Matrices | None = None
        self._around: Table | None = None  # (2, .., n_cameras, 4, 4): matrices and their inverses

    @property
    def max_len(self) -> int | None:
        """How many cameras there are; None before there is one."""
        return None if self.viewmats is None else self.viewmats.table.shape[-3]

    def patch_frequencies(self) -> Float64[Tensor, "2 n_pairs"]:
        """Return the radians per row and per column by which queries and keys rotate each pair."""
        raise NotImplementedError(f"{self.name} must define patch_frequencies().")

    def matrices(self, viewmats: Float64[Tensor, "*scenes n_cameras 4 4"]) -> Float64[Tensor, "*scenes n_cameras 4 4"]:
        """Return the matrices that transform tokens, from world-to-camera matrices; by default the same."""
        return viewmats

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return the matrix of each token's camera, its inverse, and the cosines and sines of its patch.

        Raises:
            ValueError: No cameras are set, a position has the number of none, scenes have no row of positions each, or
                the tables would take more than `table_budget` bytes.
        """
        if self._around is None:
            raise ValueError(
                f"{self.name}: transforms by the matrices of cameras, and was placed before it knows one; got "
                "viewmats=None. Call on(viewmats) and use what it returns, or construct it with viewmats=."
            )
        around = self._around.table.to(dtype).to(pos.device)
        camera, patch, n = pos[..., 0], pos[..., 1:], around.shape[-3]
        positions.check_range(camera, n, self.name, f"axis 0 numbers the camera, of {n}")
        self._afford(camera.numel() * (32 + self.head_dim // 2) * dtype.itemsize)
        camera = camera.where(camera >= 0, n)  # under a compiler the look-up itself checks it
        if around.ndim == 4:
            matrix, inverse = around[:, camera].unbind(0)
        elif camera.ndim == 2 and camera.shape[0] == around.shape[1]:
            scene = torch.arange(around.shape[1], device=pos.device)[:, None]
            matrix, inverse = around[:, scene, camera].unbind(0)
        else:
            raise ValueError(
                f"{self.name}: knows the cameras of {around.shape[1]} scenes, so pos must be ({around.shape[1]}, "
                f"seq_len, 3), a row for each; got {tuple(pos.shape)}. Expand it, or pass viewmats (n_cameras, 4, 4)."
            )
        return matrix, inverse, *tabulate(patch, self.patch_frequencies(), dtype=dtype)

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        """Return Dᵀ q."""
        matrix, _, cos, sin = placed.parts
        return self._transform("q and k", q, matrix.mT, cos, sin)

    def rotate_k(self, k: Tensor, placed: Placed) -> Tensor:
        """Return D⁻¹ k."""
        _, inverse, cos, sin = placed.parts
        return self._transform("q and k", k, inverse, cos, sin)

    def rotate_v(self, v: Tensor, placed: Placed) -> Tensor:
        """Return D⁻¹ v.

        Raises:
            ValueError: Values have another width than head_dim, or are not as many as positions.
        """
        _, inverse, cos, sin = placed.parts
        return self._transform("v", v, inverse, cos, sin)

    def unrotate_out(self, out: Tensor, placed: Placed) -> Tensor:
        """Return D out.

        Raises:
            ValueError: Outputs have another width than head_dim, or are not as many as positions.
        """
        matrix, _, cos, sin = placed.parts
        return self._transform("out", out, matrix, cos, -sin)

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        _, inverse, cos, sin = placed.parts
        return self._transform("q and k", q, inverse.mT, cos, -sin), self.unrotate_out(k, k_placed)

    def _transform(
        self, what: str, x: Float[Tensor, "*batch heads seq head_dim"], matrix: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        check_tokens(self.name, x, self.head_dim, cos.shape[:-1], what)
        if cos.ndim > 2:  # a batch: the same for all heads
            cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)
        with no_autocast(x.device):
            of_camera, of_patch = x.to(matrix.dtype).chunk(2, -1)
            seen = torch.einsum("...sij,...hsnj->...hsni", matrix, of_camera.unflatten(-1, (-1, 4))).flatten(-2)
            halves = of_patch.unflatten(-1, (self.n_runs, 2, -1)).transpose(-3, -2).flatten(-2).flatten(-2)
            rotated = kernels.rotate(halves, cos, sin, pairing="half").unflatten(-1, (2, self.n_runs, -1))
        return torch.cat((seen, rotated.transpose(-3, -2).flatten(-3)), -1).to(x.dtype)

    def _keep(self, viewmats: Views | None) -> None:
        """Keep world-to-camera matrices, and what `matrices` makes of them with its inverse."""
        match viewmats:
            case (str("spiral"), int(n)):
                viewmats = spiral(n)
        self.viewmats, self._around = Matrices.read(self.name, "viewmats", viewmats, 4, (3, 4)), None
        if self.viewmats is None:
            return
        seen = self.matrices(self.viewmats.table)
        inverse, _ = torch.linalg.inv_ex(seen)
        off = (seen @ inverse - torch.eye(4, dtype=seen.dtype, device=seen.device)).abs().amax((-2, -1))
        if positions.may_look(off) and not bool((off < _ROUNDING).all()):  # NaN is no inverse either
            raise ValueError(
                f"{self.name}: the matrices of cameras must have inverses; got {int((~(off < _ROUNDING)).sum())} that "
                "have none. Check viewmats and intrinsics."
            )
        self._around = Table(torch.stack((seen, inverse)))
