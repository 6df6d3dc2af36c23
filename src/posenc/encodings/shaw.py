"""Shaw's relative positions: queries meet a learned vector of the distance, added to the key."""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from posenc.encoding import Placed, Pos
from posenc.families import ContentBias, floating, no_autocast
from posenc.registry import register


@register(
    "shaw",
    paper="Shaw et al., Self-Attention with Relative Position Representations",
    year=2018,
    arxiv="1803.02155",
    formula="q_i·(k_j + a[clip(i - j, -K, K)]) / √d",
    parameters="(2·K + 1)·d",
    cost="2·K + 1 products of width d for each query, and a look-up a score",
    aliases=("relative_keys", "relative_key"),
    used_by=("Music Transformer", "wav2vec2-BERT", "SeamlessM4T v2"),
    serves=("text",),
    example={"head_dim": 8},
    variants=({"max_distance": 5, "max_ahead": 2},),
    traits={
        "distinct": {"float32": 17, "bfloat16": 17, "float16": 17},
        "longest": None,
        "real_positions": False,
        "smooth": False,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 264,
        "cost": "score",
    },
)
class Shaw(ContentBias):
    """Add to each score the query's product with a learned vector for the clipped distance.

    All heads share the vectors. The paper also adds vectors to the values, finds that they do not help once these are
    present (its table 3), and the contract omits them. Source: Shaw 2018, section 3.2 and equation 4.

    Args:
        head_dim: Dimensions of one head.
        max_distance: K: keys further back count as K back.
        max_ahead: Keys further ahead count as max_ahead ahead; None means K. wav2vec2-BERT has 64 and 8.

    Raises:
        ValueError: A limit is negative, head_dim is below 1, or q has another head_dim.

    >>> shaw = Shaw(head_dim=1, max_distance=1)
    >>> with torch.no_grad(): _ = shaw.weight.copy_(torch.tensor([[7.0], [0.0], [5.0]]))
    >>> q, p = torch.ones(1, 1, 3, 1), shaw.place(torch.arange(3))
    >>> shaw.bias(q, q, p, p)[0, 0].tolist()
    [[0.0, 7.0, 7.0], [5.0, 0.0, 7.0], [5.0, 5.0, 0.0]]
    """

    accepts_real = False
    by_distance = True

    def __init__(self, *, head_dim: int, max_distance: int = 16, max_ahead: int | None = None) -> None:
        super().__init__()
        ahead = max_distance if max_ahead is None else max_ahead
        self._count(head_dim=head_dim)
        self._count(least=0, max_distance=max_distance, max_ahead=ahead)
        self.head_dim, self.max_distance, self.max_ahead = head_dim, max_distance, ahead
        self.weight = nn.Parameter(torch.empty(max_distance + ahead + 1, head_dim))
        self.reset_parameters()

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Keep the positions exact; as float64 for a float64 bias."""
        return (pos.double() if dtype == torch.float64 else pos,)

    def bias(
        self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed
    ) -> Float[Tensor, "batch n_heads q_len k_len"]:
        """Return q_i · a[clip(i - j)] / √d."""
        self.check_heads(q)
        distance = placed.parts[0][..., None, :, None] - k_placed.parts[0][..., None, None, :]
        dtype = floating(distance).dtype
        with no_autocast(q.device):  # half precision would round the products before the softmax
            by_row = q.to(dtype) @ self.weight.to(dtype).T * self.score_scale(self.head_dim)
        row = distance.clamp(-self.max_ahead, self.max_distance).long() + self.max_ahead
        return by_row.gather(-1, row.expand(*by_row.shape[:-1], -1))

    def vectors(self, distance: Shaped[Tensor, " n"], dtype: torch.dtype) -> Float[Tensor, "1 n head_dim"]:
        """Return the learned vector of each clipped distance."""
        row = distance.clamp(-self.max_ahead, self.max_distance) + self.max_ahead
        return self.weight.to(dtype)[row][None]

    def reset_parameters(self) -> None:
        """Draw the vectors from N(0, 0.02)."""
        nn.init.normal_(self.weight, std=0.02)
