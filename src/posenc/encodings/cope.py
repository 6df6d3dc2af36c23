"""CoPE: positions that count the keys that matter to the query."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from posenc.encoding import Placed, Pos
from posenc.families import ScoreMap, no_autocast
from posenc.registry import register


@register(
    "cope",
    paper="Golovneva et al., Contextual Position Encoding: Learning to Count What's Important",
    year=2024,
    arxiv="2405.18719",
    formula="s_ij + q_i·e[p_ij],  p_ij = min(Σ_{t=j..i} σ(s_it), P - 1),  e interpolated between counts",
    parameters="d·max_count",
    cost="P products of width d for each query, a sum along the row and two look-ups a score",
    aliases=("contextual_position_encoding",),
    serves=("text",),
    example={"head_dim": 8, "max_count": 6},
    variants=({"max_count": 1},),
    traits={
        "distinct": {"float32": 1, "bfloat16": 1, "float16": 1},
        "longest": None,
        "real_positions": False,
        "smooth": True,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 48,
        "cost": "score",
    },
)
class CoPE(ScoreMap):
    """Count the keys that matter to the query, from itself back to each key, and add a learned vector of the count.

    A gate for each key, the sigmoid of its score, is the key's share of the count. Counts have fractions, and the
    vectors of the whole numbers below and above are interpolated. Masked keys do not count. Positions decide which
    keys lie between, whatever their order in memory: a key's count sums the visible keys at its position or after.
    Gates use scaled scores and the products with the vectors are not scaled, as in the paper's code (appendix B); its
    equations scale neither. Source: Golovneva 2024, section 4, equations 3 to 6.

    Args:
        head_dim: Dimensions of one head.
        max_count: P: counts end at P - 1; all heads share the P vectors.

    Raises:
        ValueError: head_dim or max_count is below 1, or q has another head_dim.

    >>> cope = CoPE(head_dim=1, max_count=3)
    >>> with torch.no_grad(): _ = cope.weight.copy_(torch.tensor([[0.0, 10.0, 20.0]]))
    >>> q, p, zeros = torch.ones(1, 1, 1, 1), cope.place(torch.tensor([0, 1, 2])), torch.zeros(1, 1, 1, 3)
    >>> cope.rescore(zeros, q, q.expand(1, 1, 3, 1), p.last(1), p, None).tolist()  # gates of 1/2
    [[[[15.0, 10.0, 5.0]]]]
    """

    accepts_real = False  # positions only order the keys
    reads_qk = True

    def __init__(self, *, head_dim: int, max_count: int = 64) -> None:
        super().__init__()
        self._count(head_dim=head_dim, max_count=max_count)
        self.head_dim, self.max_count = head_dim, max_count
        self.weight = nn.Parameter(torch.empty(head_dim, max_count))
        self.reset_parameters()

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Keep the positions."""
        return (pos,)

    def rescore(
        self,
        scores: Float[Tensor, "batch n_heads q_len k_len"],
        q: Float[Tensor, "batch n_heads q_len head_dim"],
        k: Float[Tensor, "batch n_kv_heads k_len head_dim"],
        placed: Placed,
        k_placed: Placed,
        mask: Bool[Tensor, "..."] | None,
    ) -> Float[Tensor, "batch n_heads q_len k_len"]:
        """Return s_ij + q_i·e[p_ij]."""
        self.check_heads(q)
        count = self.counts(scores, k_placed, mask)
        with no_autocast(q.device):  # half precision would round the products before the softmax
            by_count = q.to(scores.dtype) @ self.weight.to(scores.dtype)
        below, above = count.floor(), count.ceil()
        low, high = by_count.gather(-1, below.long()), by_count.gather(-1, above.long())
        return scores + low + (high - low) * (count - below)

    def counts(
        self, scores: Float[Tensor, "batch n_heads q_len k_len"], k_placed: Placed, mask: Bool[Tensor, "..."] | None
    ) -> Float[Tensor, "batch n_heads q_len k_len"]:
        """Return p_ij: the sum of the gates of the keys from each key's position up to the query, at most P - 1."""
        gates = scores.sigmoid()
        if mask is not None:
            gates = gates.masked_fill(~mask, 0.0)
        row, order = k_placed.parts[0].sort(dim=-1, stable=True)
        gates = gates.gather(-1, order[..., None, None, :].expand_as(gates))
        from_here = gates.flip(-1).cumsum(-1).flip(-1)
        first = torch.searchsorted(row, k_placed.parts[0].contiguous())  # of the keys at the same position
        counts = from_here.gather(-1, first[..., None, None, :].expand_as(gates))
        return counts.fmin(counts.new_tensor(self.max_count - 1))  # NaN, from padding, also becomes P - 1

    def reset_parameters(self) -> None:
        """Set the vectors to zero, as the paper's code starts: NoPE."""
        nn.init.zeros_(self.weight)
