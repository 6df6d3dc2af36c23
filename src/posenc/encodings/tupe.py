"""TUPE: positions meet positions, through their own projections."""

from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from posenc import positions
from posenc.encoding import Placed
from posenc.families import Bias, no_autocast, wide
from posenc.positions.checks import first_of_run
from posenc.registry import register


@register(
    "tupe",
    paper="Ke et al., Rethinking Positional Encoding in Language Pre-training",
    year=2020,
    arxiv="2006.15595",
    formula="(q_i·k_j + Q_i·K_j) / √(2d),  Q = p U_Q, K = p U_K;  θ1 for i = 0, θ2 for j = 0 instead of Q_i·K_j",
    parameters="2·H·max_len·d + 2·H",
    cost="a product of width d for each score",
    aliases=("tupe_a", "untied"),
    used_by=("TUPE",),
    serves=("text",),
    example={"n_heads": 4, "head_dim": 8, "max_len": 128},
    variants=({"untie_cls": False},),
    traits={
        "distinct": {"float32": 2, "bfloat16": 2, "float16": 2},
        "longest": 127,
        "real_positions": False,
        "smooth": False,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 8_200,
        "cost": "score",
    },
)
class TUPE(Bias):
    """Add the product of a learned vector of the query's position and one of the key's.

    In the paper these are projections p U_Q and p U_K of one table, the same in all layers; here the projected rows of
    each head are the parameters. [CLS] stands at position 0 and gets no position vectors: `cls_to` is its bias on all
    keys including itself, and `to_cls` the bias of other queries on it, both unscaled. `cls_to` is equal along the
    whole row, so it does not change the softmax; it is here because the paper's scores include it. For TUPE-R compose
    it with T5's bias, which then also applies to the row and the column of [CLS]; the paper omits it there.
    Source: Ke 2020, sections 3.1 and 3.2.

    Args:
        n_heads: Number of query heads.
        head_dim: Dimensions of one head. Both products are divided by √(2 head_dim).
        max_len: Number of positions.
        untie_cls: False treats position 0 like any other.

    Raises:
        ValueError: A position is outside 0..max_len - 1 (checked on the CPU; on a GPU the index kernel raises).
        TypeError: Positions are not integers.

    >>> tupe = TUPE(n_heads=1, head_dim=2, max_len=3)
    >>> with torch.no_grad(): _ = [p.fill_(i) for i, p in enumerate(tupe.parameters(), 1)]
    >>> tupe.dense(torch.arange(3))[0, 0].tolist()
    [[3.0, 3.0, 3.0], [4.0, 2.0, 2.0], [4.0, 2.0, 2.0]]
    """

    accepts_real = False
    cls_to: nn.Parameter | None
    to_cls: nn.Parameter | None

    def __init__(self, *, n_heads: int, head_dim: int, max_len: int, untie_cls: bool = True) -> None:
        super().__init__(n_heads=n_heads)
        self._count(head_dim=head_dim, max_len=max_len)
        self.head_dim, self.max_len, self.untie_cls = head_dim, max_len, untie_cls
        self.q_table = nn.Parameter(torch.empty(n_heads, max_len, head_dim))
        self.k_table = nn.Parameter(torch.empty(n_heads, max_len, head_dim))
        for name in ("cls_to", "to_cls"):
            self.register_parameter(name, nn.Parameter(torch.empty(n_heads)) if untie_cls else None)
        self.reset_parameters()

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return Q_q · K_k / √(2d), or one of the two numbers of [CLS]."""
        kind = q.dtype
        q, k = self._row(q), self._row(k)
        of_q, of_k = self._wide(self.q_table, kind)[h, q], self._wide(self.k_table, kind)[h, k]
        product = (of_q * of_k).sum(-1) * self.score_scale(self.head_dim)
        if self.cls_to is None or self.to_cls is None:
            return product
        cls_to, to_cls = self._wide(self.cls_to, kind)[h], self._wide(self.to_cls, kind)[h]
        return torch.where(q == 0, cls_to, torch.where(k == 0, to_cls, product))

    def score_scale(self, head_dim: int) -> float:
        """Return 1 / √(2 head_dim), since two products are added."""
        return float((2 * head_dim) ** -0.5)

    def reset_parameters(self) -> None:
        """Draw rows distributed as in the paper, normed vectors projected by N(0, 0.02); [CLS] starts at zero."""
        for name, parameter in self.named_parameters():
            if name.endswith("table"):
                nn.init.normal_(parameter, std=0.02 * (self.n_heads * self.head_dim) ** 0.5)
            else:
                nn.init.zeros_(parameter)

    def _of_queries(self, pos: Tensor, kind: torch.dtype) -> Tensor:
        """Return the scaled rows of queries, with a 1 appended that multiplies the keys' [CLS] term."""
        a, scale = self._rows(self.q_table, pos, kind), self.score_scale(self.head_dim)
        if self.to_cls is None:
            return self._wide(a, kind) * scale
        # concatenated before widening and scaled in place, so that the peak memory is close to the result's
        a = self._wide(torch.cat((a, a.new_ones(*a.shape[:-1], 1)), -1), kind)
        a[..., :-1] *= scale
        return a

    def _of_keys(self, pos: Tensor, kind: torch.dtype) -> Tensor:
        """Return the rows of keys, with the [CLS] term appended."""
        b, is_cls = self._rows(self.k_table, pos, kind), pos[:, None, :, None] == 0
        if self.to_cls is None:
            return self._wide(b, kind)
        # widened before broadcasting, whose gradients are summed; so is the tensor that it is concatenated with
        b = self._wide(torch.cat((b, is_cls * self._of_held(self.to_cls, kind)), -1), kind)
        b[..., :-1].masked_fill_(is_cls, 0.0)
        return b

    def _of_held(self, learned: Tensor, kind: torch.dtype) -> Tensor:
        return self._wide(learned, kind).narrow(0, *self.held)[:, None, None]

    def _broadcast(self, placed: Placed, k_placed: Placed) -> Tensor:
        kind = placed.parts[0].dtype
        q, k = (p.parts[0] if p.seq_dim else p.parts[0][None] for p in (placed, k_placed))
        a, b = self._of_queries(q, kind), self._of_keys(k, kind)
        with no_autocast(a.device):
            product: Tensor = a @ b.mT
        if self.cls_to is None or (_all(q != 0) and not (torch.is_grad_enabled() and self.cls_to.requires_grad)):
            return product
        return torch.where(q[:, None, :, None] == 0, self._of_held(self.cls_to, kind), product)

    def _row(self, pos: Tensor) -> Int64[Tensor, "..."]:
        """Return rows of the tables; where values cannot be read, the index kernel raises for a negative position."""
        return torch.where(pos >= 0, pos, self.max_len).long()

    @staticmethod
    def _wide(learned: Tensor, kind: torch.dtype) -> Tensor:
        return learned.double() if kind == torch.float64 else wide(learned)

    def _rows(self, table: Tensor, pos: Tensor, kind: torch.dtype) -> Tensor:
        """Look up positions (batch, seq) in the tables of the heads: (batch, heads, seq, head_dim)."""
        held, n = table.narrow(0, *self.held), pos.shape[1]
        start = first_of_run(pos[0].long()) if len(pos) == 1 else None
        if start is not None and 0 <= start <= held.shape[1] - n:
            return held[None, :, start : start + n]  # a view: blocks of queries request the same keys repeatedly
        # widened first, since gradients of a row that several tokens share are summed
        rows: Tensor = self._wide(held, kind).index_select(1, self._row(pos).flatten()).unflatten(1, pos.shape)
        return rows.transpose(0, 1)


def _all(t: Tensor) -> bool:
    """Whether all elements are true; False if values cannot be read."""
    return positions.may_look(t) and bool(t.all())
