"""Known faults of frequencies, each a prediction: what a rotation would turn by, were it made so."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from posenc import frequencies
from posenc.verify.rotary.expected import Expected
from posenc.verify.rotary.guess import Guess
from posenc.verify.rotary.matrix import Array
from posenc.verify.rotary.scalings import of_scaling

BASES = (10000.0, 500000.0, 1000000.0, 100.0, 1000.0, 100000.0, 5000000.0, 160000.0)


def guesses(asked: Expected, seq_len: int) -> Iterator[Guess]:
    """Yield all known ways to other frequencies than those asked for, the likeliest first."""
    yield from of_scaling(asked, seq_len)
    yield from _of_width(asked)
    yield from _of_base(asked, seq_len)
    yield from _of_form(asked, seq_len)


def _of_base(asked: Expected, seq_len: int) -> Iterator[Guess]:
    for base in BASES:
        if math.isclose(base, asked.base):
            continue
        says = f"the base is {base:,.10g} whatever is asked for; it should be {asked.base:,.10g}"
        yield Guess("rope.config.theta_not_read", says, asked.plain(base))
        if asked.source is not None and asked.scaling != "default":
            rebased = _rebased(asked, base, seq_len)
            if rebased is not None:
                yield Guess("rope.config.theta_not_read", says + " (scaled as it should be)", rebased)


def _rebased(asked: Expected, base: float, seq_len: int) -> Array | None:
    source = dict(asked.source or {})
    source["rope_theta"] = base
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(source.get(key), dict) and "rope_theta" in source[key]:
            source[key] = source[key] | {"rope_theta": base}
    pairing: Any = asked.layout or "half"
    try:
        return frequencies.from_config(source, pairing=pairing, seq_len=seq_len).inv_freq.numpy()
    except (ValueError, TypeError):
        return None


def _of_width(asked: Expected) -> Iterator[Guess]:
    """Yield exponents over the width of a head that hidden size and heads give, where head_dim says another."""
    source = asked.source or {}
    hidden, heads = source.get("hidden_size"), source.get("num_attention_heads")
    if not hidden or not heads or hidden == heads * asked.head_dim:
        return
    says = f"exponents count over hidden_size / num_attention_heads = {hidden / heads:g} lanes; head_dim is "
    width = asked.rotary_dim * hidden / heads / asked.head_dim
    exponents = -2.0 * np.arange(asked.rotary_dim // 2) / width
    yield Guess("rope.config.head_dim_not_read", f"{says}{asked.head_dim}", asked.base**exponents)


def _of_form(asked: Expected, seq_len: int) -> Iterator[Guess]:
    right, n, width, base = asked.inv_freq(seq_len), asked.rotary_dim // 2, asked.rotary_dim, asked.base
    i = np.arange(n)
    if asked.head_dim != width:
        says = f"exponents count over all {asked.head_dim} lanes of the head; only {width} turn, and count"
        yield Guess("rope.partial.head_dim_used", says, base ** (-2.0 * i / asked.head_dim))
    forms = {
        "rope.frequency.inverted": ("frequencies rise from pair to pair: base^(2i/d)", 2.0 * i / width),
        "rope.frequency.whole_exponents": ("exponents are whole numbers: every pair turns by 1", np.zeros(n)),
        "rope.frequency.exponent_halved": ("the exponent is i/d instead of 2i/d", -1.0 * i / width),
        "rope.frequency.exponent_doubled": ("the exponent is 4i/d instead of 2i/d", -4.0 * i / width),
        "rope.frequency.starts_at_one": ("pairs are counted from 1: base^(-2(i+1)/d)", -2.0 * (i + 1) / width),
        "rope.frequency.last_is_base": ("pairs reach the base itself: base^(-i/(d/2 - 1))", -1.0 * i / max(n - 1, 1)),
    }  # fmt: skip
    for code, (says, exponent) in forms.items():
        yield Guess(code, says, base**exponent)
    yield Guess("rope.frequency.in_turns", "angles are in turns: multiplied by 2 pi", right * 2 * np.pi)
    yield Guess("rope.frequency.in_turns", "angles are in turns: divided by 2 pi", right / (2 * np.pi))
    yield Guess("rope.frequency.order_reversed", "pairs have each other's frequencies, the slowest first", right[::-1])
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        rounded = torch.from_numpy(right.copy()).to(dtype).double().numpy()
        says = f"frequencies are rounded to {str(dtype)[6:]} before they meet a position"
        yield Guess(f"rope.precision.frequencies_{name}", says, rounded)
