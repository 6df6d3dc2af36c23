"""One geometric series for any number of heads; the authors interleave two when it is no power of two.

Report: https://github.com/ml-explore/mlx/pull/3071
"""

STYLE = "slopes_fn"
SPEC = {"encoding": "alibi", "heads": 12}
EXPECT = "alibi.slopes.not_power_of_two"


def power_of_two_slopes(n):
    return [2.0 ** (-8.0 * (h + 1) / n) for h in range(n)]


def slopes(n_heads):
    return power_of_two_slopes(n_heads)


def build():
    return slopes
