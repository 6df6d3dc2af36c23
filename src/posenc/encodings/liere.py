"""LieRE: rotations whose generators are learned, one for each axis."""

from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from posenc.encoding import Placed, Pos
from posenc.families import Budgeted, check_tokens, no_autocast, size, wide_parameter
from posenc.registry import register

_AT_ONCE = 32_768  # numbers of the matrices whose exponentials are computed together: 256 KiB


@register(
    "liere",
    paper="Ostmeier et al., LieRE: Lie Rotational Positional Encodings",
    year=2024,
    arxiv="2406.10322",
    formula="R(p) = exp(Σ_a p_a A_a),  A_a skew-symmetric in blocks",
    parameters="n_axes * head_dim * (block - 1) / 2",
    cost="a matrix exponential for each token and block, and a product with it for each head",
    used_by=("LieRE",),
    serves=("image", "video"),
    example={"head_dim": 64},
    variants=({"head_dim": 8, "n_axes": 3, "block": 4},),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": True,
        "smooth": False,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": True,
        "length_dependent": False,
        "learned": 448,
        "cost": "token",
    },
)
class LieRE(Budgeted):
    """Rotate blocks of dimensions by the exponential of a learned generator for each axis of the position.

    Rotations of more than two dimensions need not commute, so with several axes scores depend on more than the
    difference of positions. With one axis, or blocks of 2, they depend only on the difference. Meant for positions
    between 0 and 1 (`positions.unit_grid`), where the generators start with rotations up to pi. Source: Ostmeier 2024,
    section 4.

    Args:
        head_dim: Dimensions of one head; a multiple of the block.
        n_axes: 2 for images, 3 for video.
        block: Dimensions that rotate together; 8 in the paper's light form, head_dim in its full one.
        init_std: Standard deviation of the generators' initial numbers, in radians per unit of position.

    Raises:
        ValueError: head_dim is not a multiple of block, block is below 2, or n_axes is below 1.

    >>> LieRE(head_dim=8, n_axes=2, block=4).skew.shape  # 6 numbers above the diagonal of 4 x 4
    torch.Size([2, 2, 6])
    """

    family = "rotary"
    keeps_float32 = True

    def __init__(self, *, head_dim: int, n_axes: int = 2, block: int = 8, init_std: float = 1.0) -> None:
        super().__init__()
        self._count(head_dim=head_dim, n_axes=n_axes)
        self._count(least=2, block=block)
        if head_dim % block:
            raise ValueError(
                f"{self.name}: head_dim must be a multiple of block, because blocks of dimensions rotate together; got "
                f"head_dim={head_dim}, block={block}."
            )
        self.head_dim, self.n_axes, self.block = head_dim, n_axes, block
        self.init_std = size(self.name, "init_std", init_std)
        self.skew = wide_parameter(n_axes, head_dim // block, block * (block - 1) // 2)
        self.reset_parameters()

    def generators(self) -> Float64[Tensor, "n_axes n_blocks block block"]:
        """Return skew-symmetric matrices: the learned numbers above the diagonal, their negatives below."""
        row, column = torch.triu_indices(self.block, self.block, offset=1, device=self.skew.device)
        skew = self.skew.double()
        upper = skew.new_zeros(*skew.shape[:2], self.block, self.block)
        upper[..., row, column] = skew
        return upper - upper.mT

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Compute a rotation (n_blocks, block, block) for each position.

        Raises:
            ValueError: The rotations would need more than `table_budget` bytes.
        """
        self._afford(8 * pos.numel() // self.n_axes * self.head_dim * self.block)  # the exponential is in float64
        at = pos.double()[..., None] if self.n_axes == 1 else pos.double()
        exponents = torch.einsum("...a,anij->...nij", at, self.generators())
        return (_exponentials(exponents, self.block).to(dtype),)

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        """Rotate queries by their own positions."""
        return self._rotate(q, placed.parts[0])

    def rotate_k(self, k: Tensor, placed: Placed) -> Tensor:
        """Rotate keys by their own positions."""
        return self._rotate(k, placed.parts[0])

    def reset_parameters(self) -> None:
        """Draw new generators."""
        nn.init.normal_(self.skew, std=self.init_std)

    def _rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        check_tokens(self.name, x, self.head_dim, rotation.shape[:-3])
        with no_autocast(x.device):
            blocks = x.to(rotation.dtype).unflatten(-1, (-1, self.block))
            rotated = torch.einsum("...snij,...hsnj->...hsni", rotation, blocks)
        return rotated.flatten(-2).to(x.dtype)

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        return self._rotate(q, placed.parts[0].mT), self._rotate(k, k_placed.parts[0].mT)


def _exponentials(matrices: Tensor, block: int) -> Tensor:
    """Exponentiate in parts whose roughly twenty temporary copies fit in a core's cache."""
    if torch.compiler.is_compiling():  # a graph would contain every part separately
        return torch.matrix_exp(matrices)
    at_once = max(1, _AT_ONCE // matrices.shape[-1] ** 2)
    parts = matrices.reshape(-1, block, block).split(at_once)
    return torch.cat([torch.matrix_exp(part) for part in parts]).view_as(matrices)
