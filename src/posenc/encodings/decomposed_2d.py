"""Decomposed relative positions: queries times a learned vector of the row difference, and one of the column's."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc import positions
from posenc.encoding import Placed, Pos
from posenc.families import ContentBias, floating, no_autocast
from posenc.families.resizing import Rule, resized_rows
from posenc.families.windows import as_grid, reached, refuse_outside, rows_and_columns, with_tensors
from posenc.registry import register


@register(
    "decomposed_2d",
    paper="Li et al., MViTv2: Improved Multiscale Vision Transformers for Classification and Detection",
    year=2021,
    arxiv="2112.01526",
    formula="q_i·k_j / √d + q_i·R_h[Δrow] + q_i·R_w[Δcolumn]",
    parameters="2·(size[0] + size[1] - 1)·d",
    cost="2·(rows + columns - 1) products of width d for each query, and two look-ups a score",
    aliases=("decomposed_rel_pos", "rel_pos_hw"),
    used_by=("MViTv2", "ViTDet", "SAM"),
    serves=("image",),
    example={"head_dim": 8, "size": (64, 64)},
    traits={
        "distinct": {"float32": 64, "bfloat16": 20, "float16": 34},
        "longest": 63,
        "real_positions": False,
        "smooth": False,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 2_032,
        "cost": "score",
    },
)
class Decomposed2D(ContentBias):
    """Add the query's products with a vector of the row difference and one of the column difference.

    All heads share the vectors, and neither product is divided by √d. Row Δ + rows - 1 of `rel_h` belongs to the
    difference Δ, query minus key. A pair further apart than `size` raises an error. Where a model pools its keys by a
    stride s, pass s·i + s - 1 as the position of key i of an axis, on the grid of the queries, as the models count.
    Source: Li 2021, section 4.1, equation 4.

    Args:
        head_dim: Dimensions of one head.
        size: Rows and columns of the grid; of the larger grid if queries and keys have different ones.

    Raises:
        ValueError: A size is below 1, q has another head_dim, or a pair is further apart than the grid (checked on
            the CPU; on a GPU the index kernel raises).
        TypeError: Positions or sizes are not integers.

    >>> bias = Decomposed2D(head_dim=1, size=(1, 2))
    >>> with torch.no_grad(): _ = bias.rel_h.fill_(1.0), bias.rel_w.copy_(torch.tensor([[7.0], [0.0], [5.0]]))
    >>> q, p = torch.ones(1, 1, 2, 1), bias.place(torch.tensor([[0, 0], [0, 1]]))
    >>> bias.bias(q, q, p, p)[0, 0].tolist()
    [[1.0, 8.0], [6.0, 1.0]]
    """

    n_axes = 2
    accepts_real = False

    def __init__(self, *, head_dim: int, size: tuple[int, int]) -> None:
        super().__init__()
        self._count(head_dim=head_dim)
        self.head_dim, self.size = head_dim, rows_and_columns(self, "size", size)
        self.rel_h = nn.Parameter(torch.empty(2 * self.size[0] - 1, head_dim))
        self.rel_w = nn.Parameter(torch.empty(2 * self.size[1] - 1, head_dim))
        self.reset_parameters()

    @property
    def max_len(self) -> int:
        """Positions along the shorter side."""
        return min(self.size)

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Keep the positions exact; as float64 for a float64 bias."""
        return (pos.double() if dtype == torch.float64 else pos,)

    def bias(
        self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed
    ) -> Float[Tensor, "batch n_heads q_len k_len"]:
        """Return q_i · R_h[Δrow] + q_i · R_w[Δcolumn]."""
        self.check_heads(q)
        here, there = placed.parts[0], k_placed.parts[0]
        dtype = floating(here).dtype
        with no_autocast(q.device):  # half precision would round the products before the softmax
            products = [q.to(dtype) @ table.to(dtype).T for table in (self.rel_h, self.rel_w)]
        axes = as_grid(there) if positions.may_look(here) else None
        if axes is not None:
            down, right = (here[..., None, :, i, None] - axis for i, axis in enumerate(axes))
            if reached((down[..., None], right[..., None, :]), self.size).all():
                return (_at(products[0], down)[..., None] + _at(products[1], right)[..., None, :]).flatten(-2)
        down, right = (here[..., None, :, None, :] - there[..., None, None, :, :]).unbind(-1)
        inside = reached((down, right), self.size)
        refuse_outside(inside, self.name, self.size, "`resized` makes larger tables.")
        # where values cannot be read, the index kernel raises for a pair too far apart
        down, right = (d.where(inside, n) for d, n in zip((down, right), self.size, strict=True))
        return _at(products[0], down) + _at(products[1], right)

    def resized(self, size: tuple[int, int], *, rule: Rule = "cells") -> "Decomposed2D":
        """Return tables for another grid by linear interpolation.

        Args:
            size: New rows and columns.
            rule: As for `Learned.resized`; "cells" (the default) is the rule of the published models.

        Raises:
            ValueError: A size is below 1, or the rule is unknown.
        """
        wanted, tables = rows_and_columns(self, "size", size), {}
        for (name, table), n in zip(self.named_parameters(), wanted, strict=True):
            tables[name] = resized_rows(table, 2 * n - 1, rule, self.name)
        twin = with_tensors(self, **tables)
        twin.size = wanted
        return twin

    def reset_parameters(self) -> None:
        """Draw the vectors from N(0, 0.02), truncated at two."""
        for table in (self.rel_h, self.rel_w):
            nn.init.trunc_normal_(table, std=0.02)


def _at(product: Tensor, difference: Tensor) -> Tensor:
    """Return each query's products with the vectors of its differences, given those with all vectors."""
    row = difference.long() + product.shape[-1] // 2
    return product.gather(-1, row.expand(*product.shape[:-1], row.shape[-1]))
