"""Pairs are gathered first and the lanes of q and k left in that order: the products are the same."""

import torch

STYLE = "attention"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "interleaved", "causal": False}
EXPECT = "pass"


def gather_and_turn(x, positions):
    x = x.unflatten(-1, (-1, 2)).transpose(-1, -2)
    angle = positions[:, None] * 10000.0 ** (-torch.arange(x.shape[-1]) / x.shape[-1])
    even, odd = x.unbind(-2)
    return torch.cat([even * angle.cos() - odd * angle.sin(), odd * angle.cos() + even * angle.sin()], dim=-1)


def attention(q, k, v, positions):
    scores = gather_and_turn(q, positions) @ gather_and_turn(k, positions).mT
    return torch.softmax(scores / q.shape[-1] ** 0.5, dim=-1) @ v


def build():
    return attention
