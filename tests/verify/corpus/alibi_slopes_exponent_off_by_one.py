"""The exponents begin at 0, so the first head's slope is 1 instead of 2 ** (-8 / n).

Report: https://github.com/paiml/aprender/pull/2143
"""

STYLE = "slopes_fn"
SPEC = {"encoding": "alibi", "heads": 8}
EXPECT = "alibi.slopes.exponent_off_by_one"


def alibi_slopes(n_heads: int) -> list[float]:
    """Return the slopes; the number of heads is a power of two."""
    ratio = 2.0 ** (-8.0 / n_heads)
    slope, out = 1.0, []
    for _ in range(n_heads):
        out.append(slope)
        slope *= ratio
    return out


def build():
    return alibi_slopes
