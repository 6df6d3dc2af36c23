"""ALiBi bias for causal attention, made for the lengths of the call."""

import torch


def bias(heads, q_len, kv_len):
    low = 1 << (heads.bit_length() - 1)
    steps = [8 * (h + 1) / low for h in range(low)] + [4 * (2 * h + 1) / low for h in range(heads - low)]
    slope = torch.tensor([2.0**-e for e in steps])
    keys = torch.arange(kv_len)
    queries = torch.arange(kv_len - q_len, kv_len)
    distance = queries[:, None] - keys[None, :]
    return -slope[:, None, None] * distance


def build():
    return bias


STYLE = "bias_fn"
SPEC = {"encoding": "alibi", "heads": 8, "causal": True}
EXPECT = "pass"
