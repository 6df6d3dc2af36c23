"""A matrix of positive distances is added where it should be taken away.

Report: https://github.com/meta-pytorch/attention-gym/pull/86
"""

import math

import torch

STYLE = "bias_fn"
SPEC = {"encoding": "alibi", "heads": 4, "causal": True}
EXPECT = "alibi.sign"


def alibi_bias(heads, q_len, kv_len):
    low = 2 ** int(math.log2(heads))
    exponents = [8 * (h + 1) / low for h in range(low)] + [4 * (2 * h + 1) / low for h in range(heads - low)]
    slopes = torch.tensor([2.0**-e for e in exponents]).view(heads, 1, 1)
    rows = torch.arange(kv_len - q_len, kv_len).view(-1, 1)
    back = (rows - torch.arange(kv_len)).clamp(min=0)
    return slopes * back


def build():
    return alibi_bias
