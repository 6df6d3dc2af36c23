"""GRAPE-A: a penalty on the distance at a rate that query and key set."""

import math
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.encoding import Placed, Pos
from posenc.encodings.alibi import ALiBi
from posenc.families import ContentBias, check_word, no_autocast, of_each_head
from posenc.registry import register

_SHORTEST = 1e-6  # least divisor when vectors are normalised, as in the authors' code


@register(
    "grape_a",
    paper="Zhang et al., Group Representational Position Encoding (additive)",
    year=2025,
    arxiv="2512.07805",
    formula="score - max(i - j, 0)·ω_h·m_h·(ζ(v_h·q_i/√d) + ζ(u_h·k_j/√d)),  ζ = softplus,  |u| = |v| = 1,  "
    "m the slopes of ALiBi",
    parameters="H·(2·d + 1)",
    cost="two products of width d for each token and head, three terms a score",
    aliases=("additive_grape",),
    serves=("text",),
    example={"n_heads": 4, "head_dim": 8},
    variants=({"gates": "query"}, {"gates": "key", "n_heads": 6}),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 228, "float16": 1_652},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": False,
        "shift_invariant": True,
        "symmetric": False,
        "recency": True,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 68,
        "cost": "score",
    },
)
class GRAPEA(ContentBias):
    """Subtract the distance times a rate that depends on the query and on the key.

    A unipotent group action (a shear) adds a term linear in the distance. Its generator may read the content as long
    as the term stays a penalty, which softplus ensures. If both gates are ln 2, it is ALiBi with slopes multiplied by
    2 ω ln 2. FoX, which sums over the tokens between, belongs to the same family. Keys ahead get no bias; the paper is
    causal. Source: Zhang 2025, section 4, and the authors' code, which has the slopes.

    Args:
        n_heads: Number of query heads.
        head_dim: Dimensions of one head.
        gates: "query", "key" or "both": whose content sets the rate.

    Raises:
        ValueError: n_heads or head_dim is below 1, the word is unknown, or q has another shape.

    >>> grape = GRAPEA(n_heads=1, head_dim=2, gates="query")  # slope 2^-8
    >>> placed, nothing = grape.place(torch.tensor([0, 512])), torch.zeros(1, 1, 2, 2)
    >>> round(grape.bias(nothing, nothing, placed, placed)[0, 0, 1, 0].item(), 4)  # -512·2^-8·ln 2
    -1.3863
    """

    keeps_float32 = True
    u: nn.Parameter | None
    v: nn.Parameter | None

    def __init__(self, *, n_heads: int, head_dim: int, gates: Literal["query", "key", "both"] = "both") -> None:
        super().__init__()
        self._count(n_heads=n_heads, head_dim=head_dim)
        check_word(self.name, "gates", gates, "query", "key", "both")
        self.n_heads, self.head_dim, self.gates = n_heads, head_dim, gates
        heads = torch.arange(n_heads, device="cpu")
        self._slopes = tuple(ALiBi(n_heads=n_heads).slope(heads, torch.float64).tolist())
        self.omega = nn.Parameter(torch.empty(n_heads, dtype=torch.float32))
        for name, unused in (("u", "query"), ("v", "key")):
            vectors = None if gates == unused else nn.Parameter(torch.empty(n_heads, head_dim, dtype=torch.float32))
            self.register_parameter(name, vectors)
        self.reset_parameters()

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Keep the positions exact; as float64 for a float64 bias."""
        return (pos.double() if dtype == torch.float64 else pos,)

    def bias(
        self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed
    ) -> Float[Tensor, "batch n_heads q_len k_len"]:
        """Return -max(i - j, 0) times the rate of each pair."""
        self.check_heads(q)
        q_pos, k_pos = placed.parts[0], k_placed.parts[0]
        dtype = torch.float64 if q_pos.dtype == torch.float64 else torch.float32
        distance: Tensor = (q_pos[..., None, :, None] - k_pos[..., None, None, :]).clamp(min=0).to(dtype)
        with no_autocast(q.device):  # half precision would round the rate, which large distances multiply
            slopes = torch.tensor(self._slopes, dtype=dtype, device=q.device)
            scale = (F.softplus(self.omega.to(dtype)) * slopes)[:, None]
            rate = distance.new_zeros(())
            if self.v is not None:
                rate = rate + (scale * self._gate(self.v, q.to(dtype)))[..., :, None]
            if self.u is not None:
                k = of_each_head(k.to(dtype), self.n_heads)
                rate = rate + (scale * self._gate(self.u, k))[..., None, :]
            return -distance * rate

    def _gate(
        self, vectors: Tensor, x: Float[Tensor, "batch n_heads seq head_dim"]
    ) -> Float[Tensor, "batch n_heads seq"]:
        """Return softplus(vector·x / √d), with vectors of length 1."""
        unit = F.normalize(vectors.to(x.dtype), dim=-1, eps=_SHORTEST)
        return F.softplus((x @ unit[..., None]).squeeze(-1) / math.sqrt(self.head_dim))

    def reset_parameters(self) -> None:
        """Start at ω = 1 with random directions, as the authors' code does."""
        nn.init.constant_(self.omega, math.log(math.e - 1))
        for vectors in (self.u, self.v):
            if vectors is not None:
                nn.init.normal_(vectors, std=self.head_dim**-0.5)
