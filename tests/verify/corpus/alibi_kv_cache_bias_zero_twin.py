"""Correct twin of alibi_kv_cache_bias_zero."""

import torch

STYLE = "bias_fn"
SPEC = {"encoding": "alibi", "heads": 8, "causal": True}
EXPECT = "pass"


def slopes_of(heads):
    low = 1 << (heads.bit_length() - 1)
    values = [2 ** (-8 * k / low) for k in range(1, low + 1)] + [2 ** (-4 * k / low) for k in range(1, 2 * low, 2)]
    return torch.tensor(values[:heads])


def bias(heads, q_len, kv_len):
    keys = torch.arange(kv_len)
    queries = torch.arange(kv_len)[-q_len:]
    distance = keys[None, :] - queries[:, None]
    return slopes_of(heads)[:, None, None] * distance[None]


def build():
    return bias
