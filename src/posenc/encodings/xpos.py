"""xPos: RoPE with scores that decay with the distance."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies, positions
from posenc.families import Rotary, finite, geometric, number
from posenc.kernels.eager import Pairing
from posenc.registry import register


@register(
    "xpos",
    paper="Sun et al., A Length-Extrapolatable Transformer",
    year=2022,
    arxiv="2212.10554",
    formula="RoPE with q·ζ_k^((p-c)/512), k·ζ_k^(-(p-c)/512),  ζ_k = (2k/d + 0.4)/1.4",
    parameters="0",
    cost="as RoPE",
    used_by=("LEX", "Kosmos-1"),
    serves=("text", "long"),
    example={"head_dim": 64},
    variants=({"head_dim": 8, "pairing": "half", "centre": 30.0},),
    traits={
        "distinct": {"float32": 33_995, "bfloat16": 33_995, "float16": 33_995},
        "longest": 33_994,
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
class XPos(Rotary):
    """Rotate pairs of dimensions; scale queries up with their position and keys down by as much.

    The score of pair k decays as ζ_k^(distance / scale_base), fastest for fast pairs. The centre is fixed:
    implementations that recentre on the current sequence change keys that a cache already holds. The factors are
    powers of the position, so float32 and bfloat16 reach about 34,000 positions from the centre and float16 about
    4,500. A position beyond the former raises an error on the CPU and gives NaN elsewhere. Source: Sun 2022, section 3
    and algorithm 1.

    Args:
        head_dim: Dimensions of one head; all of them rotate.
        base: 10,000 in the paper.
        pairing: "interleaved" in the authors' code, or "half".
        scale_base: Positions over which a pair decays by ζ_k; 512 in the authors' code.
        gamma: 0.4 in the paper; larger decays less.
        centre: The position at which q and k keep their length.

    Raises:
        ValueError: head_dim is odd, base is not above 1, scale_base or gamma is not positive, or a position is too far
            from the centre.

    >>> xpos = XPos(head_dim=2, scale_base=1.0)
    >>> far, near = xpos.place(torch.tensor([2])), xpos.place(torch.tensor([0]))
    >>> q, k = xpos.rotate(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2), far, near)
    >>> round(float((q * k).sum()), 6) == round(2 * torch.tensor(2.0).cos().item() * (0.4 / 1.4) ** 2, 6)
    True
    """

    def __init__(
        self,
        *,
        head_dim: int,
        base: float = 10000.0,
        pairing: Pairing = "interleaved",
        scale_base: float = 512.0,
        gamma: float = 0.4,
        centre: float = 0.0,
    ) -> None:
        super().__init__(head_dim=head_dim, pairing=pairing)
        self.scale_base = number(self.name, "scale_base", scale_base)
        self.gamma = number(self.name, "gamma", gamma)
        if not (0 < self.scale_base < math.inf and 0 < self.gamma < math.inf):
            raise ValueError(
                f"{self.name}: scale_base and gamma must be positive and finite, because they scale a decay; "
                f"got scale_base={self.scale_base}, gamma={self.gamma}. The paper uses 512 and 0.4."
            )
        self.base, self.centre = frequencies.check_base(base, self.name), finite(self.name, "centre", centre)

    def frequencies(self) -> Float64[Tensor, "1 n_pairs"]:
        """Return radians per position of each pair."""
        return geometric(self.head_dim // 2, base=self.base, width=self.head_dim)[None]

    def amplitude(self, pos: Float64[Tensor, "*batch seq"]) -> Float64[Tensor, "*batch seq n_pairs"]:
        """Return ζ_k^((pos - centre) / scale_base)."""
        k = torch.arange(self.head_dim // 2, dtype=torch.float64, device=pos.device)
        zeta = (2 * k / self.head_dim + self.gamma) / (1 + self.gamma)
        away = pos - self.centre
        # the smallest zeta's powers stay within float32 and leave room for q and k
        reach = self.scale_base * 120 * math.log(2) / math.log1p(1 / self.gamma)
        why = "factors leave float32 beyond; choose another centre or scale_base"
        positions.check_reach(away, reach, self.name, why)
        return zeta ** torch.where(away.abs() <= reach, away / self.scale_base, torch.nan)[..., None]
