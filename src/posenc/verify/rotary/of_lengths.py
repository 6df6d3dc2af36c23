"""Known faults of scalings that look at the length of the text: dynamic NTK and LongRoPE."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from posenc import frequencies
from posenc.verify.rotary.expected import Expected
from posenc.verify.rotary.guess import Guess


def of_dynamic(asked: Expected, factor: float, trained: int, seq_len: int) -> Iterator[Guess]:
    """Yield frequencies as faults of dynamic NTK would make them, the likeliest first."""

    def grown(factor: float, n: int) -> Any:
        lengths = {"seq_len": n, "original_max_len": trained}
        return asked.plain(frequencies.dynamic_base(asked.base, width=asked.rotary_dim, factor=factor, **lengths))

    for other in (1.0, 2.0, 4.0, 8.0):
        if other != factor and seq_len > trained:
            says = f"the factor is {other:g} whatever is asked for; it should be {factor:g}"
            yield Guess("rope.dynamic.factor_not_read", says, grown(other, seq_len))
    says = "the base is that of the longest text at every length; it should grow with the text"
    yield Guess("rope.dynamic.static", says, grown(factor, int(trained * factor)))
    for scale, way in ((factor, "multiplied"), (1 / factor, "divided")):
        says = f"positions are {way} by the factor {factor:g}; the base alone should grow"
        yield Guess("rope.dynamic.positions_scaled", says, asked.plain() * scale)
    if seq_len > trained:
        yield from _of_dynamic_formula(asked, factor, seq_len / trained)


def _of_dynamic_formula(asked: Expected, factor: float, ratio: float) -> Iterator[Guess]:
    """Yield bases that grow by another formula; `ratio`: of the length to the trained one."""
    power = asked.rotary_dim / (asked.rotary_dim - 2)
    forms = {
        "the base grows by (n / L)^(d/(d-2)), without the factor": ratio**power,
        "the base grows by (factor n / L)^(d/(d-2))": (factor * ratio) ** power,
        "the base grows without the exponent d/(d-2)": factor * ratio - (factor - 1),
    }
    for says, growth in forms.items():
        yield Guess("rope.dynamic.formula", says, asked.plain(asked.base * growth))


def of_longrope(asked: Expected, told: dict[str, Any], seq_len: int, trained: int) -> Iterator[Guess]:
    """Yield frequencies as faults of LongRoPE would make them."""
    plain = asked.plain()
    for key, code in (("long_factor", "rope.longrope.always_long"), ("short_factor", "rope.longrope.always_short")):
        factors = np.asarray(told.get(key, ()), dtype=float)
        if len(factors) != len(plain):
            continue
        name = key.split("_")[0]
        at = (
            "exactly at the trained length, where the short list still holds"
            if seq_len == trained
            else f"at {seq_len:,} positions"
        )
        found = "rope.longrope.boundary" if seq_len == trained else code
        yield Guess(found, f"the {name} list of factors is used {at}", plain / factors)
        says = f"frequencies are multiplied by the {name} list instead of divided"
        yield Guess("rope.longrope.factors_multiplied", says, plain * factors)
