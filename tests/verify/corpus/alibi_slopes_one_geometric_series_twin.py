"""Correct twin of alibi_slopes_one_geometric_series."""

STYLE = "slopes_fn"
SPEC = {"encoding": "alibi", "heads": 12}
EXPECT = "pass"


def power_of_two_slopes(n):
    return [2.0 ** (-8.0 * (h + 1) / n) for h in range(n)]


def slopes(n_heads):
    low = 2 ** (n_heads.bit_length() - 1)
    return power_of_two_slopes(low) + power_of_two_slopes(2 * low)[0::2][: n_heads - low]


def build():
    return slopes
