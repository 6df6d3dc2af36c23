"""Distances among the new tokens alone: with one new token the bias is 0, whatever the cache holds.

Report: https://github.com/keras-team/keras-hub/issues/2861
"""

import torch

STYLE = "bias_fn"
SPEC = {"encoding": "alibi", "heads": 8, "causal": True}
EXPECT = "alibi.kv_cache.bias_zero"


def slopes_of(heads):
    low = 1 << (heads.bit_length() - 1)
    values = [2 ** (-8 * k / low) for k in range(1, low + 1)] + [2 ** (-4 * k / low) for k in range(1, 2 * low, 2)]
    return torch.tensor(values[:heads])


def bias(heads, q_len, kv_len):
    keys = torch.arange(q_len)
    queries = torch.arange(q_len)
    distance = keys[None, :] - queries[:, None]
    return slopes_of(heads)[:, None, None] * distance[None]


def build():
    return bias
