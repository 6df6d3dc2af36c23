"""The slope times the key's position, causal, with the mask before the bias."""

import torch

STYLE = "attention"
SPEC = {"encoding": "alibi", "heads": 8, "head_dim": 16, "causal": True}
EXPECT = "pass"


def attention(q, k, v, positions):
    heads = q.size(-3)
    slopes = torch.exp2(-8 * torch.arange(1, heads + 1) / heads)[:, None, None]
    scores = q @ k.mT * q.size(-1) ** -0.5
    scores = scores.masked_fill(positions[:, None] < positions[None, :], torch.finfo(scores.dtype).min)
    return (scores + slopes * positions).softmax(dim=-1) @ v


def build():
    return attention
