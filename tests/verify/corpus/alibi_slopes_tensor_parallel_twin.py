"""Correct twin of alibi_slopes_tensor_parallel."""

import math

STYLE = "slopes_fn"
SPEC = {"encoding": "alibi", "heads": 16}
EXPECT = "pass"


RANKS = 2


def all_slopes(n):
    low = 2 ** math.floor(math.log2(n))
    values = [2 ** (-8 * (h + 1) / low) for h in range(low)]
    return values + [2 ** (-4 * (2 * h + 1) / low) for h in range(n - low)]


def rank_slopes(n_heads, rank):
    local = n_heads // RANKS
    return all_slopes(n_heads)[rank * local : (rank + 1) * local]


def build():
    return lambda n_heads: [slope for rank in range(RANKS) for slope in rank_slopes(n_heads, rank)]
