"""Known faults of scaled frequencies, each a prediction: what a rotation would turn by, were it made so."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from posenc import frequencies
from posenc.verify.rotary.expected import Expected
from posenc.verify.rotary.guess import Guess
from posenc.verify.rotary.of_lengths import of_dynamic, of_longrope
from posenc.verify.rotary.of_llama3 import of_llama3
from posenc.verify.rotary.of_yarn import of_yarn


def of_scaling(asked: Expected, seq_len: int) -> Iterator[Guess]:
    """Yield frequencies as faults of the scaling that is asked for would make them."""
    if asked.scaling == "default":
        yield from _unasked(asked)
        return
    factor = (asked.rotary.factor if asked.rotary is not None else None) or 1.0
    trained = (asked.rotary.original_max_len if asked.rotary is not None else None) or 1
    told = {} if asked.rotary is None else dict(asked.rotary.parameters)
    if asked.scaling == "proportional":
        yield from _of_proportional(asked, told)
    yield from _ignored(asked, factor, seq_len)
    kinds = {
        "yarn": lambda: of_yarn(asked, factor, float(trained), told),
        "llama3": lambda: of_llama3(asked, factor, float(trained), told, seq_len),
        "dynamic": lambda: of_dynamic(asked, factor, trained, seq_len),
        "longrope": lambda: of_longrope(asked, told, seq_len, trained),
    }
    yield from kinds.get(asked.scaling, lambda: iter(()))()
    yield from _of_factor(asked, factor, seq_len)


def _unasked(asked: Expected) -> Iterator[Guess]:
    for factor in (2.0, 4.0, 8.0, 0.5, 0.25):
        says = f"positions are divided by {factor:g}, which nobody asked for"
        yield Guess("rope.config.scaling_unasked", says, asked.plain() / factor)


def _ignored(asked: Expected, factor: float, seq_len: int) -> Iterator[Guess]:
    """Yield frequencies that the scaling leaves alone, or that grow where it should not."""
    plain = asked.plain()
    says = f"the scaling {asked.scaling!r} is not applied: these are the plain frequencies of base {asked.base:,.10g}"
    yield Guess("rope.config.scaling_ignored", says, plain)
    if asked.max_positions and seq_len > asked.max_positions and asked.scaling == "linear":
        lengths = {"seq_len": seq_len, "original_max_len": asked.max_positions}
        grown = asked.plain(frequencies.dynamic_base(asked.base, width=asked.rotary_dim, factor=factor, **lengths))
        says = (
            f"beyond {asked.max_positions:,} positions the base grows as dynamic scaling has it, which is not asked for"
        )
        yield Guess("rope.dynamic.not_gated_by_type", says, grown / factor)
        yield Guess("rope.dynamic.not_gated_by_type", says, grown)


def _of_factor(asked: Expected, factor: float, seq_len: int) -> Iterator[Guess]:
    """Yield frequencies to which the factor is applied in another way."""
    plain, right = asked.plain(), asked.inv_freq(seq_len)
    if asked.scaling != "linear":
        says = f"all frequencies are divided by the factor {factor:g}, as linear scaling does"
        yield Guess(f"rope.{asked.scaling}.as_linear", says, plain / factor)
    stretched = frequencies.ntk_base(asked.base, width=asked.rotary_dim, factor=factor) if factor > 1 else asked.base
    code = "rope.dynamic.static" if asked.scaling == "dynamic" else f"rope.{asked.scaling}.as_ntk"
    says = f"the base is stretched by factor^(d/(d-2)) at every length (static NTK, factor {factor:g})"
    yield Guess(code, says, asked.plain(stretched))
    says = f"frequencies are multiplied by the factor {factor:g} instead of divided"
    yield Guess(f"rope.{asked.scaling}.factor_inverted", says, plain * factor)
    yield Guess(f"rope.{asked.scaling}.factor_twice", f"the factor {factor:g} is applied twice", right / factor)


def _of_proportional(asked: Expected, told: dict[str, Any]) -> Iterator[Guess]:
    n, share = asked.rotary_dim // 2, float(told.get("share", 1.0))
    yield Guess("rope.proportional.full_rotation", "all pairs turn; only a share of them is to", asked.plain())
    turning = max(1, int(share * n))
    compressed = np.where(np.arange(n) < turning, asked.base ** (-np.arange(n) / turning), 0.0)
    says = "exponents count over the pairs that turn; they should count over all"
    yield Guess("rope.proportional.compressed_width", says, compressed)
