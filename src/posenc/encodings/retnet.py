"""RetNet's decay: RoPE with scores that decay with the distance, each head at its own rate."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies, positions
from posenc.families import Rotary, finite, geometric
from posenc.kernels.eager import Pairing
from posenc.registry import register


@register(
    "retnet",
    paper="Sun et al., Retentive Network: A Successor to Transformer for Large Language Models",
    year=2023,
    arxiv="2307.08621",
    formula="score = γ_h^(i - j)·q_iᵀ R((j - i)·ω) k_j,  γ_h = 1 - 2^(-5 - h)",
    parameters="0",
    cost="two products and one sum for each lane of q and k",
    aliases=("retention",),
    used_by=("RetNet",),
    serves=("text",),
    example={"n_kv_heads": 4, "head_dim": 64},
    variants=({"pairing": "half", "head_dim": 8, "centre": 20.0},),
    traits={
        "distinct": {"float32": 2620, "bfloat16": 2620, "float16": 2620},
        "longest": 2619,
        "real_positions": True,
        "smooth": True,
        "bounded": False,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": True,
        "length_dependent": False,
        "learned": 0,
        "cost": "token",
    },
)
class RetNet(Rotary):
    """Rotate as RoPE does; scale keys up with their position and queries down by as much.

    The product of q and k then decays as γ_h^distance. RetNet sums values with it and has no softmax; before a softmax,
    as here, it is a temperature that rises with the distance. The factors are powers of the position, so float32 and
    bfloat16 reach about 2,600 positions from the centre and float16 about 350. A position beyond the former raises an
    error on the CPU and gives NaN elsewhere. Source: Sun 2023, section 2.1 and equation 8.

    Args:
        n_kv_heads: Number of key heads; head h has γ_h = 1 - 2^(-5 - h), and the queries of its group share it.
        head_dim: Dimensions of one head; all of them rotate.
        base: 10,000.
        pairing: "interleaved" in the authors' code, or "half".
        centre: The position at which q and k keep their length.

    Raises:
        ValueError: head_dim is odd, n_kv_heads is below 1, base is not above 1, centre is not finite, or a position is
            too far from it.

    >>> retnet = RetNet(n_kv_heads=1, head_dim=2, base=1e12)
    >>> q, k = (torch.tensor([1.0, 0.0]).view(1, 1, 1, 2) for _ in "qk")
    >>> q, k = retnet.rotate(q, k, retnet.place(torch.tensor([1])), retnet.place(torch.tensor([1])))
    >>> round(float((q * k).sum()), 6)  # no distance, no decay
    1.0
    """

    n_kv_heads: int

    def __init__(
        self,
        *,
        n_kv_heads: int,
        head_dim: int,
        base: float = 10000.0,
        pairing: Pairing = "interleaved",
        centre: float = 0.0,
    ) -> None:
        super().__init__(head_dim=head_dim, pairing=pairing)
        self._count(n_kv_heads=n_kv_heads)
        self.n_kv_heads, self.centre = n_kv_heads, finite(self.name, "centre", centre)
        self.base = frequencies.check_base(base, self.name)

    def frequencies(self) -> Float64[Tensor, "1 n_pairs"]:
        """Return radians per position of each pair, the same for all heads."""
        return geometric(self.head_dim // 2, base=self.base, width=self.head_dim)[None]

    def amplitude(self, pos: Float64[Tensor, "*batch seq"]) -> Float64[Tensor, "*batch seq n_kv_heads 1"]:
        """Return γ_h^(pos - centre)."""
        head = torch.arange(self.n_kv_heads, dtype=torch.float64, device=pos.device)
        away = pos - self.centre
        # the fastest decay's powers stay within float32 and leave room for q and k
        reach = 120 * math.log(2) / -math.log1p(-(2.0**-5))
        why = "factors leave float32 beyond; choose a centre among the positions"
        positions.check_reach(away, reach, self.name, why)
        powers = torch.where(away.abs() <= reach, away, torch.nan)[..., None] * torch.log1p(-(2.0 ** (-5 - head)))
        return powers.exp()[..., None]
