"""ALiBi slopes by recursion over the binary logarithm, exact fractions of exponents; any number of heads."""

from fractions import Fraction


def exponents(n):
    low = 1 << (n.bit_length() - 1)
    mine = [Fraction(8 * (i + 1), low) for i in range(low)]
    if low == n:
        return mine
    return mine + exponents(2 * low)[::2][: n - low]


def slopes(n_heads):
    return [2.0 ** -float(e) for e in exponents(n_heads)]


def build():
    return slopes


STYLE = "slopes_fn"
SPEC = {"encoding": "alibi", "heads": 3}
EXPECT = "pass"
