"""PRoPE: queries, keys, values and outputs are transformed by the projections of their cameras."""

import copy

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.families import CameraTransform, Matrices, geometric
from posenc.families.cameras import Views
from posenc.families.windows import rows_and_columns
from posenc.registry import register


@register(
    "prope",
    paper="Li et al., Cameras as Relative Positional Encoding",
    year=2025,
    arxiv="2507.10496",
    formula="out = D Attn(Dᵀq, D⁻¹k, D⁻¹v),  D = diag(I⊗[[K, 0], [0, 1]]·T_camera, RoPE(column), RoPE(row))",
    parameters="0",
    cost="four products for each dimension of q, k, v and the output in one half, and a rotation in the other",
    aliases=("projective_rope",),
    used_by=("PRoPE (novel views, after LVSM)", "HY-WorldPlay (cameras in all dimensions)"),
    serves=("camera",),
    example={
        "head_dim": 64,
        "viewmats": ("spiral", 64),
        "intrinsics": ((300.0, 0.0, 120.0), (0.0, 280.0, 130.0), (0.0, 0.0, 1.0)),
        "image_size": (256, 256),
    },
    variants=({"head_dim": 8, "intrinsics": None},),
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
class PRoPE(CameraTransform):
    """Bring queries, keys and values from the images of their cameras to the world, and outputs to the query's image.

    A position is (camera, row, column), and `on(viewmats, intrinsics)` returns a copy with these cameras. Scores and
    outputs depend on relative projections only, so that the frame of the world is free. Cameras transform half of the
    head dimensions; patches rotate the other half, clockwise for q and k, as in the paper's formula and the authors'
    code. Without intrinsics it is the paper's form of `GTA`. As in `GTA`, precision depends on the origin of the world:
    use the first camera's frame as that of the world, and divide translations by the size of the scene. Source: Li 2025
    and the authors' code.

    Args:
        head_dim: Width of one head; a multiple of 8.
        base: Base of the frequencies of rows and columns.
        viewmats: Matrices from the world to each camera, (n_cameras, 4, 4), or (scenes, n_cameras, 4, 4) for a batch of
            scenes, whose positions are (scenes, seq_len, 3). They get no gradient. ("spiral", n) for those of
            `spiral(n)`; None if `on` sets them.
        intrinsics: Matrices from each camera to its image in pixels, (n_cameras, 3, 3), (scenes, n_cameras, 3, 3), or
            (3, 3) for all; None for poses only.
        image_size: Rows and columns (height and width) of the image in pixels, by which intrinsics are divided.

    Raises:
        ValueError: A head_dim that is no multiple of 8, matrices of another shape or without an inverse, intrinsics
            without image_size, a position of a camera that is not there, or placing without cameras.
        TypeError: Matrices that are not real numbers, or positions that are not integers.

    >>> prope = PRoPE(head_dim=8, image_size=(2, 4))
    >>> one = prope.on(torch.eye(4)[None], [[8.0, 0.0, 2.0], [0.0, 8.0, 1.0], [0.0, 0.0, 1.0]])
    >>> k = torch.tensor([2.0, 4.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0]).view(1, 1, 1, 8)  # 2 and 4 images off the centre
    >>> one.rotate_k(k, one.place(torch.tensor([[0, 0, 1]]))).flatten().numpy().round(4)
    array([ 1.    ,  1.    ,  1.    ,  1.    ,  0.5403, -0.8415,  1.    ,
            0.    ], dtype=float32)
    """

    n_runs = 2

    def __init__(
        self,
        *,
        head_dim: int,
        base: float = 100.0,
        viewmats: Views | None = None,
        intrinsics: Views | None = None,
        image_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(head_dim=head_dim)
        self.base = frequencies.check_base(base, self.name)
        self.image_size = None if image_size is None else rows_and_columns(self, "image_size", image_size)
        self._look_at(viewmats, intrinsics)

    def on(self, viewmats: Views, intrinsics: Views | None = None) -> "PRoPE":
        """Return the encoding of the cameras of one scene, or of a batch of scenes.

        Args:
            viewmats: Matrices from the world to each camera, (n_cameras, 4, 4) or (scenes, n_cameras, 4, 4).
            intrinsics: Matrices from each camera to its image in pixels, (3, 3) for all or (.., n_cameras, 3, 3); None
                keeps those of this encoding.

        Raises:
            ValueError: As for the class.
            TypeError: As for the class.
        """
        twin = copy.copy(self)
        twin._look_at(viewmats, self.intrinsics if intrinsics is None else intrinsics)
        return twin

    def matrices(self, viewmats: Float64[Tensor, "*scenes n_cameras 4 4"]) -> Float64[Tensor, "*scenes n_cameras 4 4"]:
        """Return [[K, 0], [0, 1]] T: from the world to fractions of the image, from its centre."""
        if self.intrinsics is None or self.image_size is None:
            return viewmats
        height, width = self.image_size
        to_centre = [[1 / width, 0.0, -0.5], [0.0, 1 / height, -0.5], [0.0, 0.0, 1.0]]
        k = viewmats.new_tensor(to_centre) @ self.intrinsics.table.to(viewmats.device)
        if k.shape[:-2] not in ((), viewmats.shape[-3:-2], viewmats.shape[:-2]):
            raise ValueError(
                f"{self.name}: intrinsics must be (3, 3), or one for each camera; got {tuple(k.shape)} for viewmats of "
                f"{tuple(viewmats.shape)}. Pass both for the same cameras."
            )
        lifted = torch.nn.functional.pad(k, (0, 1, 0, 1))
        lifted[..., 3, 3] = 1.0
        return lifted @ viewmats

    def patch_frequencies(self) -> Float64[Tensor, "2 n_pairs"]:
        """Return -base^(-8k/head_dim) for the first pairs by the column, and for the others by the row."""
        each = -geometric(self.head_dim // 8, base=self.base, width=self.head_dim // 4)
        return torch.stack((torch.cat((0 * each, each)), torch.cat((each, 0 * each))))

    def _look_at(self, viewmats: Views | None, intrinsics: Views | None) -> None:
        self.intrinsics = Matrices.read(self.name, "intrinsics", intrinsics, 3, (2, 3, 4))
        if self.intrinsics is not None and self.image_size is None:
            raise ValueError(
                f"{self.name}: intrinsics are in pixels, which image_size=(height, width) makes fractions of the "
                "image; got image_size=None. Pass it to the constructor; (1, 1) if yours are fractions already."
            )
        self._keep(viewmats)
