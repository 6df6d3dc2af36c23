"""MHRoPE: each key head is rotated by one axis of the position: time, row or column."""

from collections.abc import Sequence

from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.encodings.mrope import counted, of_axes
from posenc.families import Rotary, geometric
from posenc.kernels.eager import Pairing
from posenc.registry import register


@register(
    "mhrope",
    paper="Huang et al., Revisiting Multimodal Positional Encoding in Vision-Language Models",
    year=2025,
    arxiv="2510.23095",
    formula="head h: RoPE by p_{a(h)},  a(h) = time, row or column",
    parameters="0",
    cost="as RoPE, with a table for each key head",
    aliases=("multi_head_rope",),
    serves=("video", "image", "text"),
    example={"n_kv_heads": 8, "head_dim": 64},
    variants=(
        {"n_kv_heads": 4, "head_dim": 8, "pairing": "interleaved"},
        {"n_kv_heads": 4, "head_dim": 8, "sections": (1, 2)},
    ),
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
        "learned": 0,
        "cost": "token",
    },
)
class MHRoPE(Rotary):
    """Rotate each key head, and the queries of its group, by one of several positions: time, row or column.

    M-RoPE divides the pairs of every head among the axes. MHRoPE divides the heads, so each axis has all frequencies.
    Text, whose three positions are equal, rotates as under RoPE. The authors number pictures with
    `positions.mrope(spatial_reset=True)`. Source: Huang 2025, section 4 (Multi-Head RoPE).

    Args:
        n_kv_heads: Number of key heads.
        head_dim: Dimensions of one head.
        sections: Heads of each axis, time first; heads beyond them do not rotate, as in the authors' code. None gives
            three eighths of the heads to the rows, as many to the columns, and the rest to time: (2, 3, 3) of 8.
        base: 10,000; 5,000,000 in Qwen3-VL.
        pairing: "half" (pair k is dimensions k and k + head_dim / 2: Qwen) or "interleaved" (2k and 2k + 1).

    Raises:
        ValueError: A section is negative, the sections sum to more than n_kv_heads, head_dim is odd, or base is not
            above 1.
        TypeError: A section is not a whole number.

    >>> MHRoPE(n_kv_heads=2, head_dim=4, sections=(1, 1)).frequencies().tolist()
    [[[1.0, 0.01], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.01]]]
    """

    def __init__(
        self,
        *,
        n_kv_heads: int,
        head_dim: int,
        sections: Sequence[int] | None = None,
        base: float = 10000.0,
        pairing: Pairing = "half",
    ) -> None:
        self._count(n_kv_heads=n_kv_heads)
        super().__init__(head_dim=head_dim, pairing=pairing)
        self.n_kv_heads, self.base = n_kv_heads, frequencies.check_base(base, self.name)
        side = 3 * n_kv_heads // 8
        usual = (n_kv_heads - 2 * side, side, side)
        self.sections = usual if sections is None else counted(self.name, sections, "heads")
        if not self.sections or min(self.sections) < 0 or sum(self.sections) > n_kv_heads:
            raise ValueError(
                f"{self.name}: sections must be numbers of heads that add up to at most n_kv_heads={n_kv_heads}; got "
                f"sections={self.sections}."
            )
        self.n_axes = len(self.sections)
        axes = [axis for axis, n in enumerate(self.sections) for _ in range(n)]
        self._axes = [[axis] for axis in axes] + [[-1]] * (n_kv_heads - len(axes))

    def frequencies(self) -> Float64[Tensor, "n_kv_heads n_axes n_pairs"]:
        """Return for each key head a matrix whose row of the head's axis has the frequencies of RoPE."""
        inv_freq = geometric(self.head_dim // 2, base=self.base, width=self.head_dim)
        return of_axes(inv_freq, self._axes, self.n_axes)
