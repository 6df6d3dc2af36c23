"""M-RoPE: time, row and column share the pairs of dimensions of one RoPE."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc import config, frequencies
from posenc.config.axes import axes_of_pairs, dealt
from posenc.config.values import short
from posenc.encodings.rope import of_length, read
from posenc.families import Given, OwnFrequencies, Rotary, Scaled, check_word, entries, geometric
from posenc.kernels.eager import Pairing, Side
from posenc.registry import register

Layout = Literal["blocks", "interleaved", "time_last", "time_unrotated"] | Sequence[int | None]


@register(
    "mrope",
    paper="Wang et al., Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at Any Resolution",
    year=2024,
    arxiv="2409.12191",
    formula="RoPE whose pair k rotates by p_{a(k)}·base^(-2k/d),  a(k) = time, row or column",
    parameters="0",
    cost="two products and one sum for each lane of q and k",
    aliases=("multimodal_rope",),
    plans={
        "videorope": {"layout": "time_last"},
        "hope_video": {"layout": "time_unrotated"},
        "mmrope": {"layout": (0, 0, 1, 2, 1, 2, 1, 2)},
        "ilrope": {"layout": "interleaved"},
        "omnirope": {},
        "circle_rope": {},
    },
    plan_positions={
        "videorope": "videorope(parts, time_step=2)",
        "hope_video": "videorope(parts, time_step=1)",
        "mmrope": "mrope(parts, time_step=4, side_step=8)",
        "ilrope": "mrope(parts, spatial_reset=True)",
        "omnirope": "mrope(parts, spatial_reset=True)",
        "circle_rope": "circle_rope(parts, radius=10, alpha=0.5)",
    },
    used_by=("Qwen2-VL", "Qwen2.5-VL", "GLM-4V", "Qwen3-VL and Qwen3.5 (interleaved)", "Ernie 4.5 VL (time last)"),
    serves=("video", "image", "text"),
    example={"head_dim": 64, "sections": (8, 12, 12)},
    variants=(
        {"layout": "interleaved", "sections": (12, 10, 10)},
        {"sections": (6, 5, 5), "head_dim": 32, "layout": "interleaved", "pairing": "interleaved"},
        {"sections": (4, 6, 6), "rotary_dim": 32, "layout": "time_last", "attention_factor": 1.25, "score_factor": 1.5},
        {"sections": None, "layout": "time_unrotated"},
        {"sections": None, "layout": (0, 0, 1, 2, 1, 2, None, 2)},
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
class MRoPE(Scaled, OwnFrequencies, Rotary):
    """Rotate each pair of dimensions by one of several positions: time, row or column.

    The frequencies are those of RoPE over all pairs, whichever axis a pair belongs to. So text, whose three positions
    are equal (`positions.mrope`, `positions.on_each_axis`), rotates exactly as under RoPE. Source: Wang 2024, section
    2.1; the interleaved layout, the code of Qwen3-VL; time last, that of Ernie 4.5 VL. The plans of other papers differ
    in the layout, or only in the positions, which `posenc.positions` makes: `videorope`, `circle_rope`, and `mrope`
    with spatial_reset and side_step.

    Args:
        head_dim: Dimensions of one head.
        sections: Pairs of each axis, time first; they add up to rotary_dim / 2. None divides the pairs 2 to 3 to 3 as
            in Qwen2-VL, or 6 to 5 to 5 as in Qwen3-VL for "interleaved"; for a list as layout it counts the list.
        layout: "blocks" (time has the fastest pairs, the column the slowest), "interleaved" (the axes alternate, so
            each has fast and slow pairs; once an axis has used up its section, time gets its pairs), "time_last" (row
            and column alternate, and time has the slowest pairs: VideoRoPE), "time_unrotated" (the same, but the pairs
            of time do not rotate: HoPE), or a list with the axis of each pair, None for a pair that does not rotate; a
            shorter list is repeated: (0, 0, 1, 2, 1, 2, 1, 2) is MM-RoPE.
        base: 10,000; 1,000,000 in Qwen2-VL.
        rotary_dim: Number of dimensions that rotate; None means all.
        rotary_side: "first" or "last": which dimensions rotate.
        pairing: "half" (as in Qwen) or "interleaved" (as in GLM-4V) pairs.
        inv_freq: Frequencies that replace the formula, one per pair, or a function of the pairs' indices.
        trainable: True makes the frequencies learned; they stay in float32 whatever the module is cast to.
        attention_factor: The gain, which multiplies the rotated dimensions of q and of k, as in YaRN.
        score_factor: Additional factor on all scores.

    Raises:
        ValueError: The sections do not add up or do not fit the layout, a width is odd or larger than head_dim, a
            factor is not positive, or an option has a value that is not listed here.

    >>> MRoPE(head_dim=8, sections=(2, 1, 1)).frequencies().numpy()
    array([[1.   , 0.1  , 0.   , 0.   ],
           [0.   , 0.   , 0.01 , 0.   ],
           [0.   , 0.   , 0.   , 0.001]])
    """

    def __init__(
        self,
        *,
        head_dim: int,
        sections: Sequence[int] | None = None,
        layout: Layout = "blocks",
        base: float = 10000.0,
        rotary_dim: int | None = None,
        rotary_side: Side = "first",
        pairing: Pairing = "half",
        inv_freq: Given | None = None,
        trainable: bool = False,
        attention_factor: float = 1.0,
        score_factor: float = 1.0,
    ) -> None:
        super().__init__(head_dim=head_dim, rotary_dim=rotary_dim, rotary_side=rotary_side, pairing=pairing)
        n_pairs = self.rotary_dim // 2
        counts = None if sections is None else counted(self.name, sections, "pairs")
        if isinstance(layout, str):
            self.layout: Layout = layout
            self.sections, self._axes = _by_word(self.name, counts, layout, n_pairs)
        else:
            self.layout = pattern = tuple(entries(self.name, "layout", layout))
            self.sections, self._axes = _by_list(self.name, counts, pattern, n_pairs)
        self.n_axes = len(self.sections)
        self.base = frequencies.check_base(base, self.name)
        self._set_factors(attention_factor, score_factor)
        self._set_frequencies(n_pairs, inv_freq, trainable)

    def formula(self) -> Float64[Tensor, " n_pairs"]:
        """Return base^(-2k / rotary_dim)."""
        return geometric(self.rotary_dim // 2, base=self.base, width=self.rotary_dim)

    def frequencies(self) -> Float64[Tensor, "n_axes n_pairs"]:
        """Return a matrix in which each pair has its frequency in the row of its axis."""
        return of_axes(self.inv_freqs(), self._axes, self.n_axes)

    @classmethod
    def from_config(
        cls,
        source: config.Source,
        layer_type: str | None = None,
        *,
        pairing: Pairing | None = None,
        seq_len: int | None = None,
    ) -> "MRoPE":
        """Construct the encoding of one kind of layer of a multimodal model from its configuration.

        Sections come from `mrope_section`, or from the code of the model type where the file has none. The layout comes
        from that code, or from `mrope_interleaved` in a model type that posenc does not support.

        Args:
            source: A config.json, a directory that contains one, or a mapping.
            layer_type: The kind of layer, where kinds rotate differently.
            pairing: Which dimensions rotate together; None uses the model type's pairing.
            seq_len: The longest text, in positions; required if frequencies depend on it.

        Raises:
            ValueError: As `config.rotary` does; or positions have one axis, the dimensions of a pair read different
                axes (HunYuan-VL), or frequencies depend on a length that is not given.
            TypeError: As `config.rotary` does.

        >>> qwen = {"model_type": "qwen2_vl", "head_dim": 128, "rope_scaling": {"mrope_section": [16, 24, 24]}}
        >>> MRoPE.from_config(qwen).sections
        (16, 24, 24)
        """
        rotary, found, options = read(source, layer_type, pairing, seq_len)
        if rotary.sections is None or rotary.layout == "doubled":
            because = "got no mrope_section"
            if rotary.sections is not None:
                because = (
                    "in HunYuan-VL its two dimensions read different axes, which is not a rotation; got sections of a "
                    "doubled table"
                )
            raise ValueError(
                f"{cls.__name__}: a configuration must name the axis that each pair of dimensions reads, and {because} "
                f"in {rotary.model_type}. RoPE.from_config constructs the encoding of its text."
            )
        of_length(cls.__name__, rotary, seq_len)
        axes: dict[str, Any] = {"sections": rotary.sections, "layout": rotary.layout}
        return cls(**options, **axes, inv_freq=found.inv_freq, attention_factor=found.gain)


def counted(who: str, sections: Sequence[int], what: str, name: str = "sections") -> tuple[int, ...]:
    """Return the number of pairs, heads or dimensions of each axis.

    Raises:
        TypeError: `sections` is not a list of whole numbers.
    """
    found = entries(who, name, sections)
    if not all(isinstance(n, Integral) and not isinstance(n, bool) for n in found):
        raise TypeError(f"{who}: {name} must be whole numbers of {what}; got {name}={tuple(found)}.")
    return tuple(map(int, found))


def of_axes(
    inv_freq: Float64[Tensor, " n_pairs"], axes: Sequence[Any], n_axes: int
) -> Float64[Tensor, "*heads n_axes n_pairs"]:
    """Return a matrix with each pair's frequency in the row of the axis that it reads, and none for axis -1.

    Args:
        inv_freq: Radians per position of each pair.
        axes: The axis of each pair; or one list per head with a single axis for all its pairs.
        n_axes: Number of axes.

    >>> pairs = torch.tensor([1.0, 0.5])
    >>> of_axes(pairs, [1, -1], 2).tolist(), of_axes(pairs, [[1], [0]], 2).tolist()
    ([[0.0, 0.0], [1.0, 0.0]], [[[0.0, 0.0], [1.0, 0.5]], [[1.0, 0.5], [0.0, 0.0]]])
    """
    read = torch.tensor(axes, device=inv_freq.device)
    rows = torch.arange(n_axes, device=inv_freq.device)[:, None]
    return torch.where(rows == read[..., None, :], inv_freq, 0.0)


def _by_word(
    who: str, sections: tuple[int, ...] | None, layout: str, n_pairs: int
) -> tuple[tuple[int, ...], list[int]]:
    """Return the number of pairs of each axis, and the axis of each pair, -1 for none.

    Raises:
        ValueError: The layout is unknown, or the sections do not fit it or do not add up.
    """
    check_word(who, "layout", layout, "blocks", "interleaved", "time_last", "time_unrotated")
    if sections is None:
        side = n_pairs * (5 if layout == "interleaved" else 6) // 16
        sections = (n_pairs - 2 * side, side, side)
    if not sections or min(sections) < 0 or sum(sections) != n_pairs:
        raise ValueError(
            f"{who}: sections must be numbers of pairs that add up to rotary_dim / 2 = {n_pairs}; "
            f"got sections={sections}, which add up to {sum(sections)}."
        )
    order = "time_last" if layout == "time_unrotated" else layout
    if (kept := dealt(sections, order, n_pairs)) != sections:
        raise ValueError(
            f"{who}: alternating axes can have at most {kept} pairs, except the first, which gets the rest; "
            f"got sections={sections} and layout={layout!r}. Qwen3-VL has (24, 20, 20) of 64, interleaved."
        )
    axes = axes_of_pairs(sections, order, n_pairs)
    return sections, [axis or -1 for axis in axes] if layout == "time_unrotated" else axes


def _by_list(
    who: str, sections: tuple[int, ...] | None, layout: tuple[Any, ...], n_pairs: int
) -> tuple[tuple[int, ...], list[int]]:
    """Return the same as `_by_word`, for a layout that lists the axis of each pair.

    Raises:
        TypeError: An entry is not a whole number.
        ValueError: The list is empty, too long or names no such axis, or the sections differ from its counts.
    """
    named = [axis for axis in layout if axis is not None]
    if not all(isinstance(axis, Integral) and not isinstance(axis, bool) for axis in named):
        raise TypeError(f"{who}: layout must be a word, or a list of axes and None; got layout={short(layout)}.")
    if not named or len(layout) > n_pairs or not 0 <= min(named) <= max(named) < n_pairs:
        raise ValueError(
            f"{who}: a layout that is a list must have an axis for each of {n_pairs} pairs (axes count from 0), or a "
            f"shorter pattern to repeat, with None for a pair that does not rotate; got layout={short(layout)}."
        )
    axes = [-1 if axis is None else int(axis) for axis in layout]
    axes = [axes[k % len(axes)] for k in range(n_pairs)]
    n_axes = max(axes) + 1 if sections is None else len(sections)
    counts = tuple(axes.count(axis) for axis in range(n_axes))
    if max(axes) >= n_axes or sections not in (None, counts):
        raise ValueError(
            f"{who}: sections must count the pairs of each axis in layout, {counts}; got sections={sections}. Leave "
            "sections out."
        )
    return counts, axes
