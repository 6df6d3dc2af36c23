"""Causal attention with ALiBi."""

import torch


def attention(q, k, v, positions):
    heads, d = q.shape[1], q.shape[-1]
    slope = 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1, dtype=torch.float32))
    distance = positions[:, None] - positions[None, :]
    penalty = (slope[:, None, None] * distance).to(q.dtype)
    score = (q @ k.transpose(-2, -1)) * d**-0.5 - penalty
    score = score.masked_fill(distance < 0, float("-inf"))
    return torch.softmax(score, -1) @ v


def build():
    return attention


STYLE = "attention"
SPEC = {"encoding": "alibi", "heads": 8, "head_dim": 24, "causal": True}
EXPECT = "pass"
