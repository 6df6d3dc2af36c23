"""M-RoPE: time, row and column share the pairs of lanes of one RoPE."""

from collections.abc import Sequence
from numbers import Integral
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import frequencies
from posenc.families import OwnFrequencies, Rotary, check_word, entries
from posenc.kernels.eager import Pairing
from posenc.registry import register


@register(
    "mrope",
    paper="Wang et al., Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at Any Resolution",
    year=2024,
    arxiv="2409.12191",
    formula="RoPE whose pair k turns by p_{a(k)}·base^(-2k/d),  a(k) = time, row or column",
    parameters="0",
    cost="two products and one sum for each lane of q and k",
    aliases=("multimodal_rope",),
    used_by=("Qwen2-VL", "Qwen2.5-VL", "Qwen3-VL (interleaved)"),
    example={"head_dim": 64, "sections": (8, 12, 12)},
    variants=(
        {"layout": "interleaved", "sections": (12, 10, 10)},
        {"sections": (6, 5, 5), "head_dim": 32, "layout": "interleaved", "pairing": "interleaved"},
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
class MRoPE(OwnFrequencies, Rotary):
    """Turn each pair of lanes by one of several positions: time, row or column.

    The frequencies are those of RoPE over all pairs, whichever axis a pair belongs to, so that text, whose three
    positions are equal (`positions.mrope`), is turned exactly as by RoPE. Source: Wang 2024, section 2.1; the
    interleaved layout, the code of Qwen3-VL.

    Args:
        head_dim: Lanes of one head.
        sections: Pairs of each axis, time first; they add up to head_dim / 2.
        layout: "blocks" (the fastest pairs are time's, the slowest the column's) or "interleaved" (the axes take
            turns, so that each has fast and slow pairs; where an axis has used up its section, time goes on).
        base: 10,000; 1,000,000 in Qwen2-VL.
        pairing: "half" (as in Qwen) or "interleaved" lanes.
        inv_freq: Frequencies of your own, one a pair, or a function of the pairs' numbers; replaces the formula.
        trainable: True makes the frequencies learned; they stay in float32 whatever the module is cast to.

    Raises:
        ValueError: Sections that do not add up or, interleaved, do not fit, an odd head_dim, or an option with a value
            that is not listed here.

    >>> MRoPE(head_dim=8, sections=(2, 1, 1)).frequencies().numpy()
    array([[1.   , 0.1  , 0.   , 0.   ],
           [0.   , 0.   , 0.01 , 0.   ],
           [0.   , 0.   , 0.   , 0.001]])
    """

    def __init__(
        self,
        *,
        head_dim: int,
        sections: Sequence[int] = (16, 24, 24),
        layout: Literal["blocks", "interleaved"] = "blocks",
        base: float = 10000.0,
        pairing: Pairing = "half",
        inv_freq: frequencies.Given | None = None,
        trainable: bool = False,
    ) -> None:
        super().__init__(head_dim=head_dim, pairing=pairing)
        sections = entries(self.name, "sections", sections)
        if not all(isinstance(n, Integral) and not isinstance(n, bool) for n in sections):
            raise TypeError(f"{self.name}: sections must be whole numbers of pairs; got sections={tuple(sections)}.")
        if not sections or min(sections) < 0 or 2 * sum(sections) != head_dim:
            raise ValueError(
                f"{self.name}: sections must be numbers of pairs that add up to head_dim / 2 = {head_dim // 2}; "
                f"got sections={tuple(sections)}, which add up to {sum(sections)}."
            )
        check_word(self.name, "layout", layout, "blocks", "interleaved")
        room = [len(range(axis, head_dim // 2, len(sections))) for axis in range(len(sections))]
        if layout == "interleaved" and any(n > r for n, r in zip(sections[1:], room[1:], strict=True)):
            raise ValueError(
                f"{self.name}: axes that take turns have room for sections of at most {tuple(room)}, but for the "
                f"first, which has what is left; got sections={tuple(sections)}. Qwen3-VL has (24, 20, 20) of 64."
            )
        self.sections, self.layout, self.n_axes = tuple(sections), layout, len(sections)
        self.base = frequencies.check_base(base, self.name)
        self._set_frequencies(head_dim // 2, inv_freq, trainable)

    def formula(self) -> Float64[Tensor, " n_pairs"]:
        """Return base^(-2k / head_dim)."""
        return frequencies.geometric(self.head_dim // 2, base=self.base, width=self.head_dim)

    def frequencies(self) -> Float64[Tensor, "n_axes n_pairs"]:
        """Return a matrix in which each pair has its frequency in the row of its axis."""
        inv_freq = self.inv_freqs()
        axis = torch.tensor(self._axes(), device=inv_freq.device)
        return torch.where(torch.arange(self.n_axes, device=inv_freq.device)[:, None] == axis, inv_freq, 0.0)

    def _axes(self) -> list[int]:
        """Return the axis of each pair."""
        if self.layout == "blocks":
            return [axis for axis, n in enumerate(self.sections) for _ in range(n)]
        n = self.n_axes
        return [k % n if k < n * self.sections[k % n] else 0 for k in range(self.head_dim // 2)]
