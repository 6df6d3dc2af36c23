"""GTA: queries, keys, values and outputs are transformed by the poses of their cameras."""

import copy
import math

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.families import CameraTransform
from posenc.families.cameras import Views
from posenc.families.windows import rows_and_columns
from posenc.registry import register


@register(
    "gta",
    paper="Miyato et al., GTA: A Geometry-Aware Attention Mechanism for Multi-View Transformers",
    year=2023,
    arxiv="2310.10375",
    formula="out = D Attn(Dᵀq, D⁻¹k, D⁻¹v),  D = diag(I⊗T_camera, R(-2π·2^-j·row/rows), R(-2π·2^-j·column/columns))",
    parameters="0",
    cost="four products for each dimension of q, k, v and the output in one half, and a rotation in the other",
    aliases=("geometric_transform_attention",),
    used_by=("GTA (novel views, after SRT)",),
    serves=("camera",),
    example={"head_dim": 64, "size": (16, 16), "viewmats": ("spiral", 64)},
    variants=({"head_dim": 8, "size": (3, 5)},),
    traits={
        "distinct": {"float32": 64, "bfloat16": 64, "float16": 64},
        "longest": 63,
        "real_positions": False,
        "smooth": True,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 0,
        "cost": "token",
    },
)
class GTA(CameraTransform):
    """Bring queries, keys and values from the frames of their cameras to the world, and outputs to the query's frame.

    A position is (camera, row, column), and `on(viewmats)` returns a copy with these cameras. Scores and outputs depend
    on relative poses only, so that the frame of the world is free. Poses transform half of the head dimensions; patches
    rotate the other half. The authors multiply translations by a learned number, 0.01 at the start; here they are used
    as given. The paper's rotations of spheres (SO(3)) are left out. Source: Miyato 2023 and the authors' code.

    Distances from the origin of the world cancel between two cameras to the precision of q and k only. For cameras
    1,000 from it and 2 from each other, the error of outputs is 3e-4 of the largest in float32, and in bfloat16 nothing
    is left of them; with the first camera's frame as that of the world, views @ views[:1].inverse() in float64, it is
    1e-6 and 5e-3. Divide translations by the size of the scene.

    Args:
        head_dim: Width of one head; a multiple of 8.
        size: Rows and columns of an image in patches, over which the fastest pair rotates once.
        viewmats: Matrices from the world to each camera, (n_cameras, 4, 4), or (scenes, n_cameras, 4, 4) for a batch of
            scenes, whose positions are (scenes, seq_len, 3). They get no gradient. ("spiral", n) for those of
            `spiral(n)`; None if `on` sets them.

    Raises:
        ValueError: A head_dim that is no multiple of 8, a size below 1, matrices of another shape or without an
            inverse, a position of a camera that is not there, or placing without cameras.
        TypeError: Matrices that are not real numbers, or positions that are not integers.

    >>> gta = GTA(head_dim=8, size=(2, 2)).on([[[1, 0, 0, 5], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]])
    >>> k = torch.tensor([7.0, 2.0, 3.0, 1.0, 1.0, 0.0, 1.0, 0.0]).view(1, 1, 1, 8)  # a point, and two pairs
    >>> gta.rotate_k(k, gta.place(torch.tensor([[0, 1, 0]]))).flatten().numpy().round(4)  # half a turn by the row
    array([ 2.,  2.,  3.,  1., -1.,  0.,  1.,  0.], dtype=float32)
    """

    def __init__(self, *, head_dim: int, size: tuple[int, int], viewmats: Views | None = None) -> None:
        super().__init__(head_dim=head_dim)
        self.size, self.n_runs = rows_and_columns(self, "size", size), head_dim // 4
        self._keep(viewmats)

    def on(self, viewmats: Views) -> "GTA":
        """Return the encoding of the cameras of one scene, or of a batch of scenes.

        Args:
            viewmats: Matrices from the world to each camera, (n_cameras, 4, 4) or (scenes, n_cameras, 4, 4).

        Raises:
            ValueError: As for the class.
            TypeError: As for the class.
        """
        twin = copy.copy(self)
        twin._keep(viewmats)
        return twin

    def patch_frequencies(self) -> Float64[Tensor, "2 n_pairs"]:
        """Return 2π 2^-j radians per side of the image, slowest first, for rows and columns in turn."""
        n = self.head_dim // 8
        each = 2 * math.pi * 2.0 ** torch.arange(1 - n, 1, dtype=torch.float64, device="cpu")
        axes = torch.stack([each / cells for cells in self.size])
        return torch.stack([torch.stack((axes[0], 0 * each), -1), torch.stack((0 * each, axes[1]), -1)]).flatten(1)
