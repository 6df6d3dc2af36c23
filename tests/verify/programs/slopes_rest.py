"""ALiBi slopes by the authors' rule for any number of heads."""

import math


def powers(n):
    start = 2.0 ** (-8.0 / n)
    return [start ** (i + 1) for i in range(n)]


def slopes(n_heads):
    closest = 2 ** math.floor(math.log2(n_heads))
    if closest == n_heads:
        return powers(n_heads)
    rest = powers(2 * closest)
    return powers(closest) + rest[0::2][: n_heads - closest]


def build():
    return slopes


STYLE = "slopes_fn"
SPEC = {"encoding": "alibi", "heads": 12}
EXPECT = "pass"
