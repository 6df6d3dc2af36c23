"""Self-Extend: far tokens share positions in groups."""

import math

from torch import Tensor

from posenc.encoding import Pos
from posenc.encodings.rope import RoPE
from posenc.kernels.eager import Pairing
from posenc.piecewise import Piecewise
from posenc.registry import register


@register(
    "self_extend",
    paper="Jin et al., LLM Maybe LongLM: Self-Extend LLM Context Window Without Tuning",
    year=2024,
    arxiv="2401.01325",
    formula="RoPE at distance i - j for i - j < w, else ⌊i/g⌋ - ⌊j/g⌋ + w - ⌊w/g⌋",
    parameters="0",
    cost="as RoPE twice; in blocks three products of queries and keys a score, five with keys ahead",
    aliases=("longlm",),
    used_by=(),
    serves=("long",),
    example={"head_dim": 8, "window": 4, "group": 2},
    variants=({"pairing": "interleaved", "window": 5, "group": 4},),
    traits={
        "distinct": {"float32": 5, "bfloat16": 5, "float16": 5},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": True,
        "shift_invariant": False,
        "symmetric": False,
        "recency": False,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 0,
        "cost": "score",
    },
)
class SelfExtend(Piecewise):
    """Rotate near tokens by their distance, and all others as if a group of neighbours shared one position.

    Far queries are shifted so that the two distances agree at the window. The authors' code rounds that shift down in
    one of its paths only; it is rounded here, as in the paper's algorithm. Keys ahead get the negative of the distance
    that they would have looking back. Source: Jin 2024, section 3 and algorithm 1.

    Args:
        head_dim: Dimensions of one head; all of them rotate.
        window: w: distances below it are exact; 1024 in the authors' examples.
        group: g: number of neighbours that share a position.
        base: Base of the model's RoPE.
        pairing: Pairing of the model's RoPE.

    Raises:
        ValueError: window or group is below 1, head_dim is odd, or base is not above 1.

    >>> import torch
    >>> SelfExtend(head_dim=2, window=3, group=2).distances(torch.arange(8))[7].tolist()
    [5, 5, 4, 4, 3, 2, 1, 0]
    """

    pieces = ((1, 2),)

    def __init__(
        self,
        *,
        head_dim: int,
        window: int = 1024,
        group: int = 8,
        base: float = 10000.0,
        pairing: Pairing = "half",
    ) -> None:
        super().__init__(RoPE(head_dim=head_dim, base=base, pairing=pairing))
        self._count(window=window, group=group)
        self.head_dim, self.window, self.group = head_dim, window, group
        self.base, self.pairing = self.rope.base, pairing

    def maps(self, pos: Pos) -> tuple[Tensor, ...]:
        """Return the positions, and the groups with and without the window's offset."""
        groups = pos.div(self.group, rounding_mode="floor")
        return pos, groups + (self.window - self.window // self.group), groups

    def bounds(self) -> tuple[float, ...]:
        """Return the window, and infinity."""
        return float(self.window), math.inf
