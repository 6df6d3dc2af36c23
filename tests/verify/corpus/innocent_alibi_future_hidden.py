"""Minus infinity where the causal mask hides a key, in float64, with a batch axis of 1."""

import math

import torch

STYLE = "bias_fn"
SPEC = {"encoding": "alibi", "heads": 12, "causal": True}
EXPECT = "pass"


def interleaved_slopes(heads):
    if heads & (heads - 1) == 0:
        return [0.5 ** (8 * (h + 1) / heads) for h in range(heads)]
    low = 1 << (heads.bit_length() - 1)
    return interleaved_slopes(low) + interleaved_slopes(2 * low)[::2][: heads - low]


def bias(heads, q_len, kv_len):
    back = torch.arange(kv_len - q_len, kv_len).view(-1, 1) - torch.arange(kv_len)
    term = -torch.tensor(interleaved_slopes(heads), dtype=torch.float64).view(1, -1, 1, 1) * back
    return term.masked_fill(back < 0, -math.inf)


def build():
    return bias
