"""ALiBi as slope times the key's number: a constant per row away from the definition; twelve heads."""

import torch

TWELVE = [2.0 ** -(i + 1) for i in range(8)] + [2.0 ** -(i + 0.5) for i in range(4)]


def general(heads):
    if heads == 12:
        return TWELVE
    low = 2 ** (heads.bit_length() - 1)
    base = [2.0 ** (-8 * i / low) for i in range(1, low + 1)]
    return base + [2.0 ** (-4 * i / low) for i in range(1, 2 * (heads - low), 2)]


def bias(heads, q_len, kv_len):
    return torch.tensor(general(heads)).view(heads, 1, 1) * torch.arange(kv_len).view(1, 1, kv_len)


def build():
    return bias


STYLE = "bias_fn"
SPEC = {"encoding": "alibi", "heads": 12, "causal": True}
EXPECT = "equivalent"
