"""Leaky ReRoPE: RoPE whose distance grows more slowly beyond a window."""

import math

from torch import Tensor

from posenc.encoding import Pos
from posenc.encodings.rope import RoPE
from posenc.families import size
from posenc.kernels.eager import Pairing
from posenc.piecewise import Piecewise
from posenc.registry import register


@register(
    "leaky_rerope",
    paper="Su, Rectified Rotary Position Embeddings (blog, kexue.fm/archives/9708)",
    year=2023,
    formula="RoPE at distance d for d < w, else w + (d - w)/f,  d = |i - j|, with the sign of i - j",
    parameters="0",
    cost="as RoPE twice; in blocks three products of queries and keys a score, five with keys ahead",
    aliases=(),
    used_by=(),
    serves=("long",),
    example={"head_dim": 8, "window": 4, "factor": 4.0},
    variants=({"pairing": "interleaved", "window": 1},),
    traits={
        "distinct": {"float32": 1785, "bfloat16": 25, "float16": 116},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": True,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 0,
        "cost": "score",
    },
)
class LeakyReRoPE(Piecewise):
    """Rotate near tokens by their distance, which grows more slowly beyond a window.

    Factor 1 gives RoPE, and an infinite factor would give ReRoPE. Keys ahead have the negative distance.
    Source: Su 2023.

    Args:
        head_dim: Dimensions of one head; all of them rotate.
        window: w, in positions; 512 in the author's code.
        factor: Number of positions that count as one beyond the window; 16 in the author's code.
        base: Base of the model's RoPE.
        pairing: Pairing of the model's RoPE.

    Raises:
        ValueError: window is below 1, factor is not above zero, head_dim is odd, or base is not above 1.

    >>> import torch
    >>> LeakyReRoPE(head_dim=2, window=2, factor=4.0).distances(torch.arange(5))[4].tolist()
    [2.5, 2.25, 2.0, 1.0, 0.0]
    """

    pieces = ((1, 2),)

    def __init__(
        self,
        *,
        head_dim: int,
        window: int = 512,
        factor: float = 16.0,
        base: float = 10000.0,
        pairing: Pairing = "half",
    ) -> None:
        super().__init__(RoPE(head_dim=head_dim, base=base, pairing=pairing))
        self._count(window=window)
        self.head_dim, self.window, self.base, self.pairing = head_dim, window, self.rope.base, pairing
        self.factor = size(self.name, "factor", factor)

    def maps(self, pos: Pos) -> tuple[Tensor, ...]:
        """Return the positions, and the slowed ones with and without the window's offset."""
        slow = pos.double() / self.factor
        return pos, slow + (self.window - self.window / self.factor), slow

    def bounds(self) -> tuple[float, ...]:
        """Return the window, and infinity."""
        return float(self.window), math.inf
