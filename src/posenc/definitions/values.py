"""Definitions of what transforms values and outputs: position p -> (R_v, R_o), (head_dim, head_dim).

The output of query i is R_o(p_i) (sum over j of a_ij R_v(p_j) v_j), v_j a column and a_ij the weights of attention.
What transforms queries and keys as well gives (R_q, R_k, R_v, R_o), the first two as in `rotary`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from posenc.definitions.rotary import rope

Array = NDArray[np.float64]


def vo_rope(
    p: float,
    *,
    head_dim: int,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    rotary_side: Literal["first", "last"] = "first",
    pairing: Literal["half", "interleaved"] = "half",
    inv_freq: Array | None = None,
) -> tuple[Array, Array]:
    """Values rotate as keys do in `rope`, and the output of a query rotates back by the query's position.

    Source: Su 2025, kexue.fm/archives/10862 (Transformer Upgrade Road 19, the second type of rotary position
    encoding): o_i = R_i^T sum_j a_ij R_j v_j = sum_j a_ij R_(j - i) v_j, so an output depends only on p_j - p_i.
    Queries and keys stay unchanged: this is VO-RoPE there; with `rope` on them it is QKVO-RoPE.

    p in positions, fractions and negatives allowed; options as in `rope`; head_dim is the width of the values.
    Not specified there, from DeepSeek-V4's code (Hugging Face, deepseek_v4, DeepseekV4Attention): a part of the lanes
    may rotate, there the last ones, "interleaved"; it is QKVO-RoPE with one tensor as keys and values.
    """
    rotation, _ = rope(
        p,
        head_dim=head_dim,
        base=base,
        rotary_dim=rotary_dim,
        rotary_side=rotary_side,
        pairing=pairing,
        inv_freq=inv_freq,
    )
    return rotation, rotation.T


def prope(
    p: Array,
    *,
    head_dim: int,
    base: float = 100.0,
    viewmats: Array,
    intrinsics: Array | None = None,
    image_size: tuple[int, int] | None = None,
) -> tuple[Array, Array, Array, Array]:
    """What each camera makes of points in space, in half of the dimensions; `rope` of the patch in the other half.

    Paper: Li et al. 2025, "Cameras as Relative Positional Encoding" (PRoPE), arXiv 2507.10496: out = D Attn(D^T q,
    D^-1 k, D^-1 v), D of a token the block diagonal of I (x) P, d/2 wide, RoPE(x) and RoPE(y), each d/4 wide, P =
    [[K, 0], [0, 1]] T of the token's camera. A score knows P_i P_j^-1 alone, which no change of the world alters.

    p (3,): number of the camera, row y and column x of the patch, in patches; viewmats (n_cameras, 4, 4): T, world
    to camera; intrinsics K (3, 3), or one for each camera, in pixels, of which image_size (height, width) has so many;
    None: K = I, poses only.
    From the authors' code: omega_k = base**(-8k/head_dim) radians per patch; pairs are "half" within each d/4; x goes
    first; pixels are divided by the image's width and height, and 1/2 is taken off. Its K has no skew; here it may.
    """
    camera, row, column = int(p[0]), p[1], p[2]
    if not 0 <= camera < len(viewmats):
        raise IndexError(f"camera {camera} is outside 0..{len(viewmats) - 1}")
    to_image = np.eye(4)
    if intrinsics is not None and image_size is not None:
        height, width = image_size
        of_pixels = np.array([[1 / width, 0.0, -0.5], [0.0, 1 / height, -0.5], [0.0, 0.0, 1.0]])
        each = np.asarray(intrinsics)
        to_image[:3, :3] = of_pixels @ (each[camera] if each.ndim == 3 else each)
    omega = base ** (-8 * np.arange(head_dim // 8) / head_dim)
    whole = np.eye(head_dim)
    for b in range(head_dim // 8):
        lanes = slice(4 * b, 4 * b + 4)
        whole[lanes, lanes] = to_image @ np.asarray(viewmats)[camera]
    x, y = slice(head_dim // 2, head_dim * 3 // 4), slice(head_dim * 3 // 4, head_dim)
    whole[x, x] = rope(column, head_dim=head_dim // 4, inv_freq=omega)[0]
    whole[y, y] = rope(row, head_dim=head_dim // 4, inv_freq=omega)[0]
    inverse = np.asarray(np.linalg.inv(whole), dtype=np.float64)
    return whole.T, inverse, inverse.copy(), whole


def gta(p: Array, *, head_dim: int, size: tuple[int, int], viewmats: Array) -> tuple[Array, Array, Array, Array]:
    """The pose of each camera, in half of the dimensions; rotations by the patch in the other half.

    Paper: Miyato et al. 2023, "GTA: A Geometry-Aware Attention Mechanism for Multi-View Transformers", arXiv
    2310.10375: out = rho Attn(rho^T q, rho^-1 k, rho^-1 v), rho of a token the block diagonal of copies of its camera's
    pose and of rotations by the angles of its row and column; without the paper's rotations of spheres (SO(3)).

    p (3,): number of the camera, row and column of the patch; viewmats (n_cameras, 4, 4), world to camera; size (rows,
    columns) of an image in patches. From the authors' code (autonomousvision/gta, source/utils/gta.py): halves; the
    angles are 2 pi 2**(k - n) times row/rows and column/columns, k = 1.. n, n = head_dim/8, slowest first; pairs are
    "interleaved", row and column in turn; queries and keys rotate counter-clockwise, so that rho has the inverse.
    Departure: that code multiplies translations by a learned number, 0.01 at the start; scale viewmats instead.
    """
    camera = int(p[0])
    if not 0 <= camera < len(viewmats):
        raise IndexError(f"camera {camera} is outside 0..{len(viewmats) - 1}")
    angles = np.zeros(head_dim // 4)
    for k in range(head_dim // 8):
        turns = 2.0 ** (k + 1 - head_dim // 8)
        angles[2 * k], angles[2 * k + 1] = 2 * np.pi * turns * p[1] / size[0], 2 * np.pi * turns * p[2] / size[1]
    whole = np.eye(head_dim)
    for b in range(head_dim // 8):
        lanes = slice(4 * b, 4 * b + 4)
        whole[lanes, lanes] = np.asarray(viewmats)[camera]
    patch = slice(head_dim // 2, head_dim)
    whole[patch, patch] = rope(-1.0, head_dim=head_dim // 2, pairing="interleaved", inv_freq=angles)[0]
    inverse = np.asarray(np.linalg.inv(whole), dtype=np.float64)
    return whole.T, inverse, inverse.copy(), whole
