"""PoPE: content determines the lengths, and only position the angles."""

import math
from typing import Any, Literal

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn import functional as F

from posenc import frequencies, kernels
from posenc.encoding import Placed, Pos
from posenc.families import Budgeted, by_key_head, check_tokens, check_word, geometric, wide_parameter
from posenc.families.angles import tabulate
from posenc.registry import register


@register(
    "pope",
    paper="Gopalakrishnan et al., Decoupling the What and Where With Polar Coordinate Positional Embedding",
    year=2025,
    arxiv="2509.10534",
    formula="score = Σ_c softplus(q_c)·softplus(k_c)·cos((j - i)·ω_c + b_{h,c}),  ω_c = base^(-c/d)",
    parameters="n_kv_heads * head_dim",
    cost="a softplus and two products for each lane of q and k, whose number doubles",
    aliases=("polar",),
    used_by=("x-transformers (as an option)",),
    serves=("text", "long"),
    example={"n_kv_heads": 4, "head_dim": 64},
    variants=({"head_dim": 5, "n_kv_heads": 2, "phase_init": "uniform"},),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 65_536, "float16": 65_536},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": True,
        "length_dependent": False,
        "learned": 256,
        "cost": "token",
    },
)
class PoPE(Budgeted):
    """Make each dimension a complex number with its softplus as length and an angle from the position.

    In RoPE the angle between q and k depends on their contents too, which entangles content and position. Rotated q
    and k have 2 head_dim dimensions; scores are still divided by √head_dim. Source: Gopalakrishnan 2025, section 3.

    Args:
        n_kv_heads: Number of key heads, each with its own phases.
        head_dim: Dimensions of one head before the rotation; each has a frequency.
        base: 10,000.
        phase_init: Start of the learned phases: "zero", or "uniform" over a full rotation. A clamp keeps them in
            -2 pi..0, as in the authors' code, so a phase that training pushes beyond an end stays there.

    Raises:
        ValueError: n_kv_heads or head_dim is below 1, base is not above 1, or the word for the start is unknown.

    >>> pope = PoPE(n_kv_heads=1, head_dim=1)
    >>> placed = pope.place(torch.tensor([0]))
    >>> pope.rotate_q(torch.zeros(1, 1, 1, 1), placed).flatten().numpy().round(4)  # softplus of 0 is ln 2
    array([0.6931, 0.    ], dtype=float32)
    """

    family = "rotary"
    keeps_float32 = True

    def __init__(
        self,
        *,
        n_kv_heads: int,
        head_dim: int,
        base: float = 10000.0,
        phase_init: Literal["zero", "uniform"] = "zero",
    ) -> None:
        super().__init__()
        self._count(n_kv_heads=n_kv_heads, head_dim=head_dim)
        check_word(self.name, "phase_init", phase_init, "zero", "uniform")
        self.n_kv_heads, self.head_dim, self.phase_init = n_kv_heads, head_dim, phase_init
        self.base = frequencies.check_base(base, self.name)
        self.phase = wide_parameter(n_kv_heads, head_dim)
        self.reset_parameters()

    def frequencies(self) -> Float64[Tensor, "1 head_dim"]:
        """Return radians per position of each dimension."""
        return geometric(self.head_dim, base=self.base, width=2 * self.head_dim)[None]

    def parts(self, pos: Pos, x: Tensor | None, past: Placed | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Compute (cos, sin) of each dimension's angle.

        Raises:
            ValueError: The tables would need more than `table_budget` bytes.
        """
        self._afford(2 * pos.numel() * self.head_dim * dtype.itemsize)
        return tabulate(pos, self.frequencies(), dtype=dtype)

    def rotate_q(self, q: Tensor, placed: Placed) -> Tensor:
        """Return real parts, then imaginary parts: 2 head_dim dimensions."""
        cos, sin = self._tables(q, placed)
        length = F.softplus(q.to(cos.dtype))
        return torch.cat((length * cos, length * sin), dim=-1).to(q.dtype)

    def rotate_k(self, k: Tensor, placed: Placed) -> Tensor:
        """Return real parts, then imaginary parts, rotated further by the learned phases."""
        cos, sin = self._tables(k, placed)
        length = F.softplus(by_key_head(self.name, k.to(cos.dtype), self.n_kv_heads))
        phase = self.phase.double().clamp(-2 * math.pi, 0)[:, None, None]
        parts = torch.cat([length * t.to(length.dtype) for t in (phase.cos(), phase.sin())], dim=-1)
        return kernels.rotate(parts.flatten(1, 2), cos, sin, pairing="half").to(k.dtype)

    def score_scale(self, head_dim: int) -> float:
        """Return 1 / √d for the dimensions before the rotation."""
        return float(self.head_dim**-0.5)

    def reset_parameters(self) -> None:
        """Set the phases to zero, or draw them."""
        with torch.no_grad():
            self.phase.zero_() if self.phase_init == "zero" else self.phase.uniform_(-2 * math.pi, 0)

    def _tables(self, x: Tensor, placed: Placed) -> tuple[Tensor, Tensor]:
        cos, sin = placed.parts
        check_tokens(self.name, x, self.head_dim, cos.shape[:-1])
        return cos.unsqueeze(-3), sin.unsqueeze(-3)

    def _unrotate(self, q: Tensor, k: Tensor, placed: Placed, k_placed: Placed) -> tuple[Tensor, Tensor]:
        def back(x: Tensor) -> Tensor:
            real, imaginary = x.double().chunk(2, dim=-1)
            length = torch.hypot(real, imaginary)
            return (length + torch.log(-torch.expm1(-length))).to(x.dtype)  # the inverse of softplus

        return back(q), back(k)
