"""Correct twin of attention_rope_one_side_reversed."""

import math

import torch

STYLE = "attention"
SPEC = {"encoding": "rope", "head_dim": 16, "base": 10000.0, "layout": "half", "causal": False}
EXPECT = "pass"


def half_turn(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def attention(q, k, v, positions):
    lane = torch.arange(0, q.shape[-1], 2, dtype=torch.float64)
    angle = torch.outer(positions.double(), 10000.0 ** (-lane / q.shape[-1]))
    cos, sin = (torch.cat([wave, wave], dim=-1).to(q.dtype) for wave in (angle.cos(), angle.sin()))
    q = q * cos + half_turn(q) * sin
    k = k * cos + half_turn(k) * sin
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(scores, dim=-1), v)


def build():
    return attention
