"""Correct twin of alibi_slopes_exponent_off_by_one."""

STYLE = "slopes_fn"
SPEC = {"encoding": "alibi", "heads": 8}
EXPECT = "pass"


def alibi_slopes(n_heads: int) -> list[float]:
    """Return the slopes; the number of heads is a power of two."""
    ratio = 2.0 ** (-8.0 / n_heads)
    slope, out = ratio, []
    for _ in range(n_heads):
        out.append(slope)
        slope *= ratio
    return out


def build():
    return alibi_slopes
