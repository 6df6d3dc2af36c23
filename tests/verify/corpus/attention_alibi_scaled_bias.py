"""The softmax scale is applied to the bias too, which is weaker by the root of the head's width.

Report: https://github.com/NVIDIA/TransformerEngine/pull/103
"""

import math

import torch

STYLE = "attention"
SPEC = {"encoding": "alibi", "heads": 4, "head_dim": 16, "causal": True}
EXPECT = "alibi.scale.applied_to_bias"


def attention(q, k, v, positions):
    heads, width = q.shape[1], q.shape[-1]
    slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)])
    distance = positions[:, None] - positions[None, :]
    bias = -slopes[:, None, None] * distance
    scores = (q @ k.mT + bias) / math.sqrt(width)
    scores = scores.masked_fill(distance < 0, -math.inf)
    return scores.softmax(-1) @ v


def build():
    return attention
