"""GRAPE-AP: each query decides how far each token stands between it and the keys before."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.encoding import Placed, Pos
from posenc.encodings.alibi import ALiBi
from posenc.families import ReadsTokens, ScoreMap, no_autocast
from posenc.families.angles import tabulate
from posenc.kernels import rotate
from posenc.registry import register

_EPS = 2.0**-23  # added to the mean square, as torch does by default in float32


@register(
    "grape_ap",
    paper="Zhang et al., Group Representational Position Encoding (path-integral additive)",
    year=2025,
    arxiv="2512.07805",
    formula="s_ij + m_h·Σ_{t=j+1..i} log σ(p_i·R_t p̂_t / P),  p = W_h x,  p̂ = p at mean square 1,  R_t rotates all "
    "pairs by t,  m the slopes of ALiBi",
    parameters="H·p_dim·D",
    cost="H·P products of width D for each token; for each score a product of width P, a logarithm and a running sum",
    aliases=("path_integral_grape",),
    serves=("text",),
    example={"d_model": 16, "n_heads": 4, "p_dim": 4},
    variants=({"n_heads": 3, "p_dim": 2},),
    traits={
        "distinct": {"float32": 1, "bfloat16": 1, "float16": 1},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": True,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 256,
        "cost": "score",
    },
)
class GRAPEAP(ReadsTokens, ScoreMap):
    """Subtract a toll for each token from key to query, which the query and that token set.

    Additive GRAPE has the same penalty for each position between; here the toll is a potential of the edge from query i
    to token t, -m·log σ(p_i·R_t p̂_t / P), which is above 0. FoX is the case in which it depends on the token only. The
    tolls of a row are those of its query, so a cache of sums does not serve the next query: whole rows are formed.
    Tokens are summed in the order of their positions, and masked tokens cost nothing: a key pays for all keys that may
    be seen at later positions, where the paper is causal. A token is rotated by its own position, not by its distance,
    so that scores change where all positions move. A token that is not finite counts as zero. Source: Zhang 2025, as
    the authors' code and public notes have it. Its link σ, its slopes in place of α and p_i without a norm are those of
    the authors' code (GRAPE, llama-mha-grape-ap-v1). That code rotates clockwise, which is the same as swapping the
    halves of each head's rows of `weight`; its options that use q, k or v as p are left out.

    Args:
        d_model: Width of the tokens that are read: the input of the attention layer.
        n_heads: Heads of the queries, each with its own p.
        p_dim: P, an even number; 8 in the authors' configurations.

    Raises:
        ValueError: An odd p_dim, tokens of another shape than positions and d_model say, or scores of other heads.
        TypeError: Placing without tokens.

    >>> grape = GRAPEAP(d_model=2, n_heads=8)
    >>> with torch.no_grad(): _ = grape.weight.zero_()  # each token costs ln 2, in head 0 half of that
    >>> p, q = grape.place(torch.arange(3), torch.ones(1, 3, 2)), torch.ones(1, 8, 1, 4)
    >>> grape.rescore(torch.zeros(1, 8, 1, 3), q, q, p.last(1), p, None)[0, 0].exp()
    tensor([[0.5000, 0.7071, 1.0000]], grad_fn=<ExpBackward0>)
    """

    def __init__(self, *, d_model: int, n_heads: int, p_dim: int = 8) -> None:
        super().__init__()
        self._count(d_model=d_model, n_heads=n_heads, p_dim=p_dim)
        if p_dim % 2:
            raise ValueError(f"{self.name}: p_dim must be even, because pairs rotate; got p_dim={p_dim}.")
        self.d_model, self.n_heads, self.p_dim = d_model, n_heads, p_dim
        heads = torch.arange(n_heads, device="cpu")
        self._slopes = tuple(ALiBi(n_heads=n_heads).slope(heads, torch.float64).tolist())
        self.weight = nn.Parameter(torch.empty(n_heads * p_dim, d_model))
        self.reset_parameters()

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return the positions, and p and R p̂ of each token (batch, seq_len, n_heads, p_dim)."""
        assert x is not None  # place() has looked
        tokens, _ = self.clear(x, dtype)
        with no_autocast(x.device):
            p = (tokens @ self.weight.to(dtype).T).unflatten(-1, (self.n_heads, self.p_dim))
        unit = F.rms_norm(p, (self.p_dim,), eps=_EPS)
        cos, sin = tabulate(pos, torch.ones(1, self.p_dim // 2, dtype=torch.float64, device="cpu"), dtype=dtype)
        rotated = rotate(unit.transpose(1, 2), cos.unsqueeze(1), sin.unsqueeze(1), pairing="half")
        return pos, p, rotated.transpose(1, 2)

    def rescore(
        self,
        scores: Float[Tensor, "batch n_heads q_len k_len"],
        q: Float[Tensor, "batch n_heads q_len head_dim"],
        k: Float[Tensor, "batch n_kv_heads k_len head_dim"],
        placed: Placed,
        k_placed: Placed,
        mask: Bool[Tensor, "..."] | None,
    ) -> Float[Tensor, "batch n_heads q_len k_len"]:
        """Return each score less the tolls of all keys that may be seen at later positions."""
        if scores.shape[1] != self.n_heads:
            raise ValueError(
                f"{self.name}: made for n_heads={self.n_heads}; got scores of {scores.shape[1]} heads. "
                f"Construct it with n_heads={scores.shape[1]}."
            )
        of_query, of_key = placed.parts[1].transpose(1, 2), k_placed.parts[2].permute(0, 2, 3, 1)
        slopes = torch.tensor(self._slopes, dtype=scores.dtype, device=scores.device)[:, None, None]
        with no_autocast(scores.device):  # half precision would round what the sum collects
            product = (of_query.to(scores.dtype) @ of_key.to(scores.dtype)) / self.p_dim
        edges = slopes * F.logsigmoid(product)
        if mask is not None:
            edges = edges.masked_fill(~mask, 0.0)
        row, order = k_placed.parts[0].sort(dim=-1, stable=True)
        edges = edges.gather(-1, order[..., None, None, :].expand_as(edges))
        from_here = F.pad(edges.flip(-1).cumsum(-1).flip(-1), (0, 1))
        later = torch.searchsorted(row, k_placed.parts[0].contiguous(), right=True)  # the first key that stands later
        return scores + from_here.gather(-1, later[..., None, None, :].expand_as(edges))

    def reset_parameters(self) -> None:
        """Draw the weights from N(0, 1 / (4 d_model)), as the authors' code does."""
        nn.init.normal_(self.weight, std=0.5 * self.d_model**-0.5)
