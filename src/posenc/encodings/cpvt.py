"""CPVT: position from a convolution over the neighbours in the image."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from posenc.encoding import Placed, Pos
from posenc.families import Embedded, wide
from posenc.registry import register


@register(
    "cpvt",
    paper="Chu et al., Conditional Positional Encodings for Vision Transformers",
    year=2021,
    arxiv="2102.10882",
    formula="x_p + Σ_o W[o]·x_{p+o} + b,  o in a k·k neighbourhood, zeros outside",
    parameters="D·(k² + 1)",
    cost="k² products and sums for each lane of the embeddings",
    aliases=("peg", "conditional"),
    used_by=("CPVT", "Twins"),
    serves=("image",),
    example={"d_model": 32},
    traits={
        "distinct": {"float32": 2, "bfloat16": 2, "float16": 2},
        "longest": None,
        "real_positions": False,
        "smooth": False,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 320,
        "cost": "token",
    },
)
class CPVT(Embedded):
    """Add a depthwise convolution of the tokens over their image grid.

    Zeros beyond the image's border mark the border, and later layers can count from there, at any image size. The grid
    is read from the positions, so an incomplete image needs no special care: a cell without a token counts as zero.
    Tokens in a negative row, where `positions.grid` puts class tokens, pass unchanged, as in the paper. All neighbours
    of a token must be in the same call, and one row of the batch holds one image: if two tokens share a cell, one of
    them is ignored. The paper puts the convolution behind the first layer; here it comes before, like every embedding.
    Source: Chu 2021, section 3.2.

    Args:
        d_model: Width of the token embeddings.
        kernel_size: k, odd; 3 in the paper.

    Raises:
        ValueError: kernel_size is even.
        TypeError: Positions are not integers.

    >>> cpvt = CPVT(d_model=1)
    >>> with torch.no_grad(): _ = cpvt.weight.fill_(1.0), cpvt.shift.zero_()  # the sum of the neighbours
    >>> cpvt(torch.ones(1, 4, 1), torch.tensor([[0, 0], [0, 1], [1, 0], [5, 5]])).flatten().tolist()
    [4.0, 4.0, 4.0, 2.0]
    """

    n_axes = 2
    accepts_real = False

    def __init__(self, *, d_model: int, kernel_size: int = 3) -> None:
        super().__init__(d_model=d_model)
        self._count(kernel_size=kernel_size)
        if kernel_size % 2 == 0:
            raise ValueError(
                f"{self.name}: kernel_size must be odd, so that the token is in the middle; got {kernel_size}."
            )
        self.kernel_size = kernel_size
        self.weight = nn.Parameter(torch.empty(d_model, kernel_size, kernel_size))
        self.shift = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Keep the positions, from which `mix` finds the neighbours."""
        return (pos,)

    def mix(self, x: Float[Tensor, "*batch seq d_model"], *parts: Tensor) -> Float[Tensor, "*batch seq d_model"]:
        """Return the tokens plus the convolution, computed in float32 or wider."""
        if x.numel() == 0:
            return x
        index, there = self._neighbours(parts[0])
        index, there = (t.expand(*x.shape[:-1], -1) for t in (index, there))
        flat = index.flatten(-2)[..., None].expand(*index.shape[:-2], -1, self.d_model)
        near = wide(x).gather(-2, flat).unflatten(-2, index.shape[-2:]) * there[..., None]
        around: Tensor = (near * wide(self.weight).flatten(1).T).sum(-2)
        return torch.where(parts[0][..., :1] >= 0, x + around + wide(self.shift), x)

    def reset_parameters(self) -> None:
        """Draw weight and bias as `nn.Conv2d` does."""
        reach = 1 / self.kernel_size
        nn.init.uniform_(self.weight, -reach, reach)
        nn.init.uniform_(self.shift, -reach, reach)

    def _neighbours(
        self, pos: Int64[Tensor, "*batch seq 2"]
    ) -> tuple[Int64[Tensor, "*batch seq k2"], Bool[Tensor, "*batch seq k2"]]:
        """Return for each token and offset the index of the token in that cell, and whether there is one."""
        reach = torch.arange(self.kernel_size, device=pos.device) - self.kernel_size // 2
        row, column = pos.unbind(-1)
        # one number per cell, in rows so long that no offset of the kernel leads from one row into another
        width = 2 * column.abs().amax(-1, keepdim=True) + self.kernel_size
        place = torch.where(row >= 0, row * width + column, torch.iinfo(torch.int64).min)
        step = (reach[:, None] * width[..., None, None] + reach).flatten(-2)
        order = place.sort(dim=-1, stable=True)
        wanted = place[..., None] + step
        slot = torch.searchsorted(order.values, wanted.flatten(-2)).clamp(max=place.shape[-1] - 1)
        there = order.values.gather(-1, slot) == wanted.flatten(-2)
        return order.indices.gather(-1, slot).reshape(wanted.shape), there.reshape(wanted.shape)
