"""ReRoPE: RoPE whose distance stops growing."""

import math

import torch
from torch import Tensor

from posenc.encoding import Pos
from posenc.encodings.rope import RoPE
from posenc.kernels.eager import Pairing
from posenc.piecewise import Piecewise
from posenc.registry import register


@register(
    "rerope",
    paper="Su, Rectified Rotary Position Embeddings (blog, kexue.fm/archives/9708)",
    year=2023,
    formula="RoPE at distance min(|i - j|, w), with the sign of i - j",
    parameters="0",
    cost="as RoPE twice; in blocks three products of queries and keys a score, five with keys ahead",
    aliases=("rectified_rope",),
    used_by=(),
    serves=("long",),
    example={"head_dim": 8, "window": 4},
    variants=({"pairing": "interleaved", "window": 2},),
    traits={
        "distinct": {"float32": 5, "bfloat16": 5, "float16": 5},
        "longest": None,
        "real_positions": True,
        "smooth": False,
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
class ReRoPE(Piecewise):
    """Rotate near tokens by their distance and all others by the window, so that a model meets no new distance.

    It is for models that were trained with RoPE. The author also scales queries up beyond the trained length:
    `Compose(QueryTemperature(law="log_n", ...), ReRoPE(...))`. Keys ahead are clipped at -window. Source: Su 2023.

    Args:
        head_dim: Dimensions of one head; all of them rotate.
        window: w: larger distances count as w; 512 in the author's code.
        base: Base of the model's RoPE.
        pairing: Pairing of the model's RoPE.

    Raises:
        ValueError: window is below 1, head_dim is odd, or base is not above 1.

    >>> ReRoPE(head_dim=2, window=2).distances(torch.arange(4))[3].tolist()
    [2, 2, 1, 0]
    """

    pieces = ((1, 2),)

    def __init__(self, *, head_dim: int, window: int = 512, base: float = 10000.0, pairing: Pairing = "half") -> None:
        super().__init__(RoPE(head_dim=head_dim, base=base, pairing=pairing))
        self._count(window=window)
        self.head_dim, self.window, self.base, self.pairing = head_dim, window, self.rope.base, pairing

    def maps(self, pos: Pos) -> tuple[Tensor, ...]:
        """Return the positions, the window, and zero."""
        return pos, torch.full_like(pos, self.window), torch.zeros_like(pos)

    def bounds(self) -> tuple[float, ...]:
        """Return the window, and infinity."""
        return float(self.window), math.inf
