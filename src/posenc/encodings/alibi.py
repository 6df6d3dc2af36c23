"""ALiBi: scores fall linearly with distance."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenc.config.values import short
from posenc.families import Bias, check_word, entries, finite, floating, wide
from posenc.registry import register

_NAMED = ("authors", "geometric", "learned")


@register(
    "alibi",
    paper="Press et al., Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
    year=2021,
    arxiv="2108.12409",
    formula="score - m_h·|i - j|,  m_h = 2^(-8(h+1)/H)",
    parameters="0, or H learned",
    cost="one term a score",
    used_by=("BLOOM", "MPT", "Falcon-RW", "Baichuan-13B"),
    serves=("text", "long"),
    example={"n_heads": 4},
    variants=(
        {"n_heads": 12},
        {"n_heads": 6, "slopes": "geometric", "bias_max": 16.0},
        {"sides": "one-sided"},
        {"slopes": "learned"},
        {"n_heads": 6, "heads": (5, 0, 2)},
        {"slopes": (0.5, 0.25, 0.0, 1.0)},
        {"n_heads": 6, "sides": "key", "precision": "falcon-bfloat16", "scale": 0.1},
    ),
    traits={
        "distinct": {"float32": 65_536, "bfloat16": 257, "float16": 2_049},
        "longest": None,
        "real_positions": True,
        "smooth": True,
        "bounded": False,
        "shift_invariant": True,
        "symmetric": True,
        "recency": True,
        "linear_shift": None,
        "length_dependent": False,
        "learned": 0,
        "cost": "score",
    },
)
class ALiBi(Bias):
    """Subtract the distance times a slope that differs for each head.

    The bias is symmetric in the distance, so it serves encoders too. With sides="one-sided" keys ahead get no bias, and
    an encoder can distinguish before from after. Behind a causal mask both are equal. BLOOM's form, the slope times
    the key's position, gives the same weights: it differs by one constant per query, which the softmax removes.
    Source: Press 2021, section 3; for numbers of heads that are not a power of two, the slopes of the authors' code.

    Learned slopes are stored as logarithms, so they stay positive and an optimiser step changes small and large slopes
    in proportion. They stay in float32 when the module is cast. Falcon rounds slope, position and product to
    bfloat16, so several keys beyond position 256 may share one bias; models trained this way need the same rounding.
    Falcon then divides the bias by √head_dim: see `scale`.

    Args:
        n_heads: Number of query heads.
        slopes: "authors" (2^(-8(h+1)/H) where H is a power of two; otherwise the slopes of the next lower power
            of two, then every other slope of twice that power), "geometric" (2^(-8(h+1)/H) for any H), "learned"
            (parameters that start at the authors' slopes), or a list of numbers.
        bias_max: Exponent of the smallest slope, 8 in the paper; MPT's configurations call it alibi_bias_max.
        sides: "symmetric" (-m_h |i - j|), "one-sided" (-m_h max(i - j, 0)), or "key" (m_h j).
        heads: Heads that have a slope: the number of leading heads, or a list of heads, which receive the slopes in
            its order. The other heads get no bias. None means all heads. H above is the number of heads with a slope.
        precision: "falcon-bfloat16" rounds as Falcon does; requires sides="key".
        scale: Factor on the bias after rounding: 1/√head_dim in Falcon, 1 elsewhere.

    Raises:
        TypeError: A slope or a head is not a number.
        ValueError: n_heads is below 1, bias_max or scale is not positive, a word is unknown, a list has the wrong
            length, a head does not exist or is named twice, or precision="falcon-bfloat16" without sides="key".

    >>> ALiBi(n_heads=8).dense(torch.arange(3))[0, 0]
    tensor([[-0.0000, -0.5000, -1.0000],
            [-0.5000, -0.0000, -0.5000],
            [-1.0000, -0.5000, -0.0000]])
    """

    keeps_float32 = True
    by_distance = True

    def __init__(
        self,
        *,
        n_heads: int,
        slopes: Literal["authors", "geometric", "learned"] | Sequence[float | int] = "authors",
        bias_max: float = 8.0,
        sides: Literal["symmetric", "one-sided", "key"] = "symmetric",
        heads: int | Sequence[int] | None = None,
        precision: Literal["falcon-bfloat16"] | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__(n_heads=n_heads)
        check_word(self.name, "sides", sides, "symmetric", "one-sided", "key")
        self._measure(bias_max=bias_max, scale=scale)
        self.bias_max, self.sides, self.scale = bias_max, sides, scale
        self.heads, self._sloped = self._check_heads_with_slopes(heads)
        self.slopes = self._check_slopes(slopes)
        if precision is not None:
            check_word(self.name, "precision", precision, "falcon-bfloat16")
            if sides != "key":
                raise ValueError(
                    f"{self.name}: precision='falcon-bfloat16' rounds the positions of keys, so it needs "
                    f"sides='key'; got sides={sides!r}. Pass sides='key'."
                )
        self.precision = precision
        if sides == "key":  # the bias depends on the key's position, not on the distance
            self.by_distance = False
        if self.slopes == "learned":
            self.log_slope = nn.Parameter(torch.empty(len(self._sloped), dtype=torch.float32))
        self.reset_parameters()

    def at(self, h: Tensor, q: Any, k: Any) -> Tensor:
        """Return -m_h |q - k|, -m_h max(q - k, 0), or m_h k."""
        if self.sides == "key":
            rows: Tensor = torch.broadcast_tensors(self._of_key(h, k), q)[0]  # one row per query, all equal
            return rows
        distance = floating((q - k).abs() if self.sides == "symmetric" else (q - k).clamp(min=0))
        return -self.slope(h, distance.dtype) * distance

    def slope(self, h: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the slopes of heads times `scale`, by arithmetic and comparisons only, so a score_mod can trace it."""
        return self._scaled(self._unscaled(h, dtype))

    def _unscaled(self, h: Tensor, dtype: torch.dtype) -> Tensor:
        place, has = h, h < len(self._sloped)
        if self._sloped != tuple(range(len(self._sloped))):
            has = torch.zeros_like(h, dtype=torch.bool)
            for i, head in enumerate(self._sloped):
                place, has = torch.where(h == head, i, place), has | (h == head)
        found = self._slope_number(place, dtype)
        return found if len(self._sloped) == self.n_heads else torch.where(has, found, torch.zeros_like(found))

    def _slope_number(self, place: Tensor, dtype: torch.dtype) -> Tensor:
        """Return slope number `place`, counted over the heads that have a slope."""
        if self.slopes == "learned":
            found: Tensor = wide(self.log_slope)[place.clamp(max=len(self._sloped) - 1)].exp().to(dtype)
            return found
        if not isinstance(self.slopes, str):
            found = torch.zeros_like(place, dtype=dtype)
            for i, slope in enumerate(self.slopes):
                found = torch.where(place == i, slope, found)
            return found
        n, number = len(self._sloped), place.to(dtype)
        if self.slopes == "geometric":
            return torch.exp2(-(number + 1) * (self.bias_max / n))
        lower = 2 ** math.floor(math.log2(n))
        exponent = torch.where(place < lower, number + 1, number - lower + 0.5) * (self.bias_max / lower)
        return torch.exp2(-exponent)

    def _of_key(self, h: Tensor, k: Tensor) -> Tensor:
        exact = floating(k)
        if self.precision is None:
            return self.slope(h, exact.dtype) * exact
        return self._scaled((self._unscaled(h, exact.dtype).bfloat16() * k.bfloat16()).to(exact.dtype))

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.scale == 1 else x * self.scale

    def _check_heads_with_slopes(self, heads: Any) -> tuple[int | tuple[int, ...] | None, tuple[int, ...]]:
        """Return the option and the heads that it names."""
        if heads is None or (isinstance(heads, int) and not isinstance(heads, bool)):
            first = self.n_heads if heads is None else heads
            self._count(heads=first)
            named = tuple(range(first))
        else:
            heads = named = tuple(entries(self.name, "heads", heads))
            for head in named:
                self._count(least=0, heads=head)
        if not named or max(named) >= self.n_heads or len(set(named)) < len(named):
            raise ValueError(
                f"{self.name}: heads must name different heads of 0..{self.n_heads - 1}, and at least one; got "
                f"heads={short(heads)}. Leave it out for all of n_heads={self.n_heads}."
            )
        return heads, named

    def _check_slopes(self, slopes: Any) -> Any:
        """Return the word, or the numbers as a tuple."""
        if isinstance(slopes, str):
            if slopes not in _NAMED:
                named = " or ".join(map(repr, _NAMED))
                raise ValueError(f"{self.name}: slopes must be {named}, or a list of numbers; got {slopes!r}.")
            return slopes
        given = tuple(finite(self.name, f"slopes[{i}]", m) for i, m in enumerate(entries(self.name, "slopes", slopes)))
        if len(given) != len(self._sloped):
            raise ValueError(
                f"{self.name}: slopes must have one number for each head that has a slope, {len(self._sloped)}; got "
                f"{len(given)} numbers."
            )
        return given

    def reset_parameters(self) -> None:
        """Set learned slopes to the authors'."""
        if self.slopes == "learned":
            twin = ALiBi(n_heads=len(self._sloped), bias_max=self.bias_max)
            with torch.no_grad():
                self.log_slope.copy_(twin.slope(torch.arange(len(self._sloped)), torch.float64).log())
