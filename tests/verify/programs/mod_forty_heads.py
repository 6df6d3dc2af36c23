"""A score_mod of 40 heads with the authors' slopes, made of two series."""

import math

import torch

STYLE = "score_mod"
SPEC = {"encoding": "alibi", "heads": 40, "causal": True}
EXPECT = "pass"


def get_slopes(n):
    low = 2 ** math.floor(math.log2(n))
    first = torch.exp2(-(torch.arange(low) + 1) * 8.0 / low)
    return torch.cat([first, torch.exp2(-(2 * torch.arange(n - low) + 1) * 4.0 / low)])


def build():
    slopes = get_slopes(40)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    return score_mod
