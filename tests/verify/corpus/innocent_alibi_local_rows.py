"""Signed distances whose rows begin at 0 under a cache too: each row is off by a constant."""

import torch

STYLE = "bias_fn"
SPEC = {"encoding": "alibi", "heads": 4, "causal": True}
EXPECT = "equivalent"


def bias(heads, q_len, kv_len):
    signed = torch.arange(kv_len)[None, :] - torch.arange(q_len)[:, None]
    slopes = torch.exp2(-8.0 / heads * torch.arange(1, heads + 1))
    return torch.einsum("h,qk->hqk", slopes, signed.float())


def build():
    return bias
