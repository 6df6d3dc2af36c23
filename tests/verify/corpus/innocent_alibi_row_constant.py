"""Distances counted from one position further: a constant in every row of the scores."""

import torch

STYLE = "bias_fn"
SPEC = {"encoding": "alibi", "heads": 8, "causal": True}
EXPECT = "equivalent"


def bias(heads, q_len, kv_len):
    slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)])
    context = torch.arange(kv_len - q_len + 1, kv_len + 1)
    return slopes[:, None, None] * (torch.arange(kv_len) - context[:, None])


def build():
    return bias
